"""The protocol is the same for every task, and for a task that the package does not contain."""

from __future__ import annotations

import csv
import itertools
import json
import logging
import math
import os
import shutil
import signal
from collections import namedtuple
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from foretell.config.model import ModelConfig
from foretell.config.section import Section, make_section
from foretell.config.training import TrainingConfig
from foretell.data.documents import TextDocument
from foretell.errors import CheckpointError, ConfigError, ForetellError, Interrupted, OutputError, UsageError
from foretell.finetuning.chat_tuning import ChatRequest, ChatTraining
from foretell.finetuning.finetune import FinetuneTraining
from foretell.finetuning.request import FinetuneRequest
from foretell.forecasting.train import ForecastRequest, ForecastTraining
from foretell.generation.batch_generation import continue_prompt
from foretell.language_model import LanguageModel
from foretell.model.init import make_decoder
from foretell.planning.estimate import DeviceMemory
from foretell.pretraining.domain import DomainTraining
from foretell.pretraining.pretrain import TextTraining
from foretell.pretraining.request import TextRequest
from foretell.runs.lock import held
from foretell.runs.record import MEASURED, RunRecord
from foretell.runs.run import Run
from foretell.session.declaration import ChosenConfig, Machine, Training, kept_data
from foretell.session.fit import Footprint
from foretell.session.protocol import last_change, load_start, log_changed_data, run_training, start_session
from foretell.session.reporter import Reporter
from foretell.session.request import TrainingRequest, intervals
from foretell.session.task import Task
from foretell.text import train_tokenizer
from foretell.training.objective import Loss
from foretell.training.pace import TimeBudget
from foretell.translation.pairs import Pair
from foretell.translation.task import PairData
from foretell.translation.train import PairRequest, TranslationTraining
from tests.toy import StoppedAt

# --- a task that the package does not contain, in one place ----------------------------------------------------------


@dataclass(frozen=True)
class Points:
    """Points (B,) on a line that goes through the origin."""

    x: torch.Tensor
    slope: float

    @property
    def count(self) -> float:
        return float(len(self.x))

    @property
    def tokens(self) -> int:
        return len(self.x)

    def __len__(self) -> int:
        return len(self.x)

    def rows(self, first: int, last: int, stride: int = 1) -> Points:
        return Points(self.x[first:last:stride], self.slope)

    def to(self, device: torch.device | str) -> Points:
        return Points(self.x.to(device), self.slope)


class SquaredError(nn.Module):
    def __init__(self, line: nn.Linear):
        super().__init__()
        self.line = line

    def forward(self, points: Points) -> Loss:
        error = self.line(points.x[:, None])[:, 0] - points.slope * points.x
        return Loss(error.square().sum(), torch.tensor(points.count))


class LineConfig(Section):
    training: TrainingConfig


class LineTask(Task):
    """Finds the slope of a line."""

    def __init__(self, config: LineConfig, slope: float, line: nn.Linear):
        self.config, self.slope = config, slope
        self.model, self.objective = line, SquaredError(line)

    def batch(self, step: int) -> Points:
        generator = torch.Generator().manual_seed(step)
        return Points(torch.rand(self.config.training.batch_size, generator=generator), self.slope)

    def evaluate(self, dtype: torch.dtype) -> Mapping[str, float]:
        with torch.no_grad():
            return {"squared_error": float(self.objective(self.batch(10**6)).sum)}

    def save_model(self, directory: Path) -> None:
        save_file({"weight": dict(self.model.named_parameters())["weight"].detach()}, directory / "line.safetensors")

    def fingerprints(self) -> dict[str, str]:
        return {"slope": str(self.slope)}


@dataclass(frozen=True, kw_only=True)
class LineRequest(TrainingRequest):
    config_type: ClassVar[type[Section]] = LineConfig
    file: Path | None = None

    @property
    def described(self) -> list[str]:
        return [] if self.file is None else [str(self.file)]


