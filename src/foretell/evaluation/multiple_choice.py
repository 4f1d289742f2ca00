"""Multiple choice and endings, by the likelihood of continuations.

Multiple choice: the model's answer is the most likely choice after the question. `accuracy` compares the
log-probabilities of whole choices, which favours short ones; `accuracy_norm` divides them by the choice's bytes of
UTF-8. They are `acc` and `acc_norm` of the usual evaluation harnesses.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from foretell.data.questions import Ending, Question
from foretell.errors import DataError
from foretell.evaluation.likelihood import ContinuationRow, score_rows
from foretell.evaluation.perplexity import json_number, perplexity
from foretell.evaluation.texts import Progress, silent
from foretell.language_model import LanguageModel
from foretell.text import Tokenizer


@dataclass(frozen=True)
class Answer:
    """The log-probability of each choice in nats, and the index of the best choice, plain and normalised by bytes."""

    logprobs: list[float]
    plain: int
    normalised: int


@dataclass(frozen=True)
class ChoiceResult:
    """The share of right answers with its standard error. cut: number of questions too long for the context."""

    answers: list[Answer]
    accuracy: float
    accuracy_stderr: float
    accuracy_norm: float
    accuracy_norm_stderr: float
    cut: int

    def to_json(self) -> dict[str, Any]:
        names = ("accuracy", "accuracy_stderr", "accuracy_norm", "accuracy_norm_stderr")
        return {"task": "choice", "questions": len(self.answers), **{name: getattr(self, name) for name in names}}


@dataclass(frozen=True)
class EndingResult:
    """accuracy: the share of endings that greedy decoding would write. perplexity: per token of an ending."""

    questions: int
    accuracy: float
    accuracy_stderr: float
    perplexity: float
    cut: int

    def to_json(self) -> dict[str, Any]:
        names = ("questions", "accuracy", "accuracy_stderr", "perplexity")
        values = {name: getattr(self, name) for name in names}
        return {"task": "ending", **values, "perplexity": json_number(self.perplexity)}


def evaluate_choices(model: LanguageModel, questions: list[Question], progress: Progress = silent) -> ChoiceResult:
    """Answer every question. Raises DataError for a choice that does not fit the context."""
    groups = [question_rows(model, question) for question in questions]
    scored = iter(score_rows(model, [row for group in groups for row in group], progress))
    answers = [_answer(question, [next(scored).logprob for _ in question.choices]) for question in questions]
    pairs = list(zip(answers, questions, strict=True))
    plain = share([answer.plain == question.gold for answer, question in pairs])
    normalised = share([answer.normalised == question.gold for answer, question in pairs])
    cut = sum(any(row.cut for row in group) for group in groups)
    return ChoiceResult(answers, *plain, *normalised, cut)


def question_rows(model: LanguageModel, question: Question) -> list[ContinuationRow]:
    """One row for each choice: the choice after the question, or the ending after question and choice."""
    if question.ending is None:
        return continuation_rows(model, question.query, question.choices, question.where)
    contexts = [question.query + choice for choice in question.choices]
    return [continuation_rows(model, context, [question.ending], question.where)[0] for context in contexts]


def _answer(question: Question, logprobs: list[float]) -> Answer:
    sizes = [len((question.ending or choice).encode()) for choice in question.choices]
    per_byte = [logprob / size for logprob, size in zip(logprobs, sizes, strict=True)]
    return Answer(logprobs, logprobs.index(max(logprobs)), per_byte.index(max(per_byte)))


def evaluate_endings(model: LanguageModel, endings: list[Ending], progress: Progress = silent) -> EndingResult:
    """How often the true ending is the most likely one, token by token (LAMBADA, Paperno et al. 2016)."""
    rows = [continuation_rows(model, item.context, [item.ending], item.where)[0] for item in endings]
    scored = score_rows(model, rows, progress)
    accuracy, stderr = share([likelihood.is_greedy for likelihood in scored])
    loss = -sum(likelihood.logprob for likelihood in scored) / sum(likelihood.tokens for likelihood in scored)
    return EndingResult(len(rows), accuracy, stderr, perplexity(loss), sum(row.cut > 0 for row in rows))


def continuation_rows(
    model: LanguageModel, context: str, continuations: Sequence[str], where: str
) -> list[ContinuationRow]:
    """One row for each continuation, all of which begin at the same token.

    A space is put between context and continuation where neither has one. The continuation begins where the tokens of
    both together first differ from those of the context alone, or of another continuation. A row that is longer than
    the model's context loses its beginning.
    """
    tokenizer, limit = model.tokenizer, model.config.context_length
    prefix = prefix_ids(tokenizer)
    texts = [context, *(joined(context, continuation) for continuation in continuations)]
    encoded = [tokenizer.encode(text) for text in texts]
    first = len(prefix) + common_length(encoded)
    rows = [prefix + ids for ids in encoded[1:]]
    if longest := next((ids for ids in rows if len(ids) - first > limit), None):
        raise DataError(f"{where}: a continuation of {len(longest) - first} tokens does not fit the context of {limit}")
    if first == 0:
        raise DataError(f"{where}: nothing comes before the continuations' first token, so it cannot be predicted")
    if any(len(ids) == first for ids in rows):
        raise DataError(f"{where}: a continuation adds no token to its context; give one with text")
    # The model predicts the last token, so it need not read it
    cuts = [max(0, len(ids) - 1 - limit) for ids in rows]
    return [ContinuationRow(ids[cut:], first - cut, cut) for ids, cut in zip(rows, cuts, strict=True)]


def prefix_ids(tokenizer: Tokenizer) -> list[int]:
    """The start token, or else the end token of the previous document, so that the first token is predicted too."""
    if tokenizer.start_ids or tokenizer.end_id is None:
        return list(tokenizer.start_ids)
    return [tokenizer.end_id]


def joined(context: str, continuation: str) -> str:
    """Both texts with white space between them."""
    is_separated = not context or context[-1].isspace() or continuation[:1].isspace()
    return context + ("" if is_separated else " ") + continuation


def common_length(rows: list[list[int]]) -> int:
    """The number of tokens that all rows begin with."""
    shortest = min(map(len, rows))
    return next((index for index in range(shortest) if len({row[index] for row in rows}) > 1), shortest)


def share(hits: Sequence[bool]) -> tuple[float, float]:
    """The share of true values and its standard error: the sample's standard deviation over sqrt(count)."""
    count, mean = len(hits), sum(hits) / len(hits)
    return mean, math.sqrt(mean * (1 - mean) / (count - 1)) if count > 1 else 0.0
