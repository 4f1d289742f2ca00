"""Generation with a KV cache: prefill reads the prompts once, then each step reads one new token per sequence."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from foretell.errors import ContextLengthError, UsageError
from foretell.generation.recorded_step import StepRecorder
from foretell.generation.sampling import Sampler
from foretell.generation.sequence import Sequence
from foretell.model.cache import KVCache
from foretell.model.decoder import Decoder
from foretell.model.kernels.packed_linear import with_packed_weights


def generate(
    decoder: Decoder,
    sequences: list[Sequence],
    sampler: Sampler,
    max_tokens: int | None,
    *,
    end_id: int | None = None,
    context_shift: bool = False,
    copies: int = 1,
) -> Iterator[tuple[Sequence, int]]:
    """Continue all sequences together, yielding (sequence, id) for each sampled token.

    Prompts may differ in length, and the result of each does not depend on the others. The end token is added to
    `generated` but not yielded. The caller may end a sequence by setting its `finish_reason`. max_tokens: None means
    until the context is full. With `context_shift`, a sequence that fills the context continues from its last half,
    which is read again. copies: the sequences come in groups of this many with equal prompts, each of which is read
    once. Raises ContextLengthError or UsageError before anything is generated.
    """
    check_lengths(decoder, sequences, max_tokens, context_shift)
    return _continue(decoder, sequences, sampler, max_tokens, end_id, context_shift, copies)


def _continue(
    decoder: Decoder,
    sequences: list[Sequence],
    sampler: Sampler,
    max_tokens: int | None,
    end_id: int | None,
    context_shift: bool,
    copies: int,
) -> Iterator[tuple[Sequence, int]]:
    decoder = with_packed_weights(decoder, max_tokens)
    recorder = StepRecorder(decoder, max_tokens)
    active = [sequence for sequence in sequences if max_tokens is None or max_tokens > 0]
    for sequence in sequences:
        sequence.finish_reason = None if sequence in active else "length"
    cache: KVCache | None = None
    while active:
        if cache is None:
            cache, logits = prefill(decoder, active, max_tokens, copies)
            copies = 1  # once they have grown, all are different
        else:
            recorded = recorder.step_for(cache)
            logits = recorded(active) if recorded else decode_one(decoder, active, cache)
        sampled = sampler(logits, [sequence.ids for sequence in active], [sequence.sample for sequence in active])
        for sequence, token in zip(active, sampled, strict=True):
            sequence.generated.append(token)
            if token == end_id:
                sequence.finish_reason = "end"
                continue
            yield sequence, token
            sequence.finish_reason = sequence.finish_reason or _limit_reached(
                decoder, sequence, max_tokens, context_shift
            )
        cache = _drop_finished(active, cache)
        active = [sequence for sequence in active if sequence.finish_reason is None]
        shifted = [_shift_when_full(decoder, sequence) for sequence in active if context_shift]
        if any(shifted):
            cache = None  # positions have changed: the tails are read again


@torch.inference_mode()
def prefill(
    decoder: Decoder, sequences: list[Sequence], max_tokens: int | None, copies: int = 1
) -> tuple[KVCache, Tensor]:
    """Read the visible part of each sequence; returns the filled cache and the logits (B, V) of the next token.

    Of each group of `copies` sequences the first is read for all.
    """
    rows = [sequence.visible for sequence in sequences[::copies]]
    counts = [len(row) for row in rows]
    context_length = decoder.config.context_length
    capacity = context_length if max_tokens is None else min(context_length, max(counts) + max_tokens)
    weight = decoder.embed.token.weight
    cache = decoder.make_cache(len(rows), capacity)
    ids = torch.zeros(len(rows), max(counts), dtype=torch.long)
    for row, target in zip(rows, ids, strict=True):
        target[: len(row)] = torch.tensor(row)
    hidden = decoder.hidden(ids.to(weight.device), cache.make_room(counts))  # (B, T, D)
    last = torch.tensor(counts, device=weight.device) - 1
    logits = decoder.head(hidden[torch.arange(len(rows), device=weight.device), last])  # (B / copies, V)
    if copies > 1:
        cache.keep_rows([row for row in range(len(rows)) for _ in range(copies)])
    return cache, logits.repeat_interleave(copies, dim=0)  # (B, V)


@torch.inference_mode()
def decode_one(decoder: Decoder, sequences: list[Sequence], cache: KVCache) -> Tensor:
    """Read the newest token of each sequence; returns the logits (B, V) of the next token."""
    ids = torch.tensor([[sequence.generated[-1]] for sequence in sequences], device=cache.keys.device)  # (B, 1)
    return decoder.head(decoder.hidden(ids, cache.make_room([1] * len(sequences)))[:, -1])


def check_lengths(decoder: Decoder, sequences: list[Sequence], max_tokens: int | None, context_shift: bool) -> None:
    """Refuse prompts and lengths that do not fit, before anything is generated."""
    limit = decoder.config.context_length
    if max_tokens is not None and max_tokens < 0:
        raise UsageError(f"max-tokens must be 0 or more, not {max_tokens}")
    for sequence in sequences:
        length = len(sequence.prompt)
        if length == 0:
            raise UsageError("the prompt is empty; give at least one token to continue from")
        if context_shift:
            sequence.window_start = 0 if length <= limit else length - max(1, limit // 2)
        elif length > limit:
            raise ContextLengthError(
                f"the prompt has {length} tokens and the model's context is {limit}; shorten it, or use --slide to "
                "continue from its tail"
            )
        elif length + (max_tokens or 0) > limit + 1:  # the last token is predicted, and not read
            raise ContextLengthError(
                f"a prompt of {length} tokens and {max_tokens} new ones do not fit the model's context of {limit}; ask "
                f"for at most --max-tokens {limit + 1 - length}, or use --slide"
            )


def _limit_reached(decoder: Decoder, sequence: Sequence, max_tokens: int | None, context_shift: bool):
    if max_tokens is not None and len(sequence.generated) >= max_tokens:
        return "length"
    is_full = len(sequence.visible) > decoder.config.context_length
    return "context" if is_full and not context_shift else None


def _drop_finished(active: list[Sequence], cache: KVCache) -> KVCache:
    kept = [row for row, sequence in enumerate(active) if sequence.finish_reason is None]
    if len(kept) < len(active):
        cache.keep_rows(kept)
    return cache


def _shift_when_full(decoder: Decoder, sequence: Sequence) -> bool:
    limit = decoder.config.context_length
    if len(sequence.visible) <= limit:
        return False
    sequence.window_start = len(sequence.ids) - max(1, limit // 2)
    return True
