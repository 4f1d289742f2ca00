"""The lesson on GPT-2: skipped without its weights, checked with them, and shown with the true contexts."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from foretell.config.model import ModelConfig
from foretell.config.section import make_section
from foretell.errors import CheckpointError, UsageError
from foretell.inference.query import next_tokens
from foretell.lessons import gpt2
from foretell.lessons.gpt2 import Gpt2Lesson
from foretell.lessons.registry import EXERCISES
from foretell.model.init import make_decoder
from foretell.saved_model.parts_on_disk import save_model
from foretell.text import load_tokenizer

TOKENIZER = Path("data") / "gpt2_bpe" / "tokenizer.json"
SIZES = {"num_layers": 1, "num_heads": 2, "width": 8, "context_length": 64, "vocab_size": 50257, "init": "torch"}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> str:
    """An untrained model of width 8 with GPT-2's tokenizer."""
    folders = [Path(os.environ["FORETELL_SHARED"])] if "FORETELL_SHARED" in os.environ else []
    folders += [parent / "shared" for parent in Path(__file__).resolve().parents]
    path = next((folder / TOKENIZER for folder in folders if (folder / TOKENIZER).exists()), None)
    if path is None:
        pytest.skip(f"{TOKENIZER} is missing; set FORETELL_SHARED to the folder above it")
    directory = tmp_path_factory.mktemp("tiny")
    save_model(directory, make_decoder(make_section(ModelConfig, SIZES), seed=1), load_tokenizer(path))
    return str(directory)


def test_without_weights_the_predictions_are_skipped_and_the_rest_is_checked(lessons):
    report = lessons["gpt2"].report()
    assert report.status == "skipped"
    assert "--weights" in report.skipped
    assert len(report.checks) == 6 + EXERCISES


def test_without_weights_the_printed_probabilities_are_shown_as_data(lessons):
    text = str(lessons["gpt2"])
    printed = [f"{value:.4f}" for _, figures in gpt2.PREDICTIONS.values() for value in figures.values()]
    assert len(printed) == 10
    assert all(f"  {value}  " in text for value in printed)
    assert "its data and not checked here" in " ".join(text.split())


def test_with_weights_the_printed_probabilities_are_next_to_the_computed_ones(tiny):
    assert "next    P, as printed  computed" in str(Gpt2Lesson(tiny))


def test_other_weights_fail_on_the_predictions_alone(tiny):
    report = Gpt2Lesson(tiny).report()
    assert report.status == "failed"
    assert {check.what.partition(" after")[0] for check in report.failures} == {"most likely", "probabilities"}


def test_weights_with_the_printed_predictions_pass(tiny, monkeypatch):
    lesson = Gpt2Lesson(tiny)
    own = next_tokens(lesson.model, gpt2.SENTENCE, 5, list(gpt2.PREDICTIONS))
    figures = {
        position: (context, {token.text: round(token.probability, 4) for token in prediction.tokens})
        for (position, (context, _)), prediction in zip(gpt2.PREDICTIONS.items(), own, strict=True)
    }
    monkeypatch.setattr(gpt2, "PREDICTIONS", figures)
    assert lesson.report().status == "passed"


def test_a_context_that_is_one_token_short_fails(lessons, altered, failures):
    lesson = lessons["gpt2"]
    short = altered(lesson, same_context=lesson.shorter_context, shorter_context=lesson.same_context)
    assert len(failures(short.checks())) == 2


def test_any_position_is_shown_with_its_context(tiny):
    lesson = Gpt2Lesson(tiny, at=3)
    assert lesson.predictions[-1].context == "The shares of Ion"
    assert "After position 3: The shares of Ion" in str(lesson)


def test_a_missing_position_or_directory_is_refused(tmp_path):
    with pytest.raises(UsageError, match="0 to 119"):
        Gpt2Lesson(at=120)
    with pytest.raises(CheckpointError):
        Gpt2Lesson(str(tmp_path))
