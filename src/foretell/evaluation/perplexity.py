"""Loss, perplexity and bits per byte of texts, in overlapping windows.

With a context of C tokens and a stride of S, a window begins every S tokens; except in the first, only the last S
predictions count. So every token is predicted once, from at least C - S tokens before it, except at the beginning.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from foretell.data.batch import Batch, make_batch, pad, padded_groups
from foretell.data.data_use import hash_documents
from foretell.data.documents import Document
from foretell.errors import CheckpointError, DataError, UsageError
from foretell.evaluation.loss import (
    TOKENS_AT_ONCE,
    WITHOUT_BITS,
    Evaluation,
    Progress,
    bits_per_byte,
    evaluate,
    has_bits_per_byte,
    json_number,
    silent,
)
from foretell.evaluation.material import TEXT, TEXT_ROWS
from foretell.evaluation.overlap import Overlap, overlap_entry, overlap_lines, overlap_with
from foretell.language_model import LanguageModel
from foretell.text import Tokenizer
from foretell.text.tokenizer import ALLOW_SPECIAL
from foretell.typesetting.document import DocumentSection, Table
from foretell.typesetting.html import Shown


@dataclass(frozen=True)
class TextEvaluation(Evaluation, Shown):
    """The loss of `documents` texts with `text_bytes` bytes of UTF-8."""

    text_bytes: int
    documents: int
    context_length: int
    stride: int
    bits_per_byte: float | None
    overlap: Overlap | None = None

    def to_json(self) -> dict[str, Any]:
        names = ("loss", "perplexity", "bits_per_byte", "tokens", "stride")
        return {
            **{name: getattr(self, name) for name in names},
            "perplexity": json_number(self.perplexity),
            **overlap_entry(self.overlap),
        }

    def document(self) -> DocumentSection:
        texts = "text" if self.documents == 1 else "texts"
        least, bits = self.context_length - self.stride, ("-", WITHOUT_BITS)
        if self.bits_per_byte is not None:
            bits = f"{self.bits_per_byte:.4f}", f"{self.text_bytes / self.tokens:.2f} bytes per token"
        rows = [
            ("loss", f"{self.loss:.4f}", "nats per token"),
            ("perplexity", f"{self.perplexity:,.2f}", "per token"),
            ("bits per byte", *bits),
            ("tokens", f"{self.tokens:,}", f"predicted, {self.text_bytes:,} bytes of {self.documents:,} {texts}"),
            ("context", f"{self.context_length:,}", f"stride {self.stride:,}: each from {least:,} tokens or more"),
        ]
        return DocumentSection("", [Table(("", "", ""), rows), *overlap_lines(self.overlap)])


class PredictedText(NamedTuple):
    """The ids that the model reads for a text, the index of the first target, and the number of predicted bytes."""

    ids: np.ndarray
    first: int
    bytes: int


def evaluate_texts(
    model: LanguageModel,
    objective: nn.Module,
    texts: Iterable[str | PredictedText],
    stride: int | None = None,
    progress: Progress = silent,
) -> TextEvaluation:
    """The loss of each text's tokens given those before them; texts do not see each other.

    `objective` is the loss of the model's decoder. `stride`: half the context by default. Without a start token nothing
    predicts a text's first token, and its bytes do not count. Raises UsageError for a stride that would skip tokens,
    DataError if there is nothing to predict, CheckpointError for a loss that is not finite.
    """
    context_length = model.config.context_length
    stride = max(1, context_length // 2) if stride is None else stride
    if not 1 <= stride <= context_length:
        raise UsageError(f"the stride must be 1 to {context_length}, the model's context, not {stride}")
    texts = list(texts)
    predicted = [predicted_text(model.tokenizer, text) if isinstance(text, str) else text for text in texts]
    windows = [window for text in predicted for window in iter_windows(text.ids, context_length, stride, text.first)]
    text_bytes = sum(text.bytes for text in predicted)
    if not windows or not text_bytes:
        raise DataError("no text has a token to predict; give more text")
    total = sum(len(window.ids) - window.first for window in windows)
    evaluation = evaluate(objective, _reported(window_batches(windows), total, progress))
    loss, has_bits = evaluation.loss, has_bits_per_byte(model.tokenizer)
    if not math.isfinite(loss):
        raise CheckpointError(f"the loss of the text is {loss}; the model's weights are damaged or too large")
    bits = bits_per_byte(loss, evaluation.tokens, text_bytes) if has_bits else None
    are_rows = not isinstance(texts[0], str)
    dropped = (*model.tokenizer.start_ids, *model.tokenizer.end_ids)
    hashes = hash_documents([text.ids for text in predicted], dropped, is_whole=are_rows)
    overlap = overlap_with(model.data_use, hashes, TEXT_ROWS if are_rows else TEXT)
    count = len(predicted)
    return TextEvaluation(loss, evaluation.tokens, text_bytes, count, context_length, stride, bits, overlap)


def predicted_text(tokenizer: Tokenizer, text: str) -> PredictedText:
    """A text of any length, without an end token."""
    tokenizer.note_spelled([text], ALLOW_SPECIAL)
    encoded, first = tokenizer.encode_long(text), max(1, len(tokenizer.start_ids))
    added = np.array(tokenizer.missing_start(encoded), dtype=np.int32)
    unpredicted = 0 if len(added) else bytes_of_start(tokenizer, encoded[:first].tolist())
    return PredictedText(np.concatenate([added, encoded]), first, max(0, len(text.encode()) - unpredicted))


def bytes_of_start(tokenizer: Tokenizer, ids: list[int]) -> int:
    """The bytes of a text's first tokens. `decode` writes a part of a character as U+FFFD, of three bytes; single
    tokens have a space before the first word, which the text may lack.
    """
    return min(len(tokenizer.decode(ids).encode()), sum(len(tokenizer.bytes_of(token)) for token in ids))


def predicted_row(tokenizer: Tokenizer, row: Document) -> PredictedText:
    """A row as in training, up to its end token. For a prompt with an answer, only the answer is predicted."""
    texts = list(row.pieces())
    tokenizer.note_spelled(texts, ALLOW_SPECIAL)
    ids, prompt_length = tokenizer.make_row(map(tokenizer.encode, texts))
    if len(texts) == 1:
        return predicted_text(tokenizer, texts[0])._replace(ids=np.array(ids))
    return PredictedText(np.array(ids), max(1, prompt_length), len(texts[1].encode()))


class Window(NamedTuple):
    """Up to context_length + 1 tokens; the targets begin at index `first`."""

    ids: np.ndarray
    first: int


def iter_windows(ids: np.ndarray, context_length: int, stride: int, first: int = 1) -> Iterator[Window]:
    """The windows of a text. `first` is the index of the first target, at least 1 because token 0 has no context."""
    start, counted = 0, first
    while counted < len(ids):
        window = ids[start : start + context_length + 1]
        if counted < start + len(window):  # otherwise the window has no new target
            yield Window(window, counted - start)
            counted = start + len(window)
        start += stride


def window_batches(windows: list[Window]) -> Iterator[Batch]:
    """The windows in batches of at most TOKENS_AT_ONCE tokens with padding, shortest first."""
    for indices in padded_groups([len(window.ids) for window in windows], TOKENS_AT_ONCE):
        group = [windows[index] for index in indices]
        tokens, lengths = pad([window.ids.tolist() for window in group])
        batch = make_batch(tokens, lengths)
        counts = torch.arange(1, tokens.shape[1]) >= torch.tensor([[window.first] for window in group])  # (B, T)
        yield replace(batch, loss_weights=batch.loss_weights * counts)


def _reported(batches: Iterator[Batch], total: int, progress: Progress) -> Iterator[Batch]:
    done = 0
    for batch in batches:
        yield batch
        done += int(batch.count)
        progress(done, total)
