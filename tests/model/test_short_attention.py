"""The form of attention for short rows in training equals the explicit core, gradients included."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from foretell.config import ModelConfig, make_section
from foretell.model.attention import EagerAttention
from foretell.model.kernels import short_attention
from foretell.model.kernels.short_attention import ShortAttention, short_causal_attention
from foretell.model.mask import Mask

B, H, T, E = 3, 4, 7, 6


def inputs(num_kv_heads: int = H, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = [(B, H, T, E), (B, num_kv_heads, T, E), (B, num_kv_heads, T, E)]
    return [torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype).requires_grad_() for shape in shapes]


def config(num_kv_heads: int) -> ModelConfig:
    sizes = {"num_layers": 1, "num_heads": H, "head_width": E, "width": 24, "context_length": T, "vocab_size": 5}
    return make_section(ModelConfig, {**sizes, "num_kv_heads": num_kv_heads})


def outcome(core, heads: list[Tensor]) -> list[Tensor]:
    """The output and the gradient of each input, for a loss that weighs every element differently."""
    mixed = core(*heads)
    weights = torch.linspace(-1, 1, mixed.numel(), dtype=mixed.dtype).view(mixed.shape)
    return [mixed.detach(), *torch.autograd.grad((mixed * weights).sum(), heads)]


@pytest.mark.parametrize("num_kv_heads", [4, 2, 1])
@pytest.mark.parametrize("rows_at_once", [1, 2, 3])
def test_it_equals_the_explicit_core_with_its_gradients(
    num_kv_heads: int, rows_at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(short_attention, "WEIGHTS_AT_ONCE", rows_at_once * H * T * T)
    explicit = EagerAttention(config(num_kv_heads))
    expected = outcome(lambda *heads: explicit(*heads, Mask(T, T)), inputs(num_kv_heads))
    for found, wanted in zip(outcome(short_causal_attention, inputs(num_kv_heads)), expected, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)


def test_in_bfloat16_it_is_within_its_rounding_of_the_exact_result() -> None:
    exact = outcome(short_causal_attention, inputs())
    rounded = outcome(short_causal_attention, inputs(dtype=torch.bfloat16))
    for found, wanted in zip(rounded, exact, strict=True):
        torch.testing.assert_close(found.double(), wanted, rtol=0, atol=0.03 * float(wanted.abs().max()))


def test_its_output_joins_heads_without_a_copy() -> None:
    assert short_causal_attention(*inputs()).transpose(1, 2).is_contiguous()


def test_the_core_uses_it_where_gradients_are_needed_and_the_mask_is_causal(monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[torch.dtype] = []

    def noticed(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        used.append(query.dtype)
        return short_causal_attention(query, key, value)

    monkeypatch.setattr(short_attention, "short_causal_attention", noticed)
    core = ShortAttention(config(H))
    core(*inputs(dtype=torch.bfloat16), Mask(T, T))
    core(*inputs(dtype=torch.bfloat16), Mask(T, T, window=2))
    core(*[heads.detach() for heads in inputs(dtype=torch.bfloat16)], Mask(T, T))
    assert used == [torch.bfloat16]
