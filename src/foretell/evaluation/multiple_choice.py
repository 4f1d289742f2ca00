"""Multiple choice and endings, scored by the likelihood of continuations.

Multiple choice: the model's answer is the most likely choice after the question. `accuracy` compares the
log-probabilities of whole choices, which favours short ones; `accuracy_norm` divides them by the choice's bytes of
UTF-8. They are `acc` and `acc_norm` of the usual evaluation harnesses.

The continuations are read through the scheduler, so a question with several choices is read once.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from foretell.config.sampling import SamplingConfig
from foretell.data.questions import Ending, Question
from foretell.errors import ContextLengthError, DataError
from foretell.evaluation.loss import Progress, json_number, perplexity, silent
from foretell.generation.block_table import blocks_for, common_length
from foretell.generation.sampling import Sampler
from foretell.generation.scheduler import Scheduler
from foretell.generation.sequence import Rules
from foretell.generation.sequence import Sequence as TokenSequence
from foretell.language_model import LanguageModel
from foretell.text import Tokenizer
from foretell.text.tokenizer import ALLOW_SPECIAL
from foretell.typesetting.document import DocumentSection, Table
from foretell.typesetting.html import Shown

Item = TypeVar("Item", Question, Ending)
logger = logging.getLogger(__name__)

GROUPS_AT_ONCE = 32  # number of different texts that are read together


@dataclass(frozen=True)
class ChosenAnswer:
    """The log-probability of each choice in nats, and the index of the best choice, plain and normalised by bytes."""

    logprobs: list[float]
    plain: int
    normalised: int


@dataclass(frozen=True)
class ChoiceResult(Shown):
    """The share of correct answers and its standard error.

    cut: number of questions cut at the beginning. left_out: number of questions with a choice longer than the context.
    """

    answers: list[ChosenAnswer]
    accuracy: float
    accuracy_stderr: float
    accuracy_norm: float
    accuracy_norm_stderr: float
    cut: int
    left_out: int

    def to_json(self) -> dict[str, Any]:
        names = ("accuracy", "accuracy_stderr", "accuracy_norm", "accuracy_norm_stderr", "left_out")
        return {"task": "choice", "questions": len(self.answers), **{name: getattr(self, name) for name in names}}

    def document(self) -> DocumentSection:
        guessed = sum(1 / len(answer.logprobs) for answer in self.answers) / len(self.answers)
        rows = [
            ("accuracy", f"{self.accuracy:.2%}", f"± {self.accuracy_stderr:.2%}, by log-probability"),
            ("accuracy_norm", f"{self.accuracy_norm:.2%}", f"± {self.accuracy_norm_stderr:.2%}, per byte"),
            ("questions", f"{len(self.answers):,}", f"guessing would get {guessed:.2%}"),
        ]
        return document_of(rows, self.left_out)


@dataclass(frozen=True)
class EndingResult(Shown):
    """accuracy: the share of endings that greedy decoding would write. perplexity: per token of an ending."""

    questions: int
    accuracy: float
    accuracy_stderr: float
    perplexity: float
    cut: int
    left_out: int

    def to_json(self) -> dict[str, Any]:
        names = ("questions", "accuracy", "accuracy_stderr", "perplexity", "left_out")
        values = {name: getattr(self, name) for name in names}
        return {"task": "ending", **values, "perplexity": json_number(self.perplexity)}

    def document(self) -> DocumentSection:
        rows = [
            ("accuracy", f"{self.accuracy:.2%}", f"± {self.accuracy_stderr:.2%}, every token the most likely"),
            ("perplexity", f"{self.perplexity:,.2f}", "per token of an ending"),
            ("endings", f"{self.questions:,}", ""),
        ]
        return document_of(rows, self.left_out)


def document_of(rows: list[tuple[str, str, str]], left_out: int) -> DocumentSection:
    missing = [("left out", f"{left_out:,}", "a continuation is longer than the context")] if left_out else []
    return DocumentSection("", [Table(("", "", ""), [*rows, *missing])])


def evaluate_choices(model: LanguageModel, questions: list[Question], progress: Progress = silent) -> ChoiceResult:
    """Answer every question, except if a choice does not fit the context."""
    fitting, cut, left_out = fitting_rows(model, questions)
    scored = iter(score_rows(model, [row for _, rows in fitting for row in rows], progress))
    answers = [_answer(question, [next(scored).logprob for _ in rows]) for question, rows in fitting]
    golds = [question.gold for question, _ in fitting]
    plain = share([answer.plain == gold for answer, gold in zip(answers, golds, strict=True)])
    normalised = share([answer.normalised == gold for answer, gold in zip(answers, golds, strict=True)])
    return ChoiceResult(answers, *plain, *normalised, cut, left_out)


def question_rows(model: LanguageModel, question: Question | Ending) -> list[ContinuationRow]:
    """One row for each choice: the choice after the question, or the ending after question and choice."""
    return [
        row
        for context, continuations in parts_of(question)
        for row in continuation_rows(model, context, continuations, question.where)
    ]


def parts_of(question: Question | Ending) -> list[tuple[str, list[str]]]:
    """The contexts of a question, and the continuations of each as written, with the separator before them."""
    if isinstance(question, Ending):
        return [(question.context, [question.separator + question.ending])]
    if question.ending is None:
        return [(question.query, [question.separator + choice for choice in question.choices])]
    return [(question.query + choice, [question.separator + question.ending]) for choice in question.choices]


def _answer(question: Question, logprobs: list[float]) -> ChosenAnswer:
    sizes = [len((question.ending or choice).encode()) for choice in question.choices]
    per_byte = [logprob / size for logprob, size in zip(logprobs, sizes, strict=True)]
    return ChosenAnswer(logprobs, logprobs.index(max(logprobs)), per_byte.index(max(per_byte)))


def evaluate_endings(model: LanguageModel, endings: list[Ending], progress: Progress = silent) -> EndingResult:
    """The share of endings whose tokens are all the most likely ones (LAMBADA, Paperno et al. 2016)."""
    fitting, cut, left_out = fitting_rows(model, endings)
    scored = score_rows(model, [row for _, (row,) in fitting], progress)
    accuracy, stderr = share([likelihood.is_greedy for likelihood in scored])
    loss = -sum(likelihood.logprob for likelihood in scored) / sum(likelihood.tokens for likelihood in scored)
    return EndingResult(len(fitting), accuracy, stderr, perplexity(loss), cut, left_out)


def fitting_rows(model: LanguageModel, items: list[Item]) -> tuple[list[tuple[Item, list[ContinuationRow]]], int, int]:
    """The questions with their rows; how many were cut at the beginning; how many are left out. Both counts are logged.

    A question is left out if a continuation alone does not fit the context, because cutting it would change the answer.
    Raises ContextLengthError if no question is left.
    """
    fitting, refusals = [], []
    note_joined_words(items)
    for item in items:
        try:
            fitting.append((item, question_rows(model, item)))
        except ContextLengthError as error:
            refusals.append(error)
    if not fitting:
        raise refusals[0]
    if refusals:
        logger.warning(f"{len(refusals):,} of {len(items):,} are left out, the first: {refusals[0]}")
    if cut := sum(any(row.cut for row in rows) for _, rows in fitting):
        logger.info(
            f"{cut:,} of {len(items):,} are longer than the context of {model.config.context_length}: their "
            "beginning is left out"
        )
    return fitting, cut, len(refusals)


def continuation_rows(
    model: LanguageModel, context: str, continuations: Sequence[str], where: str
) -> list[ContinuationRow]:
    """The rows of `scored_rows`; a row that is longer than the model's context is cut at the beginning."""
    limit = model.config.context_length
    model.tokenizer.note_spelled([context, *continuations], ALLOW_SPECIAL)
    try:
        rows, first = scored_rows(model.tokenizer, context, continuations)
    except DataError as error:
        raise DataError(f"{where}: {error}") from None
    if longest := next((ids for ids in rows if len(ids) - first > limit), None):
        raise ContextLengthError(
            f"{where}: a continuation of {len(longest) - first} tokens does not fit the context of {limit}"
        )
    # The model predicts the last token, so it need not read it
    cuts = [max(0, len(ids) - 1 - limit) for ids in rows]
    return [ContinuationRow(ids[cut:], first - cut, cut) for ids, cut in zip(rows, cuts, strict=True)]