class LineTraining(Training[LineRequest, LineTask]):
    verb = "train --task line"

    def read(self, run: Run, reporter: Reporter) -> float:
        assert self.request.file is not None
        run.keep_file(self.request.file, "data")
        return float(self.request.file.read_text())

    def reopen(self, run: Run, record: RunRecord) -> float:
        return float(kept_data(run).read_text())

    def choose(self, data: float, machine: Machine) -> ChosenConfig:
        training = make_section(TrainingConfig, {"steps": 6, **self.request.section("training")}, "training")
        return ChosenConfig(LineConfig(training=training), "line", [f"slope       {data}"])

    def footprint(self, config: LineConfig, data: float) -> Footprint:
        shape = ModelConfig(num_layers=1, num_heads=1, width=2, context_length=1, vocab_size=2)
        return Footprint({"weight": (1, 1)}, shape)

    def first_model(self, config: LineConfig, data: float, start: Any) -> nn.Linear:
        line = nn.Linear(1, 1, bias=False)
        nn.init.constant_(line.weight, 0.5)
        return line

    def load_model(self, directory: Path, device: torch.device) -> nn.Linear:
        line = nn.Linear(1, 1, bias=False)
        line.load_state_dict(load_file(directory / "line.safetensors"))
        return line

    def make_task(self, config: LineConfig, data: float, model: nn.Linear) -> LineTask:
        return LineTask(config, data, model)

    def describe(self, task: LineTask) -> list[str]:
        return task.record.reasons


@pytest.mark.parametrize("steps", [1, 7, 1034, 2182, 100_000])
def test_a_checkpoint_by_default_is_at_an_evaluation(steps: int) -> None:
    every = intervals(steps)
    assert every["checkpoint_every"] % every["evaluate_every"] == 0


# --- a small training of every task ----------------------------------------------------------------------------------

TEXT = "The cat sat on the mat, and the dog sat on the log.\n" * 12
SHAPE = {"num_layers": 1, "num_heads": 1, "width": 8, "context_length": 16}
STEPS = 6
PACE = {"steps": STEPS, "batch_size": 4, "warmup_steps": 1, "log_every": 1, "evaluate_every": 2, "checkpoint_every": 2}


class SampledText(TextTraining):
    def __init__(self, request: TextRequest):
        super().__init__(request, continue_prompt)


class SampledDomain(DomainTraining, SampledText):
    pass


