"""The mask check of an encoder-decoder: what each module may and may not depend on, tried on a real batch.

A later target must change nothing earlier, and no module of the encoder. Padding of the source must change nothing.
Another source must change the target's losses, or the decoder does not read it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from foretell.device import autocast
from foretell.errors import TrainingError
from foretell.training.mask_check import ROWS, Probe, after_borders, check_probes, other_tokens
from foretell.translation.batches import PairBatch, PairObjective
from foretell.translation.encoder_decoder import EncoderDecoder, Source


def check_pair_mask(model: EncoderDecoder, batch: PairBatch, dtype: torch.dtype = torch.float32) -> None:
    """Refuse to train a model that leaks or does not read its source; a `TrainingError` names the module."""
    batch = with_padding(batch.rows(0, ROWS), model.config.context_length)
    objective = PairObjective(model)
    check_probes(objective, batch, probes_of(batch), dtype)
    check_source_is_read(objective, batch, dtype)


def with_padding(batch: PairBatch, context_length: int) -> PairBatch:
    """The batch with two more columns of padding after the source, as far as the context has room."""
    columns = min(2, context_length - batch.source.ids.shape[1])
    ids = torch.nn.functional.pad(batch.source.ids, (0, columns))
    return replace(batch, source=Source(ids, batch.source.lengths))


def probes_of(batch: PairBatch) -> list[Probe]:
    """Nothing exchanged; then later targets, and the source's padding."""
    source, future = batch.source, after_borders(batch.ids)
    lengths = torch.tensor(source.lengths, device=batch.ids.device)
    is_real = torch.arange(source.ids.shape[1], device=batch.ids.device) < lengths[:, None]  # (B, S)
    everywhere = torch.ones_like(batch.ids, dtype=torch.bool)
    later = replace(batch, ids=other_tokens(batch.ids, future))
    padding = replace(batch, source=replace(source, ids=other_tokens(source.ids, ~is_real)))
    return [
        Probe("returns another output for the same batch", batch, by_side(is_real, everywhere)),
        Probe("sees the future", later, by_side(is_real, ~future)),
        Probe("sees the source's padding", padding, by_side(is_real, everywhere)),
    ]


def by_side(encoder: Tensor, decoder: Tensor) -> Callable[[str], Tensor]:
    """The protected positions in the modules of the encoder, (B, S), and in all others, (B, T)."""
    return lambda path: encoder if path.partition(".")[0] == "encoder" else decoder


@torch.no_grad()
def check_source_is_read(objective: PairObjective, batch: PairBatch, dtype: torch.dtype) -> None:
    """Refuse a model whose losses are the same for another source."""
    everything = torch.ones_like(batch.source.ids, dtype=torch.bool)
    other = replace(batch, source=replace(batch.source, ids=other_tokens(batch.source.ids, everything)))
    with autocast(batch.ids.device, dtype):
        before, after = (objective.token_losses(each) for each in (batch, other))
    if torch.equal(before, after) and not torch.equal(batch.source.ids, other.source.ids):
        raise TrainingError(
            "the losses are the same for another source, so no step was taken: the decoder does not read the encoder; "
            "look at trunk.blocks.0.cross_attention and at the memory that it gets"
        )
