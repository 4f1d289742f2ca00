"""Next tokens, token probabilities and the embedding of one text; the evaluation of a model on files."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from foretell.data.batch import pad, padded_groups
from foretell.data.questions import EvaluationTask, choose_task, read_endings, read_questions, text_config
from foretell.data.sources import DocumentReader
from foretell.errors import UsageError, as_path, check_count
from foretell.evaluation.loss import Progress, json_number, perplexity, silent
from foretell.evaluation.multiple_choice import ChoiceResult, EndingResult, evaluate_choices, evaluate_endings
from foretell.evaluation.perplexity import TextEvaluation, evaluate_texts, predicted_row
from foretell.language_model import LanguageModel, TokenProbability, check_model, resolve_position
from foretell.model.decoder import logit_chunks
from foretell.system.device import check_name
from foretell.training.objective import Objective
from foretell.typesetting.document import BAR_WIDTH, DocumentSection, Paragraph, Table, bar, ending, quoted
from foretell.typesetting.html import Shown, ShownList
from foretell.typesetting.numbers import percent

MOST_ROWS = 40  # tokens of a score shown in a notebook
Pooling = Literal["last", "mean"]
SORTED_AT_ONCE = 1024  # texts to embed that are sorted by length together
TOKENS_AT_ONCE = 2**11  # tokens that are embedded in one pass
POOLINGS: dict[str, Callable[[Tensor], Tensor]] = {
    "last": lambda hidden: hidden[-1],  # the only position that has seen the whole text
    "mean": lambda hidden: hidden.mean(0),
}


@dataclass(frozen=True, repr=False)
class NextTokens(Shown):
    """The most likely tokens after a context. `context` is the text that the model has read."""

    context: str
    tokens: list[TokenProbability]

    def __repr__(self) -> str:
        return str(self)

    def document(self) -> DocumentSection:
        """A line per token, with its probability and a bar."""
        largest = max((token.probability for token in self.tokens), default=1.0)
        rows = [
            (f"{token.id}", quoted(token.text), percent(token.probability), bar(token.probability / largest))
            for token in self.tokens
        ]
        return DocumentSection(f"after {ending(self.context)}", [Table(("id", "token", "probability", ""), rows)])

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class ScoredToken:
    """A token of a text and its log-probability in nats given all tokens before it; None if there are none."""

    id: int
    text: str
    logprob: float | None


@dataclass(frozen=True, repr=False)
class Score(Shown):
    """The log-probability of a text in nats, per token and in total.

    Without a start token the first token has no probability, and the total leaves it out. perplexity is None if no
    token has one, infinity if it is too large for a float (null in JSON). `start` is the text of the start token.
    """

    tokens: list[ScoredToken]
    logprob: float
    perplexity: float | None
    start: str = ""

    def __repr__(self) -> str:
        return str(self)

    def document(self, most_rows: int = MOST_ROWS) -> DocumentSection:
        """The surprise of each token in bits, without the middle of a long text, and the total."""
        rows = [surprise_row(token) for token in self.tokens]
        if len(rows) > most_rows:
            left_out = f"{len(rows) - most_rows:,} more"
            rows = [*rows[: most_rows // 2], ("", left_out, ""), *rows[-most_rows // 2 :]]
        table = Table(("bits", "token", ""), rows) if len(self.tokens) > 1 else Table(("token",), [rows[0][1:2]])
        return DocumentSection("", [table, Paragraph(self.total())])

    def total(self) -> str:
        if self.perplexity is None:
            return "the only token has no probability: the model needs one before it, such as a start token"
        bits, predicted = in_bits(self.logprob), sum(token.logprob is not None for token in self.tokens)
        given = f"the start token {self.start!r}" if self.start else f"the first token {self.tokens[0].text!r}"
        rate = f"{bits / predicted:.3f} bits per token, perplexity {self.perplexity:.2f}"
        return f"{bits:.2f} bits, {rate}, given {given}"

    def to_json(self) -> dict[str, Any]:
        perplexity = None if self.perplexity is None else json_number(self.perplexity)
        return {"tokens": [asdict(token) for token in self.tokens], "logprob": self.logprob, "perplexity": perplexity}


def surprise_row(token: ScoredToken) -> tuple[str, str, str]:
    """A token of a score as cells; the bar has a column per bit."""
    if token.logprob is None:
        return "", quoted(token.text), ""
    bits = in_bits(token.logprob)
    return f"{bits:.2f}", quoted(token.text), "█" * min(BAR_WIDTH, round(bits))


def in_bits(nats: float) -> float:
    """A surprise in bits, from a loss or log-probability in nats."""
    return abs(nats / math.log(2))  # not -0.0


@torch.inference_mode()
def next_tokens(
    model: LanguageModel, text: str, top: int = 5, at: int | list[int] | None = None
) -> ShownList[NextTokens]:
    """The `top` most likely tokens after the text, or after each of the token positions `at` (0 is the first token).

    The first token is the start token if the tokenizer has one. Negative positions count from the end. Raises
    UsageError for a position outside the text, ContextLengthError for a text longer than the context.
    """
    check_model(model)
    check_count("top", top)
    ids = model.encode_fitting(text)
    places = list(at) or [-1] if isinstance(at, Iterable) else [-1 if at is None else at]
    positions = [resolve_position(position, len(ids)) for position in places]
    hidden = model.decoder.hidden(torch.tensor([ids], device=model.device))[0, positions]  # (P, D)
    likely = [
        model.top_tokens(row, top)
        for logits in logit_chunks(model.decoder, hidden)
        for row in model.log_probabilities(logits)
    ]
    contexts = [model.tokenizer.decode(ids[: position + 1]) for position in positions]
    return ShownList(NextTokens(context, tokens) for context, tokens in zip(contexts, likely, strict=True))


@torch.inference_mode()
def score(model: LanguageModel, text: str) -> Score:
    """The log-probability of each token of a text given those before it, including the start token if there is one.

    Raises UsageError for an empty text, ContextLengthError for one longer than the context,
    CheckpointError for logits that are not finite.
    """
    check_model(model)
    ids, starts = encode_own(model, text), len(model.tokenizer.start_ids)
    own = ids[starts:]
    hidden = model.decoder.hidden(torch.tensor([ids], device=model.device))[0]
    logprobs = model.token_log_probabilities(ids, hidden)[max(0, starts - 1) :]  # for the text's own tokens
    values: list[float | None] = [*([] if starts else [None]), *logprobs.tolist()]
    pairs = zip(own, values, strict=True)
    tokens = [ScoredToken(token, model.tokenizer.text_of(token), value) for token, value in pairs]
    total = float(logprobs.sum())
    start = "".join(model.tokenizer.pieces(model.tokenizer.start_ids))
    return Score(tokens, total, perplexity(-total / len(logprobs)) if len(logprobs) else None, start)


def embed(model: LanguageModel, text: str, pool: Pooling = "last") -> list[float]:
    """The vector (D,) of a text: the residual stream after the last norm, at the last token or averaged over all."""
    check_model(model)
    check_name("pool", pool, tuple(POOLINGS))
    return next(embed_each(model, [encode_own(model, text)], pool))


def encode_own(model: LanguageModel, text: str) -> list[int]:
    """`LanguageModel.encode_fitting` of a text that has tokens besides the start token; otherwise a UsageError."""
    ids = model.encode_fitting(text)
    if tuple(ids) == model.tokenizer.start_ids:
        raise UsageError("the text is empty; give at least one character")
    return ids


def embed_each(model: LanguageModel, texts: Sequence[list[int]], pool: Pooling) -> Iterator[list[float]]:
    """`embed` of the ids of each text, in order."""
    for first in range(0, len(texts), SORTED_AT_ONCE):
        group = texts[first : first + SORTED_AT_ONCE]
        vectors = dict(chain.from_iterable(embed_in_passes(model, group, pool, TOKENS_AT_ONCE)))
        yield from (vectors[index] for index in range(len(group)))


def embed_in_passes(
    model: LanguageModel, texts: Sequence[list[int]], pool: Pooling, tokens_at_once: int
) -> Iterator[list[tuple[int, list[float]]]]:
    """The indices and vectors of the texts of each pass; texts of about the same length are read together.

    A pass of several texts has at most `tokens_at_once` tokens, padding included.
    """
    for some in padded_groups(list(map(len, texts)), tokens_at_once):
        ids, lengths = pad([texts[index] for index in some])  # no token sees the padding after it
        with torch.inference_mode():
            hidden = model.decoder.hidden(torch.from_numpy(ids).clamp(min=0).to(model.device)).float()  # (B, T, D)
        triples = zip(some, hidden, lengths, strict=True)
        yield [(index, POOLINGS[pool](row[:length]).tolist()) for index, row, length in triples]


def evaluate(
    model: LanguageModel,
    data: str | Path,
    *,
    task: EvaluationTask | None = None,
    stride: int | None = None,
    text_field: str | None = None,
    rows: bool = False,
    prompt_field: str | None = None,
    answer_field: str | None = None,
    separator: str | None = None,
    limit: int | None = None,
    progress: Progress = silent,
) -> TextEvaluation | ChoiceResult | EndingResult:
    """Loss, perplexity and bits per byte of texts, or accuracy at questions, as `foretell evaluate` measures them.

    data: a file or folder of texts (`-`: standard input), or a file of questions. task: by default chosen by the file's
    fields. stride: tokens from one window to the next, half the context by default. limit: only the first texts or
    questions. rows, prompt_field, answer_field and separator as in `data` of a training: the loss includes the end
    token of each row, and of a prompt with an answer only the answer. separator of questions: between question and
    answer; by default nothing, or the blank of a published benchmark. Raises UsageError, DataError or CheckpointError.
    """
    check_model(model)
    if task is None and "task_head" in model.parts:
        raise UsageError(
            "this model has a head: give it texts with foretell.predict, measure it on labelled rows with "
            "foretell.evaluate_task, or as a language model with task='text'"
        )
    config = text_config(text_field, rows, prompt_field, answer_field, separator, model.tokenizer.read_names)
    chosen = choose_task(data, task, stride, config, limit, separator)
    if chosen == "choice":
        return evaluate_choices(model, read_questions(as_path("data", data), separator)[:limit], progress)
    if chosen == "ending":
        return evaluate_endings(model, read_endings(as_path("data", data), separator)[:limit], progress)
    documents = islice(DocumentReader([data], config).read(), limit)
    texts = [predicted_row(model.tokenizer, each) if config.rows else each.text for each in documents]
    return evaluate_texts(model, Objective(model.decoder), texts, stride, progress)