class Kind:
    """A task: `make(out, **fields)` is a new training, `resume(out, **fields)` one without data or model."""

    def __init__(self, training: Callable[[Any], Training], request: type[TrainingRequest], **fields: Any):
        self.training, self.request, self.fields = training, request, fields
        self.overrides = {"training": PACE, **fields.pop("overrides", {})}

    def make(self, out: Path, **fields: Any) -> Training:
        values: dict[str, Any] = {"out": out, "device": "cpu", "overrides": self.overrides, **self.fields, **fields}
        return self.training(self.request(**values))

    def resume(self, out: Path, **fields: Any) -> Training:
        empty: dict[str, Any] = {"source": list, "names": []} if self.request is TextRequest else {}
        return self.training(self.request(out=out, device="cpu", **empty, **fields))


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def kinds(tmp_path_factory) -> dict[str, Kind]:
    """All tasks with their data; fine-tuning starts from an untrained model."""
    home = tmp_path_factory.mktemp("kinds")
    tokenizer = train_tokenizer("bytes", [TEXT])
    decoder = make_decoder(ModelConfig(**{**SHAPE, "context_length": 64}, vocab_size=tokenizer.vocab_size), seed=1)
    LanguageModel(decoder.eval(), tokenizer, "base").save(home / "base")
    start = load_start(home / "base")
    with (home / "labels.csv").open("w", newline="") as file:
        labels = {"cat": "good", "dog": "bad"}
        texts = [(form.format(animal), label) for animal, label in labels.items() for form in ("the {} sat", "the {}")]
        rows = texts * 6
        csv.writer(file).writerows([("text", "label"), *rows])
    chats = [{"instruction": "the cat ?", "output": "on the mat ."}] * 8
    values = "\n".join(["y", *(f"{math.sin(index) + 2:.3f}" for index in range(60))])
    pairs = [Pair(f"the {a} {b}.", f"le {b} {a}.") for a in "abcd" for b in "wxyz"]
    text = {"source": lambda: [TextDocument("cats.txt", TEXT)], "names": ["cats.txt"]}
    small = {"model": {**SHAPE, "dropout": 0.1}}
    return {
        "text": Kind(
            SampledText,
            TextRequest,
            **text,
            size="toy",
            overrides={**small, "tokenizer": {"kind": "bytes"}},
        ),
        "domain": Kind(SampledDomain, TextRequest, **text, start=start),
        "translation": Kind(
            TranslationTraining,
            PairRequest,
            pairs=PairData(pairs[:-2], pairs[-2:]),
            size="toy",
            overrides={
                "tokenizer": {"kind": "words"},
                "pairs": {"batch_tokens": 64, "longest": 16},
                "model": {"num_layers": 1, "encoder_layers": 1, "num_heads": 1, "width": 8, "context_length": 32},
                "training": {key: value for key, value in PACE.items() if key != "batch_size"},
            },
        ),
        "forecast": Kind(
            ForecastTraining,
            ForecastRequest,
            data=write(home / "y.csv", values),
            size="toy",
            horizon=4,
            overrides=small,
        ),
        "head": Kind(FinetuneTraining, FinetuneRequest, data=home / "labels.csv", start=start),
        "chat": Kind(ChatTraining, ChatRequest, data=[write(home / "c.json", json.dumps(chats))], start=start),
        "line": Kind(LineTraining, LineRequest, file=write(home / "line.txt", "2.5")),
    }


TASKS = ["text", "translation", "forecast", "head", "chat", "line", pytest.param("domain", marks=pytest.mark.long)]


@pytest.fixture(scope="module", params=TASKS)
def kind(request: pytest.FixtureRequest, kinds: dict[str, Kind]) -> Kind:
    return kinds[request.param]


