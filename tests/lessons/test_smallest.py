"""The lesson on the smallest decoder: a wrong weight, mask or scale fails its checks."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch
from rich.cells import cell_len

from foretell.errors import UsageError
from foretell.lessons.smallest import BLOCK, LAYER, MASK_NUMBER, SmallestLesson, draw_weights
from foretell.model.attention import CORE, SDPAttention, attention_scores
from foretell.model.cache import FreshKVView
from foretell.model.mask import Mask


@pytest.mark.parametrize(
    ("path", "what"),
    [
        ("embed.token.weight", "x = word + position"),
        (f"{LAYER}.query.weight", "query weight"),
        (f"{LAYER}.value.weight", "attention output"),
        ("head.bias", "next-token probabilities"),
    ],
)
def test_a_changed_weight_fails(path, what, failures):
    weights = draw_weights()
    weights[path] = weights[path].clone()
    weights[path].view(-1)[0] += 0.01
    assert what in failures(SmallestLesson(weights).checks())


def test_a_changed_weight_of_the_completed_layer_fails(lessons, altered, failures):
    lesson = lessons["smallest"]
    path = f"{BLOCK}.feedforward.down.weight"
    weights = lesson.completed_weights | {path: lesson.completed_weights[path] * 1.01}
    assert failures(altered(lesson, completed_weights=weights).checks()) == [
        "the completed layer: the textbook's and the model's logits"
    ]


def test_unscaled_scores_fail(monkeypatch, failures):
    unscaled = dataclasses.replace(CORE.derived["scaled"], compute=attention_scores)
    monkeypatch.setitem(CORE.derived, "scaled", unscaled)
    assert "scaled scores" in failures(SmallestLesson().checks())


def test_a_mask_that_shows_the_next_token_fails(monkeypatch, failures):
    def next_token_visible(core, query, key, value, mask):
        T = query.shape[-2]
        allowed = torch.ones(T, T, dtype=torch.bool).tril(1)
        return torch.nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=allowed)

    monkeypatch.setattr(SDPAttention, "forward", next_token_visible)
    failed = failures(SmallestLesson().checks())
    assert {"attention output", "next-token probabilities"} <= set(failed)


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"masked_by_number": np.full((5, 5), 0.2)}, "masked with -1e9 and with -∞: weights"),
        ({"fully_masked": {MASK_NUMBER: [0.2] * 5, -np.inf: [0.2] * 5}}, "a row masked completely, with -∞"),
        ({"other_positions": np.zeros((3, 3))}, "positions of 'awesome data!' are 0, 1, 2"),
    ],
)
def test_a_wrong_figure_next_to_a_slip_fails(lessons, altered, failures, changes, what):
    assert what in failures(altered(lessons["smallest"], **changes).checks())


def test_packed_texts_without_a_document_mask_fail(monkeypatch, failures):
    monkeypatch.setattr(FreshKVView, "mask", lambda kv, window: Mask(*kv.positions.shape[-1:] * 2))
    assert failures(SmallestLesson().checks()) == ["losses packed and alone"]


def test_the_first_word_has_no_probability_without_a_start_token(lessons):
    score = lessons["smallest"].score
    assert score.tokens[0].logprob is None
    assert math.exp(score.logprob) == pytest.approx(0.226309 * 0.129261 * 0.229152 * 0.094568 * 0.277526, rel=1e-4)
    assert "start token" in str(lessons["smallest"])


OWN = ["my five words here now", "hi there!", "the cat and the dog and the bird", "is is is"]
OWN += ["completely different sentences understand everything regardless themselves certainly"]


@pytest.mark.parametrize("seed", [3, 42])
@pytest.mark.parametrize("text", OWN)
def test_every_check_of_a_readers_sentence_passes_but_those_of_printed_figures(text, seed, failures):
    report = SmallestLesson(text=text, seed=seed).report()
    assert [check.difference() for check in report.failures] == []
    assert "another sentence" in report.skipped
    names = {check.what for check in report.checks}
    assert "losses packed and alone" in names
    assert "probabilities: the textbook's and the model's" in names
    assert "masked with -1e9 and with -∞: weights of 0" in names
    assert "scaled scores" not in names


@pytest.mark.parametrize("text", OWN)
def test_a_readers_sentence_fits_a_terminal_and_leaves_the_sources_figures_out(text):
    document = str(SmallestLesson(text=text, seed=3))
    assert max(map(cell_len, document.splitlines())) <= 80
    assert "They are left out" in " ".join(document.split())
    assert all(word in document for word in text.rstrip("!").split())
    assert "analytics" not in document
    assert "P(x₂ … x_T | x₁)" in document


def test_exercises_of_a_readers_sentence_have_its_numbers(lessons):
    own = SmallestLesson(text="my five words here now", seed=3).exercises()
    assert "To which word does 'now' give" in own[0].question
    assert own[0].answer in ("my", "five", "words", "here", "now")
    assert own[1].answer != lessons["smallest"].exercises()[1].answer
    assert own[2].answer == pytest.approx(5 * math.log(6))


def test_the_sources_own_sentence_and_seed_are_the_lesson(lessons):
    given = SmallestLesson(text="financial data analytics is awesome!", seed=42)
    assert str(given) == str(lessons["smallest"])
    assert given.report().status == "passed"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "has 0 words; give 2 to 8"),
        ("hi", "has 1 word; give 2 to 8"),
        ("a b c d e f g h i", "has 9 words"),
        ("an extraordinary word", "'extraordinary' has 13 letters"),
    ],
)
def test_a_sentence_that_is_too_short_or_too_long_is_one_line(text, words):
    with pytest.raises(UsageError, match=words):
        SmallestLesson(text=text)
