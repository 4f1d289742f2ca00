"""On a GPU, everything gives what it gives on the CPU: the same tokens, and the same numbers up to rounding."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import foretell
from foretell.config.sampling import SamplingConfig
from foretell.evaluation.perplexity import TextEvaluation
from foretell.generation.batch_generation import run
from foretell.generation.recorded_step import can_record
from foretell.generation.sampling import Sampler
from foretell.generation.scheduler import Scheduler
from foretell.generation.sequence import Rules, Sequence
from foretell.insight.replacement import without_heads
from foretell.language_model import LanguageModel
from tests.warm import Original

GPU = "cuda"
PROMPTS = ["The return value of", "If", "A class definition may be used to create an object", "for"]
HEADS = "trunk.blocks.0.attention"
VALUES = (
    "trunk.blocks.0.attention.core.weights[1,3,2]",
    "trunk.blocks.1.attention.core.scores[0,4,1]",
    "trunk.blocks.0.feedforward[2,7]",
    "trunk.blocks.1[3,5]",
    "head[-1,40]",
)

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")


@pytest.fixture(scope="module")
def on_cpu() -> LanguageModel:
    return foretell.load("primer", device="cpu")


@pytest.fixture(scope="module")
def on_gpu() -> LanguageModel:
    return foretell.load("primer", device=GPU, dtype="float32")


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    path = tmp_path / "cats.txt"
    path.write_text("The cat sat on the mat. The dog sat on the log.\n" * 200)
    return path


def assert_runs(*words: object) -> None:
    """The command succeeds, in a process of its own."""
    command = [sys.executable, "-m", "foretell", *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def loss_of(model: LanguageModel, corpus: Path) -> float:
    """The loss per token of a text."""
    evaluation = foretell.evaluate(model, corpus)
    assert isinstance(evaluation, TextEvaluation)
    return evaluation.loss


def close(values: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(values.cpu(), expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    "settings",
    [
        {"temperature": 0},
        {"seed": 3},
        {"seed": 3, "top_p": 1.0, "temperature": 1.0},
        {"seed": 2, "top_k": 20, "min_p": 0.02, "repetition_penalty": 1.2, "frequency_penalty": 0.3},
        {"seed": 2, "no_repeat_ngram": 2, "min_tokens": 30, "ban": ["the"]},
        {"seed": 4, "n": 3},
    ],
    ids=str,
)
def test_generations_have_the_tokens_of_the_cpu(on_cpu: LanguageModel, on_gpu: LanguageModel, settings: Any) -> None:
    expected = foretell.generate(on_cpu, PROMPTS, max_tokens=40, **settings)
    found = foretell.generate(on_gpu, PROMPTS, max_tokens=40, **settings)
    assert [each.token_ids for each in found] == [each.token_ids for each in expected]
    assert foretell.generate(on_gpu, PROMPTS, max_tokens=40, **settings) == found


def test_recorded_steps_have_the_tokens_of_the_cpu_when_sequences_come_and_go(
    on_cpu: LanguageModel, on_gpu: LanguageModel, caplog: pytest.LogCaptureFixture
) -> None:
    def tokens(model: LanguageModel) -> list[list[int]]:
        scheduler, rules = Scheduler(model.decoder), Sampler(SamplingConfig(temperature=0))
        lengths = (30, 3, 45, 17)
        sequences = [
            Sequence(model.encode(prompt), rules=Rules(rules, length))
            for prompt, length in zip(PROMPTS, lengths, strict=True)
        ]
        for _ in run(scheduler, sequences):
            pass
        return [sequence.generated for sequence in sequences]

    assert can_record(on_gpu.decoder, None)
    assert tokens(on_gpu) == tokens(on_cpu)
    assert "not recorded" not in caplog.text


@pytest.mark.parametrize("scheme", ["int8", "int4"])
def test_integer_weights(on_cpu: LanguageModel, scheme: Any) -> None:
    ids = on_cpu.encode(PROMPTS[2])
    quantized = on_cpu.quantize(scheme)
    with torch.no_grad():
        expected = quantized(ids)
        moved = foretell.load("primer", device=GPU, dtype="float32").quantize(scheme)
        close(moved(ids), expected)
    text = foretell.generate(moved, PROMPTS, max_tokens=30, temperature=0)
    assert [each.token_ids for each in text] == [
        each.token_ids for each in foretell.generate(quantized, PROMPTS, max_tokens=30, temperature=0)
    ]


def test_questions_about_texts(on_cpu: LanguageModel, on_gpu: LanguageModel, corpus: Path) -> None:
    text = PROMPTS[2]
    expected, found = (foretell.next_tokens(model, text)[0].tokens for model in (on_cpu, on_gpu))
    assert [token.text for token in found] == [token.text for token in expected]
    expected, found = (foretell.score(model, text).perplexity for model in (on_cpu, on_gpu))
    assert found == pytest.approx(expected, rel=1e-4)
    expected, found = (foretell.embed(model, text) for model in (on_cpu, on_gpu))
    assert found == pytest.approx(expected, rel=1e-3, abs=1e-3)
    expected, found = (loss_of(model, corpus) for model in (on_cpu, on_gpu))
    assert found == pytest.approx(expected, rel=1e-5)


def test_every_named_value_of_a_pass(on_cpu: LanguageModel, on_gpu: LanguageModel) -> None:
    ids = on_cpu.encode(PROMPTS[2])
    with torch.no_grad():
        undisturbed = on_gpu(ids)
        with foretell.Trace(on_cpu, "*") as expected:
            on_cpu(ids)
        with foretell.Trace(on_gpu, "*") as trace:
            traced = on_gpu(ids)
    assert torch.equal(traced, undisturbed)
    assert set(trace) == set(expected)
    for name in trace:
        close(trace[name], expected[name])


def test_explanations(on_cpu: LanguageModel, on_gpu: LanguageModel, tmp_path: Path) -> None:
    text = PROMPTS[2]
    expected, found = (foretell.direct_logit_attribution(model, text) for model in (on_cpu, on_gpu))
    assert found.total == pytest.approx(expected.total, rel=1e-3)
    expected, found = (foretell.logit_lens(model, text, at=-1).positions[0] for model in (on_cpu, on_gpu))
    assert [each.rank for each in found.readings] == [each.rank for each in expected.readings]
    expected, found = (foretell.ablate(model, text, HEADS).effects for model in (on_cpu, on_gpu))
    assert [each.divergence for each in found] == pytest.approx([each.divergence for each in expected], rel=0.01)
    expected, found = (torch.as_tensor(foretell.head_patterns(model, text).weights) for model in (on_cpu, on_gpu))
    close(found, expected)
    foretell.write_page(on_gpu, text, tmp_path / "page.html")
    for value in VALUES:
        assert "follows from its operands" in str(foretell.explain(on_gpu, text, value))


class Stopping(foretell.Reporter):
    """Stops a training, as Ctrl-C does."""

    def metrics(self, metrics: Any, steps: int) -> None:
        if metrics["step"] >= 20:
            signal.raise_signal(signal.SIGINT)


@pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is")  # torch's compiler itself
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_trainings_also_when_they_are_resumed(tmp_path: Path, corpus: Path, compiled: bool, optimizer: str) -> None:
    training = {"compile": compiled, "checkpoint_every": 10, "optimizer": optimizer}

    def train(name: str, device: str, **options: Any) -> float:
        settings: dict[str, Any] = {"model": {"context_length": 64, "dropout": 0.1}, "training": training}
        sizes: dict[str, Any] = {"size": "toy", "steps": 40, "batch_size": 8, "seed": 1}
        out = tmp_path / name
        options |= {"device": device, "progress": False, "tokenizer": {"kind": "bytes"}}
        model = foretell.train(corpus, out, **sizes, **settings, **options)
        return loss_of(model.to("cpu"), corpus)

    expected = pytest.approx(train("cpu", "cpu"), rel=0.05)
    assert train("whole", GPU) == expected
    with pytest.raises(foretell.Interrupted):
        train("resumed", GPU, reporter=Stopping())
    assert train("resumed", GPU, resume=True) == expected


@pytest.mark.parametrize("options", [{}, {"lora": {"rank": 2}}], ids=str)
def test_finetuning(tmp_path: Path, options: Any) -> None:
    data = tmp_path / "animals.csv"
    data.write_text("text,label\n" + "".join(f"the {name} sat,{name}\n" for name in ("cat", "dog") * 40))
    settings: dict[str, Any] = {"task": "classify", "training": {"steps": 30}, "progress": False}
    model = foretell.finetune("primer", data, tmp_path / "run", device=GPU, **settings, **options)
    rows = [str(foretell.predict(each, ["the dog sat", "the cat sat"])) for each in (model, model.to("cpu"))]
    assert rows[0] == rows[1]


def test_a_forecaster_and_a_translator(tmp_path: Path) -> None:
    values = "".join(f"{100 + step % 7 * 10 + step % 3}\n" for step in range(200))
    (tmp_path / "series.csv").write_text("value\n" + values)
    (tmp_path / "pairs.tsv").write_text("Tom is here.\tTom est ici.\nGo.\tVa !\nI see.\tJe vois.\n" * 40)
    for task, name, steps in (("forecast", "series.csv", 30), ("translate", "pairs.tsv", 30)):
        command = ["train", "--task", task, tmp_path / name, "--size", "tiny", "--steps", steps, "--device", GPU]
        assert_runs(*command, "--out", tmp_path / task)
    assert_runs("forecast", tmp_path / "forecast", tmp_path / "series.csv", "--horizon", 7, "--device", GPU)
    assert_runs("translate", tmp_path / "translate", "Tom is here.", "--device", GPU)


def test_a_server_looks_inside_and_changes(on_cpu: LanguageModel, original: Original) -> None:
    pytest.importorskip("starlette")
    from tests.serving.conftest import start

    block, core, prompt = "trunk.blocks.1", "trunk.blocks.0.attention.core", PROMPTS[2]
    asked: dict[str, Any] = {"prompt": prompt, "max_tokens": 20, "temperature": 0, "look": {"values": [block]}}
    arguments = ("primer", "--device", GPU, "--dtype", "float32")
    served = start(original, *arguments, program=("-m", "foretell"))
    first: Any = {"value": "trunk.blocks.0", "scale": 0.5}, {"trunk.blocks.0": lambda old: 0.5 * old}
    for change, replace in (({}, {}), ({"value": core, "heads": [1], "scale": 0}, {core: without_heads(1)}), first):
        answer = served.ask("/v1/completions", **asked, change=[change] if change else [])
        with foretell.Trace(on_cpu, block, replace=replace) as trace:
            expected = foretell.generate(on_cpu, prompt, max_tokens=20, temperature=0)
        assert answer["choices"][0]["text"] == expected.text
        [row] = answer["foretell"]["look"][0]["values"][block]
        close(torch.tensor(row["values"]), torch.cat([call[0] for call in trace.calls(block)]))
    assert served.stop() == 0
    served.close()
