"""Logits in chunks of positions, and the check that they can become probabilities."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from foretell.errors import CheckpointError
from foretell.model.decoder import Decoder

LOGITS_AT_ONCE = 2**23  # elements: 32 MiB in float32, and two of 64 MiB for their log-softmax in float64


def rows_at_once(decoder: Decoder) -> int:
    """How many rows of logits are in memory at once."""
    return max(1, LOGITS_AT_ONCE // decoder.config.vocab_size)


def logit_chunks(decoder: Decoder, hidden: Tensor) -> Iterator[Tensor]:
    """The logits (n, V) of hidden (N, D), n rows at a time, so that N * V logits are never in memory at once."""
    for part in hidden.split(rows_at_once(decoder)):
        yield decoder.head(part)


def check_logits(logits: Tensor) -> Tensor:
    """The logits (..., V), if each row has a softmax; a `CheckpointError` where it would be NaN.

    -infinity is allowed, as a token that is ruled out, but not for all tokens of a row.
    """
    if not bool(logits.amax(-1).isfinite().all()):  # NaN and +infinity are the largest of their row
        precision = str(logits.dtype).removeprefix("torch.")
        raise CheckpointError(
            f"the model's logits are not finite in {precision}, so the next token has no probabilities; its weights "
            "are damaged or too large"
        )
    return logits
