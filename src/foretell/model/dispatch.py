"""The choice of a kernel for each layer: once, when a model is created or loaded, or before it is trained.

Each kernel subclasses the plain form it replaces and shares its weights, so paths and keys stay the same.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from foretell.model.attention import EagerAttention, SDPAttention
from foretell.model.cpu_matmul import CPULinear, CPUTiedHead
from foretell.model.decoder import TiedHead
from foretell.model.norm import RMSNorm
from foretell.model.rms_norm import CPURMSNorm
from foretell.model.short_attention import MAX_LENGTH, DropoutAttention, ShortAttention
from foretell.model.surgery import recast, replace

ALIGNMENT = 128  # tokens


class AlignedTiedHead(TiedHead):
    """`TiedHead` for a GPU: its weight is padded with zeros to a multiple of ALIGNMENT, and their logits are cut off.

    Matrix units read rows whose length is a multiple of 16 bytes, and work on tiles of 64 or 128 columns. With GPT-2's
    50,257 tokens each row of the logits has a different alignment, and kernels that support this are slower. The
    stored weight, its key and its size on disk do not change.
    """

    def forward(self, input: Tensor) -> Tensor:
        V = len(self.weight)
        weight = F.pad(self.weight, (0, 0, 0, -V % ALIGNMENT))
        bias = None if self.bias is None else F.pad(self.bias, (0, -V % ALIGNMENT))
        return F.linear(input, weight, bias)[..., :V]


@dataclass(frozen=True)
class Use:
    """The intended use of a model: the device, the dtype of matrix products, the length of rows."""

    device: torch.device
    dtype: torch.dtype
    context_length: int
    is_training: bool = False


@dataclass(frozen=True)
class KernelRule:
    """A kernel, the plain form it replaces, and the uses in which it is faster."""

    plain: type[nn.Module]
    kernel: type[nn.Module]
    suits: Callable[[Use], bool]


RULES = (
    KernelRule(TiedHead, AlignedTiedHead, lambda use: use.is_training and use.device.type == "cuda"),
    KernelRule(TiedHead, CPUTiedHead, lambda use: use.device.type == "cpu" and not use.is_training),
    KernelRule(nn.Linear, CPULinear, lambda use: use.device.type == "cpu" and not use.is_training),
    KernelRule(RMSNorm, CPURMSNorm, lambda use: use.device.type == "cpu"),
    KernelRule(EagerAttention, DropoutAttention, lambda use: use.is_training and use.device.type == "cpu"),
    KernelRule(
        SDPAttention,
        ShortAttention,
        lambda use: (
            use.is_training
            and use.device.type == "cpu"
            and use.dtype == torch.bfloat16
            and use.context_length <= MAX_LENGTH
        ),
    ),
)


def choose_kernels(model: nn.Module, use: Use) -> list[str]:
    """Give every layer the fastest form for this use, or the plain one if no kernel suits; returns the changed paths.

    Layers of other classes, such as a user's, do not change.
    """
    paths = [path for path, module in model.named_modules() if path and type(module) in REPLACEABLE]
    return replace(model, paths, lambda module: best_form(module, use)).paths if paths else []


def best_form(module: nn.Module, use: Use) -> nn.Module:
    """The layer itself, or a faster form that shares its weights."""
    plain = plain_form(type(module))
    kind = next((rule.kernel for rule in RULES if rule.plain is plain and rule.suits(use)), plain)
    return module if type(module) is kind else recast(module, kind)


def plain_form(kind: type[nn.Module]) -> type[nn.Module]:
    """The plain class that a kernel class replaces; any other class is returned unchanged."""
    return REPLACEABLE.get(kind, kind)


REPLACEABLE = {kind: rule.plain for rule in RULES for kind in (rule.plain, rule.kernel)}  # with the plain form of each
