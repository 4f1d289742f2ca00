"""Which modules handed out the same, to the bit: a digest of each output, so that none of them has to be kept."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from foretell.data.batch import Batch
from foretell.training.objective import Objective

POSITION_AXIS = -2  # of all that a module hands out: (B, T, D), (B, H, T, E), (B, H, T, S)

Fingerprints = list[tuple[str, bytes]]  # a module's path and a digest of what it handed out, in the order of the calls


@dataclass(frozen=True)
class Probe:
    """A batch in which something was exchanged, and where that must not show."""

    finding: str  # what is to be said of a module in which it shows
    batch: Batch
    protected: Callable[[str], Tensor]  # (B, T) bool, for a module's path


def fingerprints(objective: Objective, batch: Batch, probes: list[Probe], dtype: torch.dtype) -> list[Fingerprints]:
    """For each probe, the digests of what it protects in one pass over a batch, from the embedding to the losses."""
    found: list[Fingerprints] = [[] for _ in probes]

    def remember(path: str, value: Any) -> None:
        for probe, prints in zip(probes, found, strict=True):
            prints.append((path, digest(value, probe.protected(path))))

    def hook(path: str, _: nn.Module, __: tuple[Any, ...], output: Any) -> None:
        for value in output if isinstance(output, tuple) else (output,):
            # What has no axis of positions shows its leaks in what is made of it
            if isinstance(value, Tensor) and value.dim() >= 3 and value.shape[POSITION_AXIS] == batch.ids.shape[1]:
                remember(path, value)

    with ExitStack() as stack:
        for path, module in objective.decoder.named_modules():
            if path.partition(".")[0] in ("embed", "trunk"):  # the head gets rows of a chunk; the losses tell of it
                stack.enter_context(module.register_forward_hook(partial(hook, path)))
        with torch.autocast(batch.ids.device.type, dtype=torch.bfloat16, enabled=dtype == torch.bfloat16):
            losses = objective.token_losses(batch)
    remember("head", losses[..., None])  # (B, T, 1)
    return found


def digest(value: Tensor, protected: Tensor) -> bytes:
    """A hash of the bits of a value at the protected positions (B, T); -0 counts as 0."""
    B, T = protected.shape
    by_position = value.movedim(POSITION_AXIS, 1)  # (B or 1, T, ...)
    kept = by_position.expand(B, T, *by_position.shape[2:])[protected] + 0.0
    exact = kept.to(torch.promote_types(kept.dtype, torch.float32))  # numpy has no bfloat16
    return hashlib.blake2b(exact.cpu().numpy().tobytes(), digest_size=16).digest()
