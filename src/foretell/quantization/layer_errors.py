"""The error that quantisation adds to the output of each layer, for the inputs that the plain layer has."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from foretell.model.decoder import Decoder, logit_chunks
from foretell.paths import starred

TOKENS_AT_ONCE = 2048


@dataclass(frozen=True)
class LayerError:
    """|q - y| / |y| over all outputs y of a layer on a text, and q of its quantised form for the same inputs."""

    path: str
    error: float


@dataclass(frozen=True)
class KindError:
    """Errors of the layers whose paths differ in the number of the block alone."""

    kind: str
    count: int
    mean: float
    largest: float


class SquaredErrors:
    """Sums of squares of a layer's outputs and of the differences of its quantised form."""

    def __init__(self, quantized: nn.Module):
        self.quantized = quantized
        self.outputs = self.differences = 0.0

    def add(self, module: nn.Module, given: tuple[Tensor, ...], output: Tensor) -> None:
        """A forward hook of the plain layer."""
        self.outputs += float(output.double().square().sum())
        self.differences += float((self.quantized(*given) - output).double().square().sum())

    @property
    def relative(self) -> float:
        return (self.differences / self.outputs) ** 0.5 if self.outputs else 0.0


@torch.no_grad()
def layer_errors(
    plain: Decoder, quantized: Decoder, paths: Sequence[str], rows: Tensor, progress: Callable[[int, int], None]
) -> list[LayerError]:
    """The errors of the layers at these paths on ids (N, T), in the order of the paths."""
    errors = {path: SquaredErrors(quantized.get_submodule(path)) for path in paths}
    done = 0
    with ExitStack() as hooks:
        for path, each in errors.items():
            hooks.enter_context(plain.get_submodule(path).register_forward_hook(each.add))
        for part in rows.to(plain.device).split(max(1, TOKENS_AT_ONCE // rows.shape[1])):
            for _ in logit_chunks(plain, plain.hidden(part).flatten(0, 1)):
                pass
            done += part.numel()
            progress(done, rows.numel())
    return [LayerError(path, each.relative) for path, each in errors.items()]


def by_kind(errors: Sequence[LayerError]) -> list[KindError]:
    """Mean and largest error of each kind of layer, in the order of the model."""
    kinds: dict[str, list[float]] = {}
    for each in errors:
        kinds.setdefault(starred(each.path), []).append(each.error)
    return [KindError(kind, len(values), sum(values) / len(values), max(values)) for kind, values in kinds.items()]
