"""How well a model predicts texts: loss, perplexity and bits per byte, in windows with a stated stride."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import nn

from foretell.data.batch import Batch
from foretell.errors import DataError, UsageError
from foretell.evaluation.perplexity import Evaluation, bits_per_byte, evaluate
from foretell.evaluation.windows import Window, iter_windows, window_batches
from foretell.language_model import LanguageModel
from foretell.text import Tokenizer

Progress = Callable[[int, int], None]  # done, of how many


def silent(done: int, total: int) -> None:
    """No progress."""


@dataclass(frozen=True)
class TextEvaluation:
    """loss in nats a token, over `tokens` predictions of `text_bytes` bytes of UTF-8 in `documents` texts."""

    loss: float
    tokens: int
    text_bytes: int
    documents: int
    context_length: int
    stride: int

    @property
    def perplexity(self) -> float:
        return Evaluation(self.loss, self.tokens).perplexity

    @property
    def bits_per_byte(self) -> float:
        return bits_per_byte(self.loss, self.tokens, self.text_bytes)

    def to_json(self) -> dict[str, Any]:
        names = ("loss", "perplexity", "bits_per_byte", "tokens", "stride")
        return {name: getattr(self, name) for name in names}


def evaluate_texts(
    model: LanguageModel,
    objective: nn.Module,
    texts: list[str],
    stride: int | None = None,
    progress: Progress = silent,
) -> TextEvaluation:
    """The loss of each text's tokens given those before them; texts do not see each other.

    `objective` is the loss of the model's decoder. `stride` is half the context where not given. Without a start token
    nothing predicts a text's first token, and its bytes do not count. Raises UsageError for a stride that leaves
    tokens out, DataError where there is nothing to predict.
    """
    context_length = model.decoder.config.context_length
    stride = max(1, context_length // 2) if stride is None else stride
    if not 1 <= stride <= context_length:
        raise UsageError(f"the stride must be 1 to {context_length}, the model's context, not {stride}")
    windows: list[Window] = []
    text_bytes = 0
    for text in texts:
        ids, first, counted = predicted_part(model.tokenizer, text)
        windows += iter_windows(ids, context_length, stride, first)
        text_bytes += counted
    if not windows or not text_bytes:
        raise DataError("no text has a token to predict; give more text")
    batches = _reported(window_batches(windows, context_length), sum(window.count for window in windows), progress)
    found = evaluate(objective, batches)
    return TextEvaluation(found.loss, found.tokens, text_bytes, len(texts), context_length, stride)


def predicted_part(tokenizer: Tokenizer, text: str) -> tuple[np.ndarray, int, int]:
    """What the model reads of a text, the first token that it predicts, and how many bytes it predicts."""
    starts = np.array(tokenizer.start_ids, dtype=np.int32)
    ids = np.concatenate([starts, tokenizer.encode_long(text)])
    given = 0 if len(starts) else len(tokenizer.decode(ids[:1]).encode())
    return ids, max(1, len(starts)), max(0, len(text.encode()) - given)


def _reported(batches: Iterator[Batch], total: int, progress: Progress) -> Iterator[Batch]:
    done = 0
    for batch in batches:
        yield batch
        done += int(batch.count)
        progress(done, total)