def scored_rows(tokenizer: Tokenizer, context: str, continuations: Sequence[str]) -> tuple[list[list[int]], int]:
    """The ids of the context with each continuation, and the index of the first token that is scored.

    A context and its continuation are encoded as one text. Scored are the tokens from the first that has a character of
    the continuation; with several continuations from the same token for all, so that they can be compared. If nothing
    comes before it, the end token does, which precedes each document in training. Raises DataError for a continuation
    without tokens, or if there is nothing to predict the first token from.
    """
    encoded = tokenizer.encode_answers(context, continuations)
    if any(first == len(ids) for ids, first in encoded):
        raise DataError("a continuation adds no token to its context; give one with text")
    first = min(common_length(*(ids for ids, _ in encoded)), *(first for _, first in encoded))
    before = [] if first else list(tokenizer.end_ids[:1])
    if not first and not before:
        raise DataError("nothing comes before the continuations' first token, so it cannot be predicted")
    return [before + ids for ids, _ in encoded], first + len(before)


def note_joined_words(items: Sequence[Question | Ending]) -> None:
    """Log how many answers follow their question without white space, although the question has blanks."""
    pairs = [parts_of(item)[0] for item in items]
    joined = sum(
        " " in context and not context[-1].isspace() and not continuations[0][0].isspace()
        for context, continuations in pairs
    )
    if joined:
        logger.info(
            f"{joined:,} of {len(items):,} answers follow their question without white space, as written; "
            "--separator ' ' puts a blank there"
        )


