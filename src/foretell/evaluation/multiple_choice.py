"""Multiple choice: the model answers with the choice that it finds likeliest after the question.

`accuracy` takes the log-probability of a choice as it is, so that short choices have it easier; `accuracy_norm`
divides it by the choice's bytes of UTF-8. They are the acc and acc_norm of the usual evaluation harnesses.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from foretell.data.questions import Question
from foretell.evaluation.continuation import continuation_rows, likelihoods, share
from foretell.evaluation.text import Progress, silent
from foretell.language_model import LanguageModel


@dataclass(frozen=True)
class Answer:
    """The log-probability of each choice in nats, and the number of the choice taken by either way."""

    logprobs: list[float]
    plain: int
    normalised: int


@dataclass(frozen=True)
class ChoiceResult:
    """The share of right answers with its standard error. cut: questions that were too long for the context."""

    answers: list[Answer]
    accuracy: float
    accuracy_stderr: float
    accuracy_norm: float
    accuracy_norm_stderr: float
    cut: int

    def to_json(self) -> dict[str, Any]:
        names = ("accuracy", "accuracy_stderr", "accuracy_norm", "accuracy_norm_stderr")
        return {"task": "choice", "questions": len(self.answers), **{name: getattr(self, name) for name in names}}


def evaluate_choices(model: LanguageModel, questions: list[Question], progress: Progress = silent) -> ChoiceResult:
    """Let the model answer every question. Raises DataError for a choice that does not fit its context."""
    rows = [continuation_rows(model, one.query, one.choices, one.where) for one in questions]
    found = iter(likelihoods(model, [row for group in rows for row in group], progress))
    answers = [_answer(one, [next(found).logprob for _ in one.choices]) for one in questions]
    pairs = list(zip(answers, questions, strict=True))
    plain = share([answer.plain == question.gold for answer, question in pairs])
    normalised = share([answer.normalised == question.gold for answer, question in pairs])
    cut = sum(any(row.cut for row in group) for group in rows)
    return ChoiceResult(answers, *plain, *normalised, cut)


def _answer(question: Question, logprobs: list[float]) -> Answer:
    sizes = [len(choice.encode()) for choice in question.choices]
    each = [logprob / size for logprob, size in zip(logprobs, sizes, strict=True)]
    return Answer(logprobs, logprobs.index(max(logprobs)), each.index(max(each)))
