"""What moved the prediction of a tuned model: words, special tokens and parts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from foretell.errors import DataError, UsageError
from foretell.finetuning.label_attribution import LabelAttribution, attribute_label
from foretell.language_model import LanguageModel
from foretell.loading import load

MakeHeaded = Callable[..., LanguageModel]
KINDS = [
    ("classify", ("a", "b", "c"), "extract", ["the film was great"]),
    ("classify", ("a", "b"), "mean", ["the film was great"]),
    ("regress", (), "last", ["the film was great"]),
    ("entailment", ("a", "b"), "mean", ["the film", "the play was"]),
    ("similarity", ("a", "b"), "extract", ["the film", "the play was"]),
    ("choice", (), "extract", ["the film", "was great", "was dull and long"]),
]


@pytest.fixture(scope="module")
def model(tuned: Path) -> LanguageModel:
    return load(tuned)


@pytest.mark.parametrize(("task", "labels", "pool", "texts"), KINDS)
def test_contributions_add_up_to_the_logit(
    make_headed: MakeHeaded, task: str, labels: tuple[str, ...], pool: str, texts: list[str]
) -> None:
    attribution = attribute_label(make_headed(task, labels, pool), texts)
    assert attribution.total == pytest.approx(attribution.logit, abs=1e-5)
    words = sum(word.value for word in attribution.words) + attribution.special_tokens.value
    assert words + attribution.constant == pytest.approx(attribution.total)
    assert sum(part.value for part in attribution.parts) + attribution.constant == pytest.approx(attribution.total)
    assert max(map(len, str(attribution).splitlines())) <= 80


def test_the_words_of_each_text_join_to_it_and_other_answers_are_left_out(make_headed: MakeHeaded) -> None:
    texts = ["the film", "was great", "was dull and long"]
    attribution = attribute_label(make_headed("choice", pool="extract"), texts, texts[2])
    assert joined(attribution, 0) == texts[0]
    assert joined(attribution, 2) == texts[2]
    assert {word.source for word in attribution.words} == {0, 2}
    assert "by word, text 3" in str(attribution)


def joined(attribution: LabelAttribution, source: int) -> str:
    """The words of a text, joined."""
    return "".join(word.text for word in attribution.words if word.source == source)


def test_the_word_that_decides_has_the_largest_effect(model: LanguageModel) -> None:
    text = "the film was awful and long"
    attribution = attribute_label(model, [text])
    assert attribution.prediction.label == "bad"
    assert max(attribution.words, key=lambda word: word.effect).text == " awful"
    assert joined(attribution, 0) == text
    against = attribute_label(model, [text], "bad", against="good")
    assert against.logit == pytest.approx(2 * attribution.logit)  # two labels: the mean is half way
    with pytest.raises(UsageError, match="against is the label itself, 'bad'"):
        attribute_label(model, [text], "bad", against="bad")
    with pytest.raises(UsageError, match="unknown label 'bat', did you mean 'bad'"):
        attribute_label(model, ["the film"], "bat")
    with pytest.raises(UsageError, match="the text is empty"):
        attribute_label(model, [""])


def test_leaving_out_a_word_is_the_prediction_for_the_text_without_it(model: LanguageModel) -> None:
    attribution = attribute_label(model, ["the film was awful"], "bad")
    without = attribute_label(model, ["the film was"], "bad")
    assert attribution.words[-1].effect == pytest.approx(attribution.logit - without.logit, abs=1e-6)


def test_special_tokens_have_a_line_and_a_share(model: LanguageModel) -> None:
    special = attribute_label(model, ["the film was awful"]).special_tokens
    assert special.names == ("<|start|>", "<|extract|>")
    assert 0 < special.share < 1
    shown = str(attribute_label(model, ["the film was awful"]))
    assert f"special tokens <|start|> <|extract|>: direct {special.value:+.4f}, {special.share:.1%} of" in shown


@pytest.mark.parametrize("pool", ["mean", "last"])
def test_a_text_without_any_word_is_a_vector_of_zeros(make_headed: MakeHeaded, pool: str) -> None:
    number = make_headed("regress", pool=pool, mean=2.5, deviation=0.5)
    attribution = attribute_label(number, ["film"])
    assert [word.effect for word in attribution.words] == pytest.approx([attribution.logit - 2.5])


def test_pieces_are_tokens(start, make_headed: MakeHeaded) -> None:
    attribution = attribute_label(make_headed("classify", ("a", "b")), ["the film was"], pieces=True)
    assert [word.text for word in attribution.words] == ["the", "film", "was"]
    assert attribution.unit == "token"


def test_a_text_that_does_not_fit_is_refused_or_cut(make_headed: MakeHeaded, caplog) -> None:
    text = "the film was great and long " * 3
    with pytest.raises(DataError, match="do not fit"):
        attribute_label(make_headed("classify", ("a", "b")), [text])
    attribution = attribute_label(make_headed("classify", ("a", "b"), truncate="tail"), [text])
    assert len(attribution.words) == 16 and "lose their tail" in caplog.text
