"""The mask leaks nothing: a model is tried on a real batch before it trains, and refused if it sees what it may not.

Some tokens are exchanged for others, and everything that must not depend on them has to stay the same to the bit. That
holds because both passes have the same shapes: whatever kernel runs adds up the same products in the same order, a key
that is hidden adds exp(-infinity) = 0 times a finite value, and no sum is changed by a zero. Tried on a CPU in float32
and under bfloat16 autocast, with and without a mask tensor, at 16 lengths around the blocks of the fused kernel.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from foretell.config import ModelConfig
from foretell.data.batch import PADDING, Batch
from foretell.errors import TrainingError
from foretell.model.decoder import Decoder
from foretell.training.fingerprint import Probe, fingerprints
from foretell.training.objective import Objective

ROWS, TOKENS = 4, 2048  # at most; each row has another border between past and future


@torch.no_grad()
def check_mask(decoder: Decoder, batch: Batch, dtype: torch.dtype = torch.float32) -> None:
    """Refuse to train a model that leaks: a `TrainingError` names the first module that does, in the order of the pass.

    Other tokens and positions from some place on must not move anything before it; before a window, nothing behind it;
    where the batch has documents, around one of them (padding is one too) nothing in it. Products run in `dtype`, as in
    training, and in the mode that the model is in: its dropout masks depend on counters alone, not on the pass. What a
    narrow window hides after a layer without one cannot be told from outside, and is not tried.
    """
    batch = probed_rows(batch)
    objective = Objective(decoder)
    probes = list(iter_probes(batch, decoder.config))
    before = fingerprints(objective, batch, probes, dtype)
    for probe, expected in zip(probes, before, strict=True):
        found = fingerprints(objective, probe.batch, [probe], dtype)[0]
        leak = next((path for (path, one), (_, other) in zip(expected, found, strict=True) if one != other), None)
        if leak is not None:
            raise TrainingError(
                f"{leak} {probe.finding}, so no step was taken: a loss that is low by looking where it must not says "
                "nothing. Look at that module, and at the mask and the positions that it is given"
            )


def probed_rows(batch: Batch) -> Batch:
    """A few rows, with the positions written out so that they too can be changed."""
    chosen = batch.rows(0, max(1, min(ROWS, TOKENS // batch.ids.shape[1])))
    if chosen.positions is not None:
        return chosen
    positions = torch.arange(batch.ids.shape[1], device=batch.ids.device)
    return replace(chosen, positions=positions.expand_as(chosen.ids))


def iter_probes(batch: Batch, config: ModelConfig) -> Iterator[Probe]:
    """Nothing exchanged, then the future, what lies before every window, and other documents."""
    everything = torch.ones_like(batch.ids, dtype=torch.bool)
    yield Probe("hands out something else when the same batch comes again", batch, lambda path: everything)
    future = after_borders(batch.ids)
    yield Probe("sees the future", exchange(batch, future, new_documents=True), lambda path: ~future)
    if config.windows[0] is not None:
        yield window_probe(batch, config)
    if batch.document_ids is not None:
        last = last_document(batch.document_ids)
        yield Probe("sees other documents, or padding", exchange(batch, ~last), lambda path: last)


def window_probe(batch: Batch, config: ModelConfig) -> Probe:
    """The first quarter exchanged, which no window from further behind reaches."""
    T = batch.ids.shape[1]
    distance = torch.arange(T, device=batch.ids.device).expand_as(batch.ids) - max(1, T // 4)  # from the first one kept
    return Probe(
        "sees what lies before its window",
        exchange(batch, distance < 0),
        lambda path: (distance >= 0) & (distance >= reach(path, config)),
    )


def after_borders(ids: Tensor) -> Tensor:
    """True from a border on, (B, T): in the middle, after the first token, before the last one, a quarter in."""
    B, T = ids.shape
    borders = [max(1, border) for border in (T // 2, 1, T - 1, T // 4)]
    starts = torch.tensor([borders[row % len(borders)] for row in range(B)], device=ids.device)
    return torch.arange(T, device=ids.device) >= starts[:, None]


def reach(path: str, config: ModelConfig) -> float:
    """How many positions back a module can look through its own and all earlier windows."""
    segments = path.split(".")
    is_before_blocks = segments[0] == "embed" or path == "trunk.rotation"
    layers = 0 if is_before_blocks else int(segments[2]) + 1 if "blocks" in segments else config.num_layers
    return sum(float("inf") if window is None else window - 1 for window in config.windows[:layers])


def last_document(document_ids: Tensor) -> Tensor:
    """True in the last document of each row that is not padding, (B, T): it has all others of the row beside it."""
    return (document_ids == document_ids.amax(1, keepdim=True)) & (document_ids != PADDING)


def exchange(batch: Batch, changed: Tensor, *, new_documents: bool = False) -> Batch:
    """The batch with other tokens and positions where `changed` (B, T) says so, and another document if need be.

    Targets stay, so that the losses of what was not changed can be compared.
    """
    assert batch.positions is not None
    positions = torch.where(changed, batch.ids.shape[1] - 1 - batch.positions, batch.positions)
    document_ids = batch.document_ids
    if document_ids is not None and new_documents:
        document_ids = torch.where(changed, document_ids.amax() + 1, document_ids)
    return replace(batch, ids=other_tokens(batch.ids, changed), positions=positions, document_ids=document_ids)


def other_tokens(ids: Tensor, changed: Tensor) -> Tensor:
    """Other tokens of the batch, which are sure to exist, where `changed` says so; how far apart varies by position."""
    known = ids.unique()
    steps = 1 + torch.arange(ids.shape[1], device=ids.device) % max(1, len(known) - 1)
    ranks = torch.searchsorted(known, ids.contiguous())
    return torch.where(changed, known[(ranks + steps) % len(known)], ids)
