"""A fine-tuning from a file to a tuned model: what it learns, what it keeps, and that resuming is exact."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from foretell.config.training import TrainingConfig
from foretell.convert.peft import export_peft
from foretell.errors import ConfigError, Interrupted
from foretell.finetuning.finetune import FinetuneTraining
from foretell.finetuning.head import TASK_HEAD, head_of
from foretell.finetuning.predict import predict
from foretell.finetuning.report import REPORT, FinetuneReport, longer_advice
from foretell.finetuning.request import RANDOM_WEIGHTS, FinetuneRequest
from foretell.inference.completion import generate
from foretell.loading import load
from foretell.planning.estimate import DeviceMemory, activations_per_token, total, training_memory
from foretell.runs.run import Run
from foretell.runs.summary import summarize
from foretell.saved_model.layer_parts import LORA
from foretell.session.fit import Footprint
from foretell.session.protocol import start_session
from foretell.session.reporter import Reporter
from foretell.session.session import Session
from foretell.session.start import Start
from foretell.storage.files import read_json
from tests.toy import StoppedAt


def test_the_tuned_model_knows_the_labels(tuned: Path, reviews) -> None:
    texts, labels = zip(*reviews, strict=True)
    predictions = predict(load(tuned), [(text,) for text in texts])
    assert [prediction.label for prediction in predictions] == list(labels)
    assert all(sum((prediction.probabilities or {}).values()) == pytest.approx(1) for prediction in predictions)


def test_the_report_has_figures_next_to_the_baseline(tuned: Path) -> None:
    report = read_json(tuned / REPORT)
    assert report["dev"]["accuracy"] == report["baseline"]["accuracy"] == 1.0
    assert report["baseline"]["rule"].startswith("TF-IDF of words and bigrams with logistic regression, C 1")
    assert report["dev"]["labels"] == ["bad", "good"]
    assert sum(map(sum, report["dev"]["confusion"])) == report["examples"]["dev"] == 8  # the texts are there twice
    assert {"macro_f1", "calibration", "by_label"} <= report["dev"].keys()


def test_long_texts_lose_their_ends_and_the_report_counts_them(
    start: Start, tmp_path: Path, tiny_request, finetune
) -> None:
    data = tmp_path / "texts.csv"
    words = zip(("film", "book", "meal", "play"), "aabb", strict=True)
    data.write_text("text,label\n" + "".join(f"{word},{label}\n{f'{word} ' * 40},{label}\n" for word, label in words))
    finetune(tiny_request(data, tmp_path / "run", start=start))
    assert "4 of 8 examples were cut to the context of 16 tokens" in read_json(tmp_path / "run" / REPORT)["advice"]
    assert head_of(load(tmp_path / "run")).settings.truncate == "tail"


def test_the_metrics_count_the_tokens_that_the_model_reads(
    start: Start, review_file, tmp_path, tiny_request, finetune
) -> None:
    session = finetune(tiny_request(review_file, tmp_path / "run", start=start))
    batches = [session.task.batch(step) for step in range(12)]
    lines = (tmp_path / "run" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    read = sum(int(batch.lengths.sum()) for batch in batches)
    assert json.loads(lines[-1])["tokens"] == read == summarize(Run.open(tmp_path / "run")).tokens
    assert sum(map(len, batches)) < read


def test_a_checkpoint_that_is_better_than_the_last_evaluation_is_not_improving(
    start: Start, review_file: Path, tmp_path: Path, tiny_request, finetune
) -> None:
    request = tiny_request(review_file, tmp_path / "run", overrides={"training": {"learning_rate": 0.005}}, start=start)
    session = finetune(request)
    (tmp_path / "run" / "metrics.jsonl").write_text('{"step": 13, "validation_loss": 0.1}\n')
    assert longer_advice(session, {"accuracy": 0.9}) == []
    (tmp_path / "run" / "metrics.jsonl").write_text('{"step": 1, "validation_loss": 0.1}\n')
    assert "--steps 24" in longer_advice(session, {"accuracy": 0.9})[0]


def test_the_commands_of_a_run_read_the_data_as_it_did(start: Start, tmp_path: Path, reviews, finetune) -> None:
    """Named columns, a column of groups, names instead of a header, and the encoding are part of reading."""
    path = tmp_path / "reviews.csv"
    path.write_text("\n".join(f"{label},{text},{index}" for index, (text, label) in enumerate(reviews)) + "\n")
    columns = {"text_column": "body", "label_column": "opinion", "columns": ("opinion", "body", "author")}
    options: dict[str, Any] = {**columns, "encoding": "latin-1", "group_column": "author", "steps": 2}
    session = finetune(FinetuneRequest(data=path, out=tmp_path / "run", start=start, **options))
    given = (
        f"{path} --task classify --text-column body --label-column opinion --group-column author "
        "--columns opinion,body,author --encoding latin-1"
    )
    [advice] = [line for line in read_json(tmp_path / "run" / REPORT)["advice"] if "longer" in line]
    assert f"finetune {start.argument} {given} --steps 4" in advice
    assert (
        f"finetune {tmp_path / 'run'} {given}"
        in FinetuneTraining(FinetuneRequest(out=session.run.directory)).how_to_extend()
    )


@pytest.mark.parametrize(("rate", "is_improving"), [(0.005, True), (1e-30, False)])
def test_a_run_that_was_still_improving_names_the_command_that_trains_longer(
    rate: float, is_improving: bool, start: Start, review_file: Path, tmp_path: Path, tiny_request, finetune
) -> None:
    request = tiny_request(review_file, tmp_path / "run", overrides={"training": {"learning_rate": rate}}, start=start)
    finetune(request)
    report = read_json(tmp_path / "run" / REPORT)
    command = f"finetune {start.argument} {review_file} --task classify --steps 24"
    assert (command in " ".join(report.get("advice", ()))) == is_improving
    assert ("longer training may help" in " ".join(str(FinetuneReport(report)).split())) == is_improving


def test_a_given_time_trains_for_the_epochs_of_the_recipe_at_most(
    review_file: Path, tmp_path: Path, finetune, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("foretell.finetuning.request.FEWEST_STEPS", 4)
    recipe = replace(RANDOM_WEIGHTS, epochs=0.1)
    monkeypatch.setattr("foretell.finetuning.request.RANDOM_WEIGHTS", recipe)
    caplog.set_level(logging.INFO, logger="foretell")
    session = finetune(FinetuneRequest(data=review_file, out=tmp_path / "run", is_from_scratch=True, minutes=2.0))
    assert session.progress.step == session.training.steps == 4
    assert (session.progress.learning_rate or 1.0) < 0.4 * session.training.learning_rate
    assert "but more would mostly memorise the data" in caplog.text
    assert "ended       after 4 steps, the most for this data" in caplog.text
    [advice] = [line for line in read_json(tmp_path / "run" / REPORT)["advice"] if "longer" in line]
    assert "--steps 8" in advice


def test_a_stop_while_the_baseline_is_fitted_tells_how_to_go_on(
    start: Start, review_file: Path, tmp_path: Path, tiny_request, finetune, monkeypatch
) -> None:
    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    out = tmp_path / "run"
    advice = f"resume with: .* finetune --out {out} --resume auto"
    with monkeypatch.context() as patch, pytest.raises(Interrupted, match=advice) as raised:
        patch.setattr("foretell.finetuning.tfidf.fit_tfidf", stop)
        finetune(tiny_request(review_file, out, start=start))
    assert raised.value.exit_code == 130
    finetune(tiny_request(review_file, out, start=start), resume=True)
    assert read_json(out / REPORT)["baseline"]["rule"].startswith("TF-IDF")


def test_a_tuned_model_keeps_its_head_and_goes_on_writing(tuned: Path, tmp_path: Path) -> None:
    model = load(tuned)
    model.save(tmp_path / "copy")
    copy = load(tmp_path / "copy")
    assert head_of(copy).settings == head_of(model).settings
    assert torch.equal(head_of(copy).linear.weight, head_of(model).linear.weight)
    assert generate(copy, "the film", max_tokens=3).token_ids


def gradients(session: Session, step: int = 0) -> dict[str, torch.Tensor | None]:
    loss = session.task.objective(session.task.batch(step))
    loss.sum.backward()
    return {path: weight.grad for path, weight in session.task.model.named_parameters()}


def test_gradients_reach_only_what_should_train(start: Start, review_file: Path, tmp_path: Path, tiny_request) -> None:
    request = tiny_request(
        review_file,
        tmp_path / "run",
        overrides={"training": {"frozen": ["embed.**", "trunk.blocks.0.attention.**"]}},
        start=start,
    )
    session = start_session(FinetuneTraining(request), Reporter())
    for path, gradient in gradients(session).items():
        is_frozen = path.startswith(("embed.", "trunk.blocks.0.attention."))
        assert (gradient is None) == is_frozen, path
    assert json.loads((tmp_path / "run" / "run.json").read_text())["verb"] == "finetune"


def test_lora_trains_its_updates_and_the_head_alone(
    start: Start, review_file: Path, tmp_path: Path, tiny_request, finetune
) -> None:
    tuning = {"lora": {"rank": 2, "targets": ["**.attention.*"]}}
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    session = finetune(tiny_request(review_file, whole, overrides=tuning, start=start))
    trained = {path for path, weight in session.task.model.named_parameters() if weight.requires_grad}
    assert all(path.startswith(TASK_HEAD) or path.endswith(("lora_a", "lora_b")) for path in trained)
    weights = load_file(whole / "checkpoints" / "step-000012" / "model.safetensors")
    before, frozen = start.model.decoder.state_dict(), "trunk.blocks.0.attention.query.weight"
    assert session.task.tuned.decoder.get_parameter(frozen).data_ptr() == before[frozen].data_ptr(), "in memory once"
    assert all(torch.equal(weights[path], before[path]) for path in before if not path.startswith("embed.token"))
    assert float(weights["trunk.blocks.0.attention.query.lora_b"].abs().max()) > 0
    with pytest.raises(KeyboardInterrupt):
        finetune(tiny_request(review_file, cut, overrides=tuning, start=start), StoppedAt(9))
    finetune(FinetuneRequest(out=cut), resume=True)
    resumed = load_file(cut / "checkpoints" / "step-000012" / "model.safetensors")
    assert all(torch.equal(weights[path], resumed[path]) for path in weights | resumed)
    assert LORA not in load(whole).parts  # merged for inference


def test_the_updates_of_a_tuned_model_leave_for_peft(
    start: Start, review_file: Path, tmp_path: Path, tiny_request, finetune
) -> None:
    finetune(tiny_request(review_file, tmp_path / "run", overrides={"lora": {}}, start=start))
    report = export_peft(load(tmp_path / "run", keep_adapters=True), tmp_path / "adapter", family_name="gpt2")
    names = ("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj")
    assert sorted(report["layers"]) == [f"transformer.h.0.{name}" for name in names]


# --- memory ----------------------------------------------------------------------------------------------------------


def footprint(request: FinetuneRequest, run: Path) -> tuple[Footprint, TrainingConfig]:
    """The sizes that are checked before a training with a head."""
    training = FinetuneTraining(request)
    data = training.read(Run.create(run, request.described), Reporter())
    config = training.configure(data)
    return training.footprint(config, data), config.training


@pytest.mark.parametrize(("words", "length"), [(4, 6), (12, 14), (50, 16)])
def test_memory_is_counted_for_the_longest_text_within_the_context(
    words: int, length: int, start: Start, tmp_path: Path, tiny_request
) -> None:
    data = tmp_path / "texts.csv"
    rows = zip(("film", "book", "meal", "play"), "aabb", strict=True)
    texts = [(" ".join([word] * count), label) for word, label in rows for count in (2, words)]
    data.write_text("text,label\n" + "".join(f"{text},{label}\n" for text, label in texts))
    sizes, training = footprint(tiny_request(data, tmp_path / "run", start=start), tmp_path / "run")
    assert (sizes.row.context_length, sizes.rows) == (length, training.batch_size)


def test_both_orders_of_a_pair_are_rows(start: Start, tmp_path: Path, tiny_request) -> None:
    data = tmp_path / "pairs.csv"
    things = zip(("film", "meal", "play", "song"), "aabb", strict=True)
    rows = "".join(f"the {thing},the book,{label}\n" for thing, label in things)
    data.write_text("text1,text2,label\n" + rows)
    request = tiny_request(data, tmp_path / "run", task="similarity", start=start)
    sizes, training = footprint(request, tmp_path / "run")
    assert sizes.rows == 2 * training.batch_size


def test_a_batch_that_does_not_fit_is_refused_before_the_first_step(
    start: Start, review_file: Path, tmp_path: Path, finetune, tiny_request, monkeypatch
) -> None:
    sizes, training = footprint(tiny_request(review_file, tmp_path / "read", start=start), tmp_path / "read")
    assert sizes.rows == training.batch_size
    needed, short = (
        int(total(training_memory(row, sizes.shapes, training, DeviceMemory("cpu", 1, 1, torch.float32))).low)
        for row in (sizes.row, sizes.row.replaced(context_length=sizes.row.context_length - 1))
    )
    assert short < needed - 1
    monkeypatch.setattr(
        "foretell.session.protocol.device_memory", lambda _: DeviceMemory("cpu", needed - 1, 1, torch.float32)
    )
    with pytest.raises(ConfigError, match=r"3 rows of 8 tokens at once need more than .*lower training.batch_size"):
        finetune(tiny_request(review_file, tmp_path / "run", start=start))
    assert not (tmp_path / "run").exists()


def test_micro_batches_by_memory_are_announced(
    start: Start, review_file: Path, tmp_path: Path, finetune, monkeypatch, caplog: pytest.LogCaptureFixture
) -> None:
    def micro_batches(name: str, size: float, **fields: Any) -> int:
        memory = DeviceMemory("cpu", int(size), 1, torch.float32)
        monkeypatch.setattr("foretell.session.protocol.device_memory", lambda _: memory)
        request = FinetuneRequest(data=review_file, out=tmp_path / name, start=start, steps=1, **fields)
        return finetune(request).task.config.training.gradient_accumulation_steps

    row = start.config.replaced(context_length=6, dropout=0.1)
    whole = 32 * 6 * activations_per_token(row, TrainingConfig(steps=1), 4).high
    with caplog.at_level(logging.INFO):
        assert micro_batches("large", 17 * whole) == 1
        assert micro_batches("small", 4.5 * whole) == 4
    assert "; micro-batches of 8 rows of at most 6 tokens" in caplog.text
    assert micro_batches("asked", 4.5 * whole, overrides={"training": {"gradient_accumulation_steps": 2}}) == 2


@pytest.mark.parametrize("also_trained", [(), ("embed.**",)])
def test_frozen_weights_need_no_gradients_and_moments(
    also_trained: tuple[str, ...], start: Start, review_file: Path, tmp_path: Path, tiny_request
) -> None:
    lora = {"lora": {"rank": 2, "also_trained": also_trained}}
    request = tiny_request(review_file, tmp_path / "run", overrides=lora, start=start)
    sizes, _ = footprint(request, tmp_path / "run")
    trained = set(sizes.shapes) - set(sizes.frozen)
    assert trained == {path for path in sizes.shapes if also_trained and path.startswith("embed.")}
