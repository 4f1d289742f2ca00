"""The mask check: before training, run the model on a real batch and refuse it if it sees tokens that it must not see.

Some tokens are replaced, and every value that must not depend on them must stay bit-identical. With a correct mask it
does, because both passes have the same shapes: the kernels add the same products in the same order, and a hidden key
adds exp(-infinity) = 0 times a finite value, which changes no sum. Tested on a CPU in float32 and under bfloat16
autocast, with and without a mask tensor, at 16 lengths around the block sizes of the fused kernel.

Only a digest of each module's output is kept.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from foretell.config.model import ModelConfig
from foretell.data.batch import PADDING, Batch
from foretell.errors import TrainingError
from foretell.model.decoder import Decoder
from foretell.model.structure import Source, Value, model_structure
from foretell.system.device import autocast
from foretell.training.objective import Objective

ROWS, TOKENS = 4, 2048  # maxima; each row has a different border between past and future

Digests = list[tuple[str, bytes]]  # module path and digest of its output, in the order of the calls


@dataclass(frozen=True)
class Probe:
    """A batch with replaced tokens, and the positions that must not depend on them."""

    finding: str  # the error text for a module that depends on them
    batch: Any  # as the objective takes it
    protected: Callable[[str], Tensor]  # module path -> (B, T) bool


def check_mask(decoder: Decoder, batch: Batch, dtype: torch.dtype = torch.float32) -> None:
    """Refuse to train a model that leaks: a `TrainingError` names the first leaking module in the order of the pass.

    Replaced tokens and positions after a border must not change values before it; tokens before a window must not
    change values after it; and other documents (padding is one too) must not change the values of a document. Products
    run in `dtype`, as in training, and in the model's current mode: dropout masks depend only on counters. A narrow
    window after a layer without a window cannot be checked from outside, and is not.
    """
    batch = probed_rows(batch)
    check_probes(Objective(decoder), batch, list(iter_probes(batch, decoder.config)), dtype)


@torch.no_grad()
def check_probes(objective: Objective, batch: Any, probes: list[Probe], dtype: torch.dtype) -> None:
    """Raise a `TrainingError` that names the first module with a changed value that must not change."""
    before = digest_outputs(objective, batch, probes, dtype)
    for probe, expected in zip(probes, before, strict=True):
        actual = digest_outputs(objective, probe.batch, [probe], dtype)[0]
        pairs = zip(expected, actual, strict=True)
        leak = next((path for (path, digest), (_, other) in pairs if digest != other), None)
        if leak is not None:
            raise TrainingError(
                f"{leak} {probe.finding}, so no step was taken: such a model reaches a low loss by reading its "
                "targets. Check that module, and the mask and positions that it gets"
            )


def probed_rows(batch: Batch) -> Batch:
    """A few rows of the batch, with explicit positions, so that these can be changed too."""
    chosen = batch.rows(0, max(1, min(ROWS, TOKENS // batch.ids.shape[1])))
    if chosen.positions is not None:
        return chosen
    positions = torch.arange(batch.ids.shape[1], device=batch.ids.device)
    return replace(chosen, positions=positions.expand_as(chosen.ids))


def iter_probes(batch: Batch, config: ModelConfig) -> Iterator[Probe]:
    """The probes: nothing replaced; the future; the tokens before every window; other documents."""
    everything = torch.ones_like(batch.ids, dtype=torch.bool)
    yield Probe("returns different outputs for the same batch", batch, lambda path: everything)
    future = after_borders(batch.ids)
    yield Probe("sees the future", exchange(batch, future, new_documents=True), lambda path: ~future)
    if config.windows[0] is not None:
        yield window_probe(batch, config)
    if batch.document_ids is not None:
        last = (batch.document_ids == batch.document_ids.amax(1, keepdim=True)) & (batch.document_ids != PADDING)
        yield Probe("sees other documents, or padding", exchange(batch, ~last), lambda path: last)


def window_probe(batch: Batch, config: ModelConfig) -> Probe:
    """A probe with the first quarter replaced; positions whose window begins later must not see it."""
    T = batch.ids.shape[1]
    distance = torch.arange(T, device=batch.ids.device).expand_as(batch.ids) - max(1, T // 4)  # from the first one kept
    return Probe(
        "sees what lies before its window",
        exchange(batch, distance < 0),
        lambda path: (distance >= 0) & (distance >= reach(path, config)),
    )


def after_borders(ids: Tensor) -> Tensor:
    """True from a border on, (B, T). Borders: the middle, after the first token, before the last, after a quarter."""
    B, T = ids.shape
    borders = [max(1, border) for border in (T // 2, 1, T - 1, T // 4)]
    starts = torch.tensor([borders[row % len(borders)] for row in range(B)], device=ids.device)
    return torch.arange(T, device=ids.device) >= starts[:, None]


def reach(path: str, config: ModelConfig) -> float:
    """The number of positions back that a module can see through its window and those in earlier layers."""
    segments = path.split(".")
    is_before_blocks = segments[0] == "embed" or path == "trunk.rotation"
    layers = 0 if is_before_blocks else int(segments[2]) + 1 if "blocks" in segments else config.num_layers
    return sum(float("inf") if window is None else window - 1 for window in config.windows[:layers])


def exchange(batch: Batch, changed: Tensor, *, new_documents: bool = False) -> Batch:
    """The batch with other tokens and positions where `changed` (B, T) is true, optionally in a new document.

    Targets do not change, so the losses at unchanged positions can be compared.
    """
    assert batch.positions is not None
    positions = torch.where(changed, batch.ids.shape[1] - 1 - batch.positions, batch.positions)
    document_ids = batch.document_ids
    if document_ids is not None and new_documents:
        document_ids = torch.where(changed, document_ids.amax() + 1, document_ids)
    return replace(batch, ids=other_tokens(batch.ids, changed), positions=positions, document_ids=document_ids)


def other_tokens(ids: Tensor, changed: Tensor) -> Tensor:
    """Replace tokens where `changed` is true by others of the batch, at a distance that varies by position."""
    known = ids.unique()
    steps = 1 + torch.arange(ids.shape[1], device=ids.device) % max(1, len(known) - 1)
    ranks = torch.searchsorted(known, ids.contiguous())
    return torch.where(changed, known[(ranks + steps) % len(known)], ids)


def digest_outputs(objective: Objective, batch: Any, probes: list[Probe], dtype: torch.dtype) -> list[Digests]:
    """For each probe, the digests of its protected values, from the embedding to the losses; in one pass."""
    collected: list[Digests] = [[] for _ in probes]

    def collect(path: str, value: Tensor, position_axis: int) -> None:
        for probe, digests in zip(probes, collected, strict=True):
            digests.append((path, digest_protected(value, position_axis, probe.protected(path))))

    def hook(values: list[Value], _: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        for value in values:
            collect(value.module, value.read(inputs, output), value.dims.index("T"))

    with ExitStack() as stack:
        for path, values in checked_values(objective.decoder).items():
            module = objective.decoder.get_submodule(path)
            stack.enter_context(module.register_forward_hook(partial(hook, values)))
        with autocast(batch.ids.device, dtype):
            losses = objective.token_losses(batch)
    collect("head", losses[..., None], 1)  # (B, T, 1)
    return collected


def checked_values(decoder: Decoder) -> dict[str, list[Value]]:
    """Outputs with an axis of positions, by module path; the losses cover the head.

    A leak in a value without such an axis appears in values computed from it.
    """
    by_module: dict[str, list[Value]] = {}
    for name, value in model_structure(decoder).values.items():
        is_in_head = name.partition(".")[0] == "head"
        if value.source in (Source.OUTPUT, Source.PART) and "T" in value.dims and not is_in_head:
            by_module.setdefault(value.module, []).append(value)
    return by_module


def digest_protected(value: Tensor, position_axis: int, protected: Tensor) -> bytes:
    """A hash of the bits of a value at the protected positions (B, T); -0 counts as 0."""
    B, T = protected.shape
    by_position = value.movedim(position_axis, 1)  # (B or 1, T, ...)
    kept = by_position.expand(B, T, *by_position.shape[2:])[protected] + 0.0
    exact = kept.to(torch.promote_types(kept.dtype, torch.float32))  # numpy has no bfloat16
    return hashlib.blake2b(exact.cpu().numpy().tobytes(), digest_size=16).digest()
