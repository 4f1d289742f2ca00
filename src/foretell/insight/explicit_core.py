"""An attention core that takes one step at a time, so that a hook can look at each one or put another in its place."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from foretell.insight import derive
from foretell.model.decoder import Decoder
from foretell.model.mask import Mask


class StagedAttention(nn.Module):
    """softmax(Q K' / sqrt(E)) V, every step the output of a module of its name.

    It stands in for another core, whose dropout of the weights it keeps, where that has one.
    """

    def __init__(self, replaced: nn.Module):
        super().__init__()
        self.scores, self.scaled, self.masked, self.weights = (nn.Identity() for _ in derive.ATTENTION)
        self.dropout = dict(replaced.named_children()).get("dropout", nn.Identity())
        self.train(replaced.training)

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
        with torch.autocast(query.device.type, enabled=False):
            scores = self.scores(derive.multiply(query, key))  # (B, H, T, S)
            scaled = self.scaled(derive.scale(scores, query.shape[-1]))
            weights = self.weights(derive.normalize(self.masked(derive.hide(scaled, mask))))
            return derive.mix(self.dropout(weights), value).to(value.dtype)  # (B, H, T, E)


@contextmanager
def explicit_cores(decoder: Decoder, paths: list[str]) -> Generator[None]:
    """The cores at these paths replaced by explicit ones while the block runs, and put back after it."""
    replaced = {path: decoder.get_submodule(path) for path in paths}
    try:
        for path, core in replaced.items():
            decoder.set_submodule(path, StagedAttention(core))
        yield
    finally:
        for path, core in replaced.items():
            decoder.set_submodule(path, core)
