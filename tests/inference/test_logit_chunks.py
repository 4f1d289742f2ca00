"""Answers about long texts read the head in chunks of positions, with the same numbers."""

from __future__ import annotations

from dataclasses import is_dataclass

import pytest
import torch
from torch import Tensor

from foretell.evaluation.multiple_choice import ContinuationRow, score_rows
from foretell.inference.query import next_tokens, score
from foretell.insight.explain.explain_address import explain_value
from foretell.insight.explain.walk import walk
from foretell.language_model import LanguageModel
from foretell.model import decoder as decoder_module
from tests.toy import make_toy

TEXT = "a text of forty tokens that is read here"


@pytest.fixture
def model() -> LanguageModel:
    model = make_toy(seed=1, context_length=64)
    model.decoder.double()
    return model


QUESTIONS = {
    "score": lambda model: score(model, TEXT),
    "next": lambda model: next_tokens(model, TEXT, 3, list(range(40))),
    "explain": lambda model: walk(model, TEXT).losses,
    "probability": lambda model: explain_value(model, TEXT, "probabilities[20,5]").recomputed,
    "logit": lambda model: [explain_value(model, TEXT, f"logits[{position},5]").stored for position in (0, 20, -1)],
    "loss": lambda model: explain_value(model, TEXT, "loss[20]").recomputed,
    "choice": lambda model: score_rows(model, [ContinuationRow(list(range(1, 30)), 2)]),
}


@pytest.mark.parametrize("ask", QUESTIONS.values(), ids=QUESTIONS)
def test_chunks_of_positions_give_the_same_numbers(model, ask, monkeypatch) -> None:
    whole = ask(model)
    shapes: list[tuple[int, ...]] = []
    model.decoder.head.register_forward_hook(lambda _, __, output: shapes.append(tuple(output.shape)))
    rows = 7
    limit = rows * model.config.vocab_size
    monkeypatch.setattr(decoder_module, "LOGITS_AT_ONCE", limit)
    chunked = ask(model)
    assert max(shape[-2] if len(shape) > 1 else 1 for shape in shapes) <= rows
    assert numbers(whole)
    assert repr_rounded(chunked) == repr_rounded(whole)


def repr_rounded(answer: object) -> list[str]:
    """The answer's numbers to ten digits, since a product of fewer rows may round differently."""
    return [f"{value:.10g}" for value in numbers(answer)]


def numbers(answer: object) -> list[float]:
    if isinstance(answer, list | tuple):
        return [number for item in answer for number in numbers(item)]
    if isinstance(answer, int | float):
        return [float(answer)]
    if is_dataclass(answer):
        return [number for item in vars(answer).values() for number in numbers(item)]
    return []


def test_the_chunks_are_the_logits(model, monkeypatch) -> None:
    hidden: Tensor = torch.randn(10, model.config.width, dtype=torch.float64)
    with torch.no_grad():
        monkeypatch.setattr(decoder_module, "LOGITS_AT_ONCE", 3 * model.config.vocab_size)
        chunks = list(decoder_module.logit_chunks(model.decoder, hidden))
        torch.testing.assert_close(torch.cat(chunks), model.decoder.head(hidden))
    assert [len(chunk) for chunk in chunks] == [3, 3, 3, 1]
