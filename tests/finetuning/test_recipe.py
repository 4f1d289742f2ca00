"""A model with random weights, whose vocabulary comes from the training texts alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import foretell
from foretell.errors import ConfigError, UsageError
from foretell.finetuning.chat_tuning import LOW_RANK
from foretell.finetuning.examples import Example
from foretell.finetuning.finetune import FinetuneTraining
from foretell.finetuning.label_kind import ClassifyKind
from foretell.finetuning.predict import predict
from foretell.finetuning.report import baseline_advice, longer_advice
from foretell.finetuning.request import GPT1, FinetuneRequest, untrained
from foretell.finetuning.tag_kind import TagKind
from foretell.loading import load
from foretell.session.protocol import start_session
from foretell.session.reporter import Reporter
from foretell.session.start import Start
from foretell.storage.files import read_json
from tests.toy import StoppedAt


def test_one_command_makes_a_model_that_predicts(review_file: Path, tmp_path: Path) -> None:
    model = foretell.finetune(
        None, review_file, tmp_path / "run", is_from_scratch=True, progress=False, training={"steps": 30}
    )
    assert predict(model, "the film was good")[0].label in ("good", "bad")
    assert predict(load(tmp_path / "run"), "the film was good")[0].label in ("good", "bad")
    record = read_json(tmp_path / "run" / "run.json")
    assert record["size"] == "toy" and record["from_scratch"] and "from" not in record
    assert record["config"]["finetuning"]["lm_weight"] == 0


def test_held_out_words_are_not_in_the_vocabulary(review_file: Path, tmp_path: Path, tiny_request) -> None:
    text = review_file.read_text(encoding="utf-8")
    lines = [
        f"{line.partition(',')[0]} number{index},{line.partition(',')[2]}"
        for index, line in enumerate(text.split("\n")[1:-1])
    ]
    data = tmp_path / "numbered.csv"
    data.write_text("text,label\n" + "\n".join(lines) + "\n", encoding="utf-8")
    session = start_session(
        FinetuneTraining(
            tiny_request(data, tmp_path / "run", is_from_scratch=True, overrides={"head": {"pool": "mean"}})
        ),
        Reporter(),
    )
    words, files = session.task.tuned.tokenizer, session.task.data.files
    known = {
        part: [words.encode(each.texts[0].split()[-1]) for each in examples]
        for part, examples in (("train", files.train), ("dev", files.dev))
    }
    unknown = words.encode("neverseen")
    assert all(ids == unknown for ids in known["dev"]) and unknown not in known["train"]


@pytest.mark.parametrize(("steps", "per_epoch"), [(120, 20), (96, 17), (3, 1), (1000, 333)])
def test_checkpoints_are_of_scheduled_evaluations(steps: int, per_epoch: int) -> None:
    """Other evaluations do not count for patience, so a best checkpoint at one of them would be overlooked."""
    chosen = GPT1.training_defaults(ClassifyKind, 64, steps, per_epoch)
    assert chosen["checkpoint_every"] % chosen["evaluate_every"] == 0


def test_only_tags_are_read_in_upper_and_lower_case() -> None:
    example = Example(("Rain in Lima",), ("a",), "row 1")
    assert untrained(ClassifyKind, [example], 1).tokenizer.decode([0, 1, 2]) == "in lima rain"
    assert untrained(TagKind, [example], 1).tokenizer.decode([0, 1, 2]) == "Lima Rain in"


def test_a_run_that_stopped_before_its_first_checkpoint_starts_with_the_same_weights(
    review_file: Path, tmp_path: Path, tiny_request, finetune
) -> None:
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    session = finetune(tiny_request(review_file, whole, is_from_scratch=True))
    with pytest.raises(KeyboardInterrupt):
        finetune(tiny_request(review_file, cut, is_from_scratch=True), StoppedAt(0))
    finetune(FinetuneRequest(out=cut), resume=True)
    first, second = (load_file(path / "checkpoints" / "step-000012" / "model.safetensors") for path in (whole, cut))
    assert all(torch.equal(first[key], second[key]) for key in first | second)
    session.progress.evaluations_since_best = 0
    (whole / "metrics.jsonl").write_text('{"step": 1, "validation_loss": 0.1}\n')
    assert f"finetune {review_file} --task classify" in longer_advice(session, {"accuracy": 0.9})[0]
    assert longer_advice(session, {"accuracy": 1.0}) == []


@pytest.mark.parametrize(("figure", "worse", "better"), [("accuracy", 0.8, 0.9), ("rmse", 1.2, 0.2)])
def test_a_baseline_that_is_better_is_named(figure: str, worse: float, better: float) -> None:
    line = "the baseline is better than this model"
    assert baseline_advice({figure: worse}, {"rule": "", figure: better}) == [line]
    assert baseline_advice({figure: better}, {"rule": "", figure: better}) == []
    assert baseline_advice({"f1": 0.5}, {"rule": "", "f1": 0.6}) == []


def test_words_of_tags_are_not_left_out(tmp_path: Path) -> None:
    request = FinetuneRequest(out=tmp_path, is_from_scratch=True, overrides={"finetuning": {"task": "tag"}})
    assert request.tuning().word_dropout == 0
    assert FinetuneRequest(out=tmp_path, is_from_scratch=True).tuning().word_dropout > 0


@pytest.mark.parametrize(("examples", "steps"), [(90, 120), (32 * 40, 120), (32 * 50, 150)])
def test_few_examples_have_more_epochs(examples: int, steps: int, tmp_path: Path) -> None:
    request = FinetuneRequest(out=tmp_path)
    training = request.training_config(examples, 64, None, has_dev=True)
    assert training.steps == steps
    assert steps // training.evaluate_every <= 12
    assert FinetuneRequest(out=tmp_path, epochs=2).training_config(90, 64, None, has_dev=True).steps == 4


def test_lora_has_its_own_learning_rate(tmp_path: Path) -> None:
    def rate(width: int, **sections: dict[str, Any]) -> float:
        request = FinetuneRequest(out=tmp_path, overrides=sections)
        return request.training_config(900, width, None, has_dev=True).learning_rate

    assert rate(64, lora={}) == 5 * rate(64) == 5e-3
    assert rate(768, lora={}) > rate(768)
    assert rate(64, lora={}, training={"learning_rate": 0.25}) == 0.25
    assert rate(576, lora={}) == pytest.approx(5.77e-4, rel=0.01) and rate(768) == 6.25e-5
    assert rate(12288, lora={}) == pytest.approx(1.25e-4, rel=0.01)
    assert LOW_RANK.rate(576) == pytest.approx(1e-3, rel=0.01)  # of chats
    assert LOW_RANK.rate(12288) == pytest.approx(2e-4, rel=0.1)


def test_a_large_model_keeps_its_dropout_and_learns_the_task_alone(
    start: Start, review_file: Path, tmp_path: Path, finetune, monkeypatch: pytest.MonkeyPatch
) -> None:
    def config(name: str, **fields: Any) -> Any:
        return finetune(
            FinetuneRequest(data=review_file, out=tmp_path / name, start=start, steps=1, **fields)
        ).task.config

    small = config("small")
    monkeypatch.setattr("foretell.finetuning.request.SMALL_WIDTH", 16)
    large, asked = config("large"), config("asked", dropout=0.2, lm_weight=0.25)
    assert small.model.dropout.residual == 0.1 and small.finetuning.lm_weight == 0.5
    assert large.model.dropout == start.config.dropout and large.finetuning.lm_weight == 0
    assert asked.model.dropout.residual == 0.2 and asked.finetuning.lm_weight == 0.25


def test_options_that_contradict_are_refused(start: Start, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="leave MODEL out"):
        FinetuneRequest(out=tmp_path, start=start, is_from_scratch=True)
    with pytest.raises(UsageError, match="give it with is_from_scratch=True"):
        FinetuneRequest(out=tmp_path, start=start, size="tiny")
    with pytest.raises(UsageError, match="lora keeps the weights"):
        FinetuneRequest(out=tmp_path, is_from_scratch=True, overrides={"lora": {}})
    with pytest.raises(ConfigError, match="unknown size"):
        FinetuneRequest(out=tmp_path, size="tinny", is_from_scratch=True)