@pytest.fixture(autouse=True)
def _no_picture(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("foretell.session.session.draw_curve", lambda run: None)


@pytest.fixture(scope="module")
def finished(kind: Kind, tmp_path_factory) -> Path:
    """A finished run; tests do not change it."""
    out = tmp_path_factory.mktemp("finished") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("foretell.session.session.draw_curve", lambda run: None)
        run_training(kind.make(out), Reporter())
    return out


def stopped(kind: Kind, out: Path, **fields: Any) -> Path:
    with pytest.raises(KeyboardInterrupt):
        run_training(kind.make(out, **fields), StoppedAt(5))
    return out


def results(run: Path) -> dict[str, Any]:
    """The last checkpoint's tensors, and the metrics that do not depend on the machine."""
    last = max((run / "checkpoints").glob("step-*"))
    tensors = {path.name: path.read_bytes() for path in last.glob("*.safetensors")}
    lines = Run.open(run).metrics.records()
    return {
        "step": last.name,
        **tensors,
        "metrics": [{k: v for k, v in line.items() if k not in MEASURED} for line in lines],
    }


def test_resuming_is_bit_identical_to_never_stopping_and_needs_only_the_run(kind, finished, tmp_path, monkeypatch):
    out = stopped(kind, tmp_path / "run")
    monkeypatch.chdir(tmp_path)
    session = run_training(kind.resume(out), Reporter(), resume=True)
    assert session.progress.step == STEPS
    assert results(out) == results(finished)


class StoppedAtLastStep(Reporter):
    """Sends SIGTERM to this process when the figures of the last step are known."""

    def metrics(self, metrics: dict[str, Any], steps: int) -> None:
        if metrics["step"] == STEPS:
            signal.raise_signal(signal.SIGTERM)


@pytest.mark.parametrize("when", ["in the last step", "after it"])
def test_a_stop_after_the_last_step_names_the_command_that_completes_the_run(when, kinds, tmp_path, monkeypatch):
    kind, out, closed = kinds["forecast"], tmp_path / "run", list[str]()

    def stop(training: ForecastTraining, session: Any) -> None:
        closed.append("")
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(Interrupted, match="--resume auto") as raised:
        patched.setattr(ForecastTraining, "closed", stop)
        run_training(kind.make(out), StoppedAtLastStep() if when == "in the last step" else Reporter())
    assert (raised.value.exit_code, len(closed)) == ((143, 0) if when == "in the last step" else (130, 1))
    session = run_training(kind.resume(out), Reporter(), resume=True)
    assert (session.run.best().directory / "intervals.json").is_file()


def test_a_directory_stays_while_another_process_has_its_lock(tmp_path):
    run = tmp_path / "run"
    with held(run):
        with pytest.raises(OutputError, match="another process is training"), held(run):
            pass
        assert run.is_dir()
    assert not run.exists()


def test_data_that_changed_or_is_gone_is_logged_on_resuming(tmp_path, caplog):
    (tmp_path / "folder").mkdir()
    names = [write(tmp_path / name, "x") for name in ("same.txt", "gone.txt", "edited.txt", "folder/part.txt")]
    names[3] = names[3].parent
    changes = {str(path): last_change(str(path)) for path in names}
    record = RunRecord(config={}, data=[], data_changed=changes, size="toy", device="cpu", dtype="float32")
    log_changed_data(record)
    assert not caplog.messages
    names[1].unlink()
    os.utime(names[2], (1, 1))
    os.utime(names[3] / "part.txt", (1, 1))
    log_changed_data(record)
    assert [line.split()[1:4] for line in caplog.messages] == [
        [str(names[1]), "is", "gone;"],
        [str(names[2]), "has", "changed;"],
        [str(names[3]), "has", "changed;"],
    ]
    assert last_change("standard input") == 0


def test_a_run_records_when_its_data_changed(kinds, tmp_path, caplog):
    out = stopped(kinds["forecast"], tmp_path / "run")
    (name,) = Run.open(out).record().data_changed
    record = Run.open(out).record()
    Run.open(out).replace_record(record.model_copy(update={"data_changed": {name: 1}}))
    run_training(kinds["forecast"].resume(out), Reporter(), resume=True)
    assert any(line.startswith(f"data        {name} has changed") for line in caplog.messages)


def test_a_finished_run_is_reported_as_finished(kind, finished, caplog):
    caplog.set_level(logging.INFO, logger="foretell")
    before = results(finished)
    run_training(kind.resume(finished), Reporter(), resume=True)
    assert any(line.startswith("finished ") and f"all its {STEPS} steps" in line for line in caplog.messages)
    assert results(finished) == before


# --- trainings of a given time ----------------------------------------------------------------------------------------


@pytest.fixture
def timed(kind: Kind, monkeypatch: pytest.MonkeyPatch) -> Kind:
    """Trainings that last half a minute, on a clock that moves on by a second whenever it is read."""
    seconds = itertools.count()

    def budget(*given: Any, **rest: Any) -> TimeBudget:
        return TimeBudget(*given, clock=lambda: next(seconds), **rest)  # on a busy machine too

    monkeypatch.setattr("foretell.session.protocol.TimeBudget", budget)
    monkeypatch.setattr(kind.training, "probe_seconds", 0.01)
    training = {name: value for name, value in PACE.items() if name != "steps"}
    if "batch_size" not in kind.overrides["training"]:
        del training["batch_size"]
    timed = Kind(kind.training, kind.request, **kind.fields, minutes=0.5)
    timed.overrides = {**kind.overrides, "training": {**training, "patience": None}}
    return timed


def test_a_training_of_a_given_time_takes_recorded_steps_again_after_a_kill(timed, tmp_path):
    out = tmp_path / "run"
    session = run_training(timed.make(out), Reporter())
    whole, steps, pace = results(out), session.progress.step, (out / "pace.txt").read_text()
    assert session.progress.share == 1
    assert steps > 6
    assert [line.split()[0] for line in pace.splitlines()] == [str(step) for step in range(steps + 1)]
    assert (session.progress.learning_rate or 1.0) < 0.5 * session.training.learning_rate
    for checkpoint in sorted((out / "checkpoints").glob("step-*"))[-1:]:
        shutil.rmtree(checkpoint)
    with (out / "pace.txt").open("a") as file:
        file.write(f"{steps + 1} 1.")  # a line that was cut
    again = run_training(timed.resume(out), Reporter(), resume=True)
    assert (again.progress.step, results(out)) == (steps, whole)
    assert (out / "pace.txt").read_text() == pace


def test_a_training_of_a_given_time_that_was_stopped_goes_on_to_its_end(timed, tmp_path, caplog):
    caplog.set_level(logging.INFO, logger="foretell")
    out = stopped(timed, tmp_path / "run")
    pace = (out / "pace.txt").read_text()
    session = run_training(timed.resume(out), Reporter(), resume=True)
    assert session.progress.share == 1
    assert (out / "pace.txt").read_text().startswith(pace)
    run_training(timed.resume(out), Reporter(), resume=True)
    assert any(line.startswith("finished ") and "has used its 0.5 minutes" in line for line in caplog.messages)
    with pytest.raises(ConfigError, match="was started with minutes = 0.5, not 3"):
        run_training(timed.resume(out, minutes=3.0), Reporter(), resume=True)


def test_a_lost_record_of_the_time_is_logged(timed, tmp_path, caplog):
    out = stopped(timed, tmp_path / "run")
    (out / "pace.txt").unlink()
    session = run_training(timed.resume(out), Reporter(), resume=True)
    assert session.progress.share == 1
    assert any("pace.txt has no steps from 0 to " in line for line in caplog.messages)


def test_a_damaged_record_of_the_time_is_refused(timed, tmp_path):
    out = stopped(timed, tmp_path / "run")
    (out / "pace.txt").write_text("0 0.0 1.5\n1 7 nan\n")
    with pytest.raises(CheckpointError, match=r"pace.txt is damaged \(step 1: a share of 7"):
        run_training(timed.resume(out), Reporter(), resume=True)


# --- what may change on resume ----------------------------------------------------------------------------------------


def test_settings_that_decide_only_about_memory_may_change(kind, tmp_path, caplog):
    out = stopped(kind, tmp_path / "run")
    settings = {"training": {"gradient_accumulation_steps": 2, "parallel": "fsdp"}}
    session = run_training(kind.resume(out, overrides=settings), Reporter(), resume=True)
    assert (session.training.gradient_accumulation_steps, session.progress.step) == (2, STEPS)
    assert any("gradient_accumulation_steps 2, not 1 as before" in line for line in caplog.messages)
    assert Run.open(out).record().section("training")["parallel"] == "fsdp"


def test_other_settings_may_not_change(kind, finished):
    for overrides, words in (
        ({"training": {"learning_rate": 0.5}}, "training.learning_rate"),
        ({"training": {"seed": 9}}, "training.seed = 1, not 9"),
        ({"training": {"max_iters": STEPS - 1}}, f"training.steps = {STEPS}, not {STEPS - 1}"),
        ({"training": {"steps": STEPS + 1}}, f"is finished after {STEPS} steps, where its schedule ends"),
    ):
        with pytest.raises(ConfigError, match=words):
            run_training(kind.resume(finished, overrides=overrides), Reporter(), resume=True)
    with pytest.raises(ConfigError, match="was started with size = "):
        run_training(kind.resume(finished, size="tiny"), Reporter(), resume=True)


DATA = {"text": "names", "domain": "names", "translation": "paths", "chat": "data", "line": "file"}


def test_other_data_may_not_be_given(kind, kinds, finished, tmp_path):
    name = next(name for name, each in kinds.items() if each is kind)
    field = DATA.get(name, "data")
    other = write(tmp_path / "other.csv", "3")
    value = {"names": ["other.txt"], "paths": [other], "data": [other] if name == "chat" else other, "file": other}[
        field
    ]
    fields = {"source": list} if name in ("text", "domain") else {}
    request = kind.request(out=finished, device="cpu", **fields, **{field: value})
    with pytest.raises(ConfigError, match="was started with data = .*other"):
        run_training(kind.training(request), Reporter(), resume=True)


OPTIONS = {
    "head": [
        ({"epochs": 7.0}, "epochs"),
        ({"overrides": {"head": {"pool": "last"}}}, "head.pool = mean, not last"),
        ({"overrides": {"lora": {"rank": 2}}}, "lora = None"),
        ({"overrides": {"finetuning": {"lm_weight": 0.1}}}, "finetuning.lm_weight = 0.5, not 0.1"),
    ],
    "forecast": [({"horizon": 3}, "horizon = 4, not 3"), ({"season": 9}, "season")],
    "chat": [({"template": "plain"}, "template = chatml, not plain"), ({"overrides": {"lora": {}}}, "lora = None")],
    "translation": [({"separate_vocabularies": True}, "is_shared")],
}


@pytest.mark.parametrize(("name", "fields", "words"), [(name, *row) for name, rows in OPTIONS.items() for row in rows])
def test_options_of_a_task_may_not_change(name, fields, words, kinds, tmp_path_factory, tmp_path):
    out = stopped(kinds[name], tmp_path / "run")
    with pytest.raises(ConfigError, match=words):
        run_training(kinds[name].resume(out, **fields), Reporter(), resume=True)


def test_a_label_column_may_not_change(kinds, tmp_path):
    out = stopped(kinds["head"], tmp_path / "run")
    same = kinds["head"].resume(out, label_column="label")
    assert run_training(same, Reporter(), resume=True).progress.step == STEPS
    with pytest.raises(ConfigError, match="label in the columns = label, not text"):
        run_training(kinds["head"].resume(out, label_column="text"), Reporter(), resume=True)


def test_another_model_may_not_be_given(kinds, finished, kind, tmp_path):
    decoder = make_decoder(ModelConfig(**SHAPE, vocab_size=20), seed=5).eval()
    LanguageModel(decoder, train_tokenizer("words", [TEXT])).save(tmp_path / "other")
    with pytest.raises(ConfigError, match="was started with start_from = "):
        run_training(kind.resume(finished, start=load_start(tmp_path / "other")), Reporter(), resume=True)


def test_a_run_of_another_task_is_not_resumed(kind, kinds, finished):
    for other in kinds.values():
        if other is not kind:
            with pytest.raises(
                ConfigError, match=rf"was not trained by `foretell {other.training.verb}`; .* --resume auto"
            ):
                run_training(other.resume(finished), Reporter(), resume=True)


def test_names_of_nanogpt_are_accepted(kind, tmp_path):
    training = {
        "max_iters": 3,
        "warmup_iters": 1,
        "eval_interval": 3,
        "grad_clip": 0.5,
        "learning_rate": 1e-3,
        "min_lr": 1e-4,
    }
    rows = {key: value for key, value in kind.overrides["training"].items() if key == "batch_size"}
    overrides = {**kind.overrides, "training": {**training, **rows}}
    config = start_session(kind.make(tmp_path / "run", overrides=overrides), Reporter()).training
    assert (config.steps, config.evaluate_every, config.clip_norm) == (3, 3, 0.5)
    assert config.final_learning_rate_share == pytest.approx(0.1)


@pytest.mark.parametrize("minutes", [0, -1, 1e9, math.nan])
def test_minutes_out_of_bounds_have_one_wording(kind, minutes, tmp_path):
    with pytest.raises(ConfigError, match=r"minutes must be a positive number of at most 5,256,000 \(ten years\)"):
        kind.resume(tmp_path / "run", minutes=minutes)


def test_minutes_and_steps_exclude_each_other(kind, tmp_path):
    with pytest.raises(ConfigError, match="minutes and steps both set the length"):
        kind.make(tmp_path / "run", minutes=1.0)


def test_a_run_without_data_is_not_started(kind, tmp_path):
    with pytest.raises(UsageError, match="is not a run that can be resumed"):
        run_training(kind.resume(tmp_path / "run"), Reporter(), resume=True)
    assert not (tmp_path / "run").exists()


Disk = namedtuple("Disk", "total used free")


@pytest.mark.parametrize(
    ("patched", "value", "words"),
    [
        ("foretell.session.protocol.device_memory", 8, "parameters need .* memory is"),
        ("foretell.planning.estimate.state_per_process", 10**12, "parameters need .* memory is"),
        (
            "foretell.planning.estimate.training_memory",
            10**12,
            "rows of .* tokens at once need more than .*raise training.gradient_accumulation_steps",
        ),
        (
            "foretell.session.fit.shutil.disk_usage",
            3,
            "checkpoints need .*, and 3 bytes are free.*lower training.keep_checkpoints",
        ),
    ],
)
def test_what_does_not_fit_is_refused_before_the_first_step(kind, patched, value, words, tmp_path, monkeypatch):
    from foretell.planning.estimate import DeviceMemory, Range

    make = {
        "device_memory": lambda device: DeviceMemory("cpu", value),
        "state_per_process": lambda *_: {"weights": value, "gradients": 0},
        "training_memory": lambda *_: {
            "weights": Range.exact(value),
            **dict.fromkeys(("gradients", "activations"), Range.exact(0)),
        },
        "disk_usage": lambda path: Disk(value, 0, value),
    }
    monkeypatch.setattr(patched, make[patched.rpartition(".")[2]])
    with pytest.raises(ConfigError, match=words):
        run_training(kind.make(tmp_path / "run"), Reporter())
    assert not (tmp_path / "run").exists()


def test_a_run_that_exists_is_not_started_again(kind, finished):
    with pytest.raises(ForetellError, match="exists; resume it with resume=True"):
        run_training(kind.make(finished), Reporter())


def test_a_damaged_copy_of_the_data_is_noticed(kinds, tmp_path):
    for name in ("forecast", "head", "line"):
        out = stopped(kinds[name], tmp_path / name)
        kept = Run.open(out).kept_file("data")
        assert kept is not None
        kept.write_bytes(kept.read_bytes().replace(b"2.", b"3.").replace(b"dog", b"fox"))
        with pytest.raises(CheckpointError, match="was trained with"):
            run_training(kinds[name].resume(out), Reporter(), resume=True)


def without_verb(record):
    return record.model_copy(update={"verb": None})


def with_an_unknown_setting(record):
    record.config["training"]["tempo"] = "allegro"
    return record


@pytest.mark.parametrize(
    ("change", "problem"), [(without_verb, "it has no verb"), (with_an_unknown_setting, "unknown key")]
)
def test_a_run_of_another_version_is_refused_with_advice(kind, change, problem, tmp_path):
    run = Run.open(stopped(kind, tmp_path / "run"))
    run.replace_record(change(run.record()))
    with pytest.raises(CheckpointError, match=rf"was started by another version \({problem}"):
        run_training(kind.resume(run.directory), Reporter(), resume=True)


def test_a_missing_copy_of_the_data_is_named(kinds, tmp_path):
    for name in ("forecast", "head", "line"):
        run = Run.open(stopped(kinds[name], tmp_path / name))
        shutil.rmtree(run.tokens / "data")
        with pytest.raises(CheckpointError, match="is missing; restore it"):
            run_training(kinds[name].resume(run.directory), Reporter(), resume=True)


@pytest.mark.parametrize(("processes", "start"), [(1, "cpu, "), (2, "2 processes (fsdp), each cpu, ")])
def test_the_machine_is_described_with_its_processes(processes, start):
    machine = Machine(torch.device("cpu"), torch.float32, DeviceMemory("cpu", 10**9, processes))
    assert machine.describe("fsdp").startswith(start)