def share(hits: Sequence[bool]) -> tuple[float, float]:
    """The share of true values and its standard error: the sample's standard deviation over sqrt(count)."""
    count, mean = len(hits), sum(hits) / len(hits)
    return mean, math.sqrt(mean * (1 - mean) / (count - 1)) if count > 1 else 0.0


@dataclass(frozen=True)
class ContinuationRow:
    """Tokens to read. first: the index where the continuation begins. cut: number of tokens cut at the beginning."""

    ids: list[int]
    first: int
    cut: int = 0

    @property
    def text(self) -> tuple[int, ...]:
        """The tokens before the continuation."""
        return tuple(self.ids[: self.first])


@dataclass(frozen=True)
class Likelihood:
    """The log-probability of a continuation in nats, and whether each of its tokens is the most likely one."""

    logprob: float
    tokens: int
    is_greedy: bool


def score_rows(model: LanguageModel, rows: list[ContinuationRow], progress: Progress = silent) -> list[Likelihood]:
    """The likelihood of each row's continuation. A text before several continuations is read once."""
    batches, max_rows = list(in_reading_order(rows)), max(1, min(GROUPS_AT_ONCE, len(rows)))
    num_blocks = max((blocks_needed([rows[index] for index in members], max_rows) for members in batches), default=1)
    scheduler = Scheduler(model.decoder, num_blocks=num_blocks, max_rows=max_rows, expected_tokens=0)
    rules = Rules(Sampler(SamplingConfig(temperature=0), model.tokenizer.vocab_size), max_tokens=0, prompt_logprobs=1)
    likelihoods: dict[int, Likelihood] = {}
    for members in batches:
        for index in members:
            ids, first = rows[index].ids, rows[index].first
            # A decoder with a source reads the first source
            scheduler.add(TokenSequence(ids, sample=index, row=0, rules=rules, first_logprob=first))
        while scheduler.is_busy:
            scheduler.step()
            for sequence in scheduler.ended:
                likelihoods[sequence.sample] = likelihood(sequence)
            if scheduler.ended:
                progress(len(likelihoods), len(rows))
    return [likelihoods[index] for index in range(len(rows))]


def likelihood(sequence: TokenSequence) -> Likelihood:
    """The likelihood of the scored tokens of a sequence. Raises the error that ended the sequence."""
    if sequence.error is not None:
        raise sequence.error
    given = [each for each in sequence.prompt_logprobs if each is not None]
    are_likeliest = all(each.token == each.top[0][0] for each in given)
    return Likelihood(sum(each.logprob for each in given), len(given), are_likeliest)


def blocks_needed(rows: list[ContinuationRow], max_rows: int) -> int:
    """Number of cache blocks for the texts of rows that are read together and for their running continuations."""
    texts: dict[tuple[int, ...], int] = {}
    for row in rows:
        texts[row.text] = max(len(row.ids), texts.get(row.text, 0))
    continuation = max(len(row.ids) - row.first for row in rows)
    return sum(map(blocks_for, texts.values())) + max_rows * (blocks_for(continuation) + 1)  # 1: partly filled


def in_reading_order(rows: list[ContinuationRow]) -> Iterator[list[int]]:
    """Groups of rows to read together, as indices: the first row of each of several texts, then the second rows, etc.

    Texts of similar length are grouped. The scheduler delays a row, and all after it, while the same text is being
    read for another row; so rows of one text do not follow each other.
    """
    groups: dict[tuple[int, ...], list[int]] = {}
    for index, row in enumerate(rows):
        groups.setdefault(row.text, []).append(index)
    texts = sorted(groups, key=len)
    for start in range(0, len(texts), GROUPS_AT_ONCE):
        members = [groups[text] for text in texts[start : start + GROUPS_AT_ONCE]]
        yield [group[turn] for turn in range(max(map(len, members))) for group in members if turn < len(group)]
