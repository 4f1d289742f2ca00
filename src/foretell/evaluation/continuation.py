"""How likely a model finds continuations of given beginnings: what multiple choice and last-word prediction ask."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from foretell.data.batch import pad
from foretell.data.questions import Ending
from foretell.errors import DataError
from foretell.evaluation.text import Progress, silent
from foretell.evaluation.windows import TOKENS_AT_ONCE
from foretell.language_model import LanguageModel
from foretell.text import Tokenizer

ROWS_AT_ONCE = 64


@dataclass(frozen=True)
class Row:
    """Tokens to read; those from `first` on are the continuation. `cut`: tokens left out at the beginning."""

    ids: list[int]
    first: int
    cut: int = 0


@dataclass(frozen=True)
class Likelihood:
    """The log-probability of a continuation in nats, and whether each of its tokens is the likeliest there."""

    logprob: float
    tokens: int
    is_likeliest: bool


@dataclass(frozen=True)
class EndingResult:
    """accuracy: the share of texts whose ending the model would write itself. perplexity: of an ending's tokens."""

    questions: int
    accuracy: float
    accuracy_stderr: float
    perplexity: float
    cut: int

    def to_json(self) -> dict[str, Any]:
        names = ("questions", "accuracy", "accuracy_stderr", "perplexity")
        return {"task": "ending", **{name: getattr(self, name) for name in names}}


def evaluate_endings(model: LanguageModel, endings: list[Ending], progress: Progress = silent) -> EndingResult:
    """How often the likeliest tokens after each context are its true ending (LAMBADA, Paperno et al. 2016)."""
    rows = [continuation_rows(model, one.context, [one.ending], one.where)[0] for one in endings]
    found = likelihoods(model, rows, progress)
    accuracy, stderr = share([one.is_likeliest for one in found])
    loss = -sum(one.logprob for one in found) / sum(one.tokens for one in found)
    perplexity = math.exp(min(loss, 700))
    return EndingResult(len(rows), accuracy, stderr, perplexity, sum(row.cut > 0 for row in rows))


def continuation_rows(model: LanguageModel, context: str, continuations: Sequence[str], where: str) -> list[Row]:
    """One row for each continuation, all of which begin at the same token.

    A space is put between the two where neither has one. What belongs to the continuation begins where the tokens of
    context and continuation together first differ from those of the context alone, or of another continuation. A row
    that is longer than the model's context loses its beginning.
    """
    tokenizer, limit = model.tokenizer, model.decoder.config.context_length
    prefix = prefix_ids(tokenizer, where)
    texts = [context, *(joined(context, one) for one in continuations)]
    encoded = [tokenizer.encode(text) for text in texts]
    first = len(prefix) + common_length(encoded)
    rows = [prefix + ids for ids in encoded[1:]]
    if longest := next((ids for ids in rows if len(ids) - first > limit), None):
        raise DataError(f"{where}: a continuation of {len(longest) - first} tokens does not fit the context of {limit}")
    if any(len(ids) == first for ids in rows):
        raise DataError(f"{where}: a continuation adds no token to its context; give one with text")
    # The model predicts the last token, so it need not read it
    cuts = [max(0, len(ids) - 1 - limit) for ids in rows]
    return [Row(ids[cut:], first - cut, cut) for ids, cut in zip(rows, cuts, strict=True)]


def prefix_ids(tokenizer: Tokenizer, where: str) -> list[int]:
    """The start token, or the one that ends the document before, so that even a first token has one before it."""
    if tokenizer.start_ids or tokenizer.end_id is None:
        return list(tokenizer.start_ids)
    return [tokenizer.end_id]


def joined(context: str, continuation: str) -> str:
    """The two with white space between them."""
    apart = not context or context[-1].isspace() or continuation[:1].isspace()
    return context + ("" if apart else " ") + continuation


def common_length(rows: list[list[int]]) -> int:
    """How many tokens all rows begin with."""
    shortest = min(map(len, rows))
    return next((place for place in range(shortest) if len({row[place] for row in rows}) > 1), shortest)


@torch.inference_mode()
def likelihoods(model: LanguageModel, rows: list[Row], progress: Progress = silent) -> list[Likelihood]:
    """The likelihood of each row's continuation; rows of like length are read together."""
    order = sorted(range(len(rows)), key=lambda number: len(rows[number].ids))
    found: dict[int, Likelihood] = {}
    while len(found) < len(rows):
        group = order[len(found) : len(found) + ROWS_AT_ONCE]
        group = group[: max(1, TOKENS_AT_ONCE // len(rows[group[-1]].ids))]
        found |= zip(group, _likelihoods([rows[number] for number in group], model), strict=True)
        progress(len(found), len(rows))
    return [found[number] for number in range(len(rows))]


def _likelihoods(rows: list[Row], model: LanguageModel) -> list[Likelihood]:
    tokens, _ = pad([row.ids for row in rows])
    hidden = model.decoder.hidden(torch.from_numpy(tokens[:, :-1]).to(model.device))  # (B, T, D)
    return [_likelihood(row, hidden[place], model) for place, row in enumerate(rows)]


def _likelihood(row: Row, hidden: torch.Tensor, model: LanguageModel) -> Likelihood:
    """From the hidden vectors of a row, (T, D)."""
    targets = torch.tensor(row.ids[row.first :], device=model.device)
    logprobs = model.log_probabilities(model.decoder.head(hidden[row.first - 1 : len(row.ids) - 1]))  # (N, V)
    total = float(logprobs.gather(1, targets[:, None]).sum())
    return Likelihood(total, len(targets), bool((logprobs.argmax(-1) == targets).all()))


def share(hits: Sequence[bool]) -> tuple[float, float]:
    """The share that is true, and its standard error: the sample's deviation over the root of the count."""
    count, mean = len(hits), sum(hits) / len(hits)
    return mean, math.sqrt(mean * (1 - mean) / (count - 1)) if count > 1 else 0.0
