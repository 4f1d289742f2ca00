"""Norms in compiled code: a part of fused blocks and passes, and as a module with the same bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from foretell.model.kernels.fast_decoder import MAX_ROWS
from foretell.model.kernels.fast_linear import Sources
from foretell.model.kernels.pass_program import NORMED, compute_norm
from foretell.model.kernels.threads import LINE, run_on_threads
from foretell.model.norm import LayerNorm, RMSNorm
from foretell.model.rms_norm import CPURMSNorm
from foretell.model.surgery import recast


class FusedNorm:
    """A norm for compiled code, with its scale and shift in float32."""

    def __init__(self, norm: Any, width: int):
        kind = NORMS[type(norm)]
        weight, bias = (getattr(norm, name, None) for name in ("weight", "bias"))
        self.sources = Sources(part for part in (weight, bias) if part is not None)
        self.scale = torch.ones(width) if weight is None else weight.detach().float().contiguous()
        self.shift = torch.full((width,), -0.0) if bias is None else bias.detach().float().contiguous()
        self.values = (kind, self.scale.data_ptr(), self.shift.data_ptr(), float(norm.eps) if kind else 0.0)


class FewRowsNorm(nn.Module):
    """A norm that few rows read in compiled code; its other base class is the plain norm."""

    fused: FusedNorm

    def forward(self, x: Tensor) -> Tensor:
        width, dtypes = x.shape[-1], (torch.float32, torch.bfloat16)
        is_few = x.numel() <= MAX_ROWS * width and x.dtype in dtypes and not torch.is_grad_enabled()
        if not is_few or not self.fused.sources.are_current():
            return super().forward(x)
        x = x.contiguous()
        out = torch.empty_like(x)
        sizes = (x.data_ptr(), out.data_ptr(), x.numel() // width, width, x.dtype == torch.bfloat16)
        call = np.array((0, 0, 0, self.fused.values, *sizes), NORMED)
        run_on_threads(compute_norm, call, 1, x.numel() + LINE, is_padded=False, is_small=True)
        return out


# torch names the argument `input` here, and `x` in RMSNorm
# pyrefly: ignore[inconsistent-inheritance]
class FewRowsLayerNorm(FewRowsNorm, LayerNorm):
    """`LayerNorm`, compiled for few rows."""


class FewRowsRMSNorm(FewRowsNorm, CPURMSNorm):
    """`RMSNorm`, compiled for few rows."""


NORMS = {nn.Identity: 0, LayerNorm: 1, FewRowsLayerNorm: 1, RMSNorm: 2, CPURMSNorm: 2, FewRowsRMSNorm: 2}


def can_watch(norm: nn.Module) -> bool:
    """True if changes of a norm's weights can be detected."""
    return not any(weight.is_inference() for weight in norm.parameters())


def few_rows_norm(norm: nn.Module, width: int) -> nn.Module:
    """A norm of NORMS in the form for few rows, which shares its weights; no norm is left as it is."""
    if isinstance(norm, nn.Identity):
        return norm
    form = recast(norm, FewRowsLayerNorm if isinstance(norm, LayerNorm) else FewRowsRMSNorm)
    form.fused = FusedNorm(norm, width)
    return form
