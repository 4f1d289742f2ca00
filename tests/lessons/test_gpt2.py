"""GPT-2's sentence: skipped without its weights, checked with them, and the context that is shown is the real one."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from foretell.config import ModelConfig, make_section
from foretell.errors import CheckpointError, UsageError
from foretell.inference.query import next_tokens
from foretell.language_model import save_model
from foretell.lessons.gpt2 import printed
from foretell.lessons.gpt2.lesson import Gpt2, check_context
from foretell.lessons.report import check_lesson
from foretell.model.init import make_decoder
from foretell.text import load_tokenizer

PLACE = Path("data") / "gpt2_bpe" / "tokenizer.json"
SIZES = {"num_layers": 1, "num_heads": 2, "width": 8, "context_length": 64, "vocab_size": 50257, "init": "torch"}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> str:
    """A model with GPT-2's tokenizer and a width of 8, weights as they were drawn."""
    folders = [Path(os.environ["FORETELL_SHARED"])] if "FORETELL_SHARED" in os.environ else []
    folders += [parent / "shared" for parent in Path(__file__).resolve().parents]
    found = next((folder / PLACE for folder in folders if (folder / PLACE).exists()), None)
    if found is None:
        pytest.skip(f"no {PLACE} here; name the folder above it in FORETELL_SHARED")
    directory = tmp_path_factory.mktemp("tiny")
    save_model(directory, make_decoder(make_section(ModelConfig, SIZES), seed=1), load_tokenizer(found))
    return str(directory)


def test_without_weights_the_probabilities_are_skipped_and_the_rest_is_checked(lessons):
    report = check_lesson("gpt2", lessons["gpt2"])
    assert report.status == "skipped"
    assert "--weights" in report.skipped
    assert len(report.checks) == 6


def test_other_weights_than_gpt2s_fail_on_the_probabilities_alone(tiny):
    report = check_lesson("gpt2", Gpt2(tiny))
    assert report.status == "failed"
    assert {check.what.partition(" after")[0] for check in report.failures} == {"likeliest", "probabilities"}


def test_the_right_weights_pass(tiny, monkeypatch):
    lesson = Gpt2(tiny)
    own = next_tokens(lesson.reading.model, printed.SENTENCE, 5, list(printed.FOLLOWING))
    figures = {
        place: (context, {token.text: round(token.probability, 4) for token in found.tokens})
        for (place, (context, _)), found in zip(printed.FOLLOWING.items(), own, strict=True)
    }
    monkeypatch.setattr(printed, "FOLLOWING", figures)
    assert check_lesson("gpt2", lesson).status == "passed"


def test_a_context_that_is_one_token_short_is_noticed(lessons, failures):
    reading = lessons["gpt2"].reading
    short = replace(reading, apart=reading.apart_short, apart_short=reading.apart)
    assert len(failures(check_context(short))) == 2


def test_any_position_can_be_shown_with_what_it_follows(tiny):
    lesson = Gpt2(tiny, at=3)
    assert lesson.reading.following[-1].context == "The shares of Ion"
    assert "After position 3: The shares of Ion" in str(lesson)


def test_a_position_or_a_directory_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(UsageError, match="0 to 119"):
        Gpt2(at=120)
    with pytest.raises(CheckpointError):
        Gpt2(str(tmp_path))
