"""The attention kernel for training equals the explicit core, including its gradients, with and without dropout."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import Tensor

from foretell.config.model import ModelConfig
from foretell.config.section import make_section
from foretell.model import short_attention
from foretell.model.attention import EagerAttention
from foretell.model.dropout import Dropout, DropoutRNG
from foretell.model.mask import Mask
from foretell.model.memory_cache import full_mask
from foretell.model.short_attention import DropoutAttention, ShortAttention

B, H, T, E = 3, 4, 7, 6


def inputs(num_kv_heads: int = H, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = [(B, H, T, E), (B, num_kv_heads, T, E), (B, num_kv_heads, T, E)]
    return [torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype).requires_grad_() for shape in shapes]


def config(num_kv_heads: int) -> ModelConfig:
    sizes = {"num_layers": 1, "num_heads": H, "head_width": E, "width": 24, "context_length": T, "vocab_size": 5}
    return make_section(ModelConfig, {**sizes, "num_kv_heads": num_kv_heads})


def output_and_gradients(core, heads: list[Tensor]) -> list[Tensor]:
    """The output and the gradient of each input, for a loss that weights every element differently."""
    output = core(*heads)
    loss_weights = torch.linspace(-1, 1, output.numel(), dtype=output.dtype).view(output.shape)
    return [output.detach(), *torch.autograd.grad((output * loss_weights).sum(), heads)]


DOCUMENTS = torch.tensor([[0, 0, 0, 1, 1, 2, 2], [0, 0, 0, 0, 0, 1, -1], [0] * T])
MASKS = {
    "causal": Mask(T, T),
    "open": Mask(T, T, causal=False),
    "padded": full_mask(torch.arange(T)[None], T, [7, 3, 1]),
    "padded memory": full_mask(torch.arange(T)[None], 1, [7, 3, 1]),
    "window": Mask(T, T, window=3),
    "documents": Mask(T, T, query_document_ids=DOCUMENTS, key_document_ids=DOCUMENTS),
}


def attend(query: Tensor, key: Tensor, value: Tensor, mask: Mask = MASKS["causal"]) -> Tensor:
    return short_attention.short_attention(query, key, value, mask)


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
@pytest.mark.parametrize("num_kv_heads", [4, 2, 1])
@pytest.mark.parametrize("rows_at_once", [0.5, 1, 2, 3])
def test_output_and_gradients_equal_the_explicit_core(
    mask: Mask, num_kv_heads: int, rows_at_once: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(short_attention, "BYTES_AT_ONCE", int(rows_at_once * H * T * T * 8))
    monkeypatch.setattr(short_attention, "QUERIES_AT_ONCE", 3)
    explicit = EagerAttention(config(num_kv_heads))
    expected = output_and_gradients(lambda *heads: explicit(*heads, mask), inputs(num_kv_heads))
    actual = output_and_gradients(partial(attend, mask=mask), inputs(num_kv_heads))
    for ours, reference in zip(actual, expected, strict=True):
        torch.testing.assert_close(ours, reference, rtol=1e-12, atol=1e-12)


def dropped_out(kind: type[EagerAttention], rate: float = 0.3) -> EagerAttention:
    """A core with dropout, with the counters of a later step and micro-batch."""
    core = kind(config(H).replaced(dropout={"attention": rate}))
    assert isinstance(core.dropout, Dropout)
    core.dropout.bind(DropoutRNG(seed=3, step=5, first_row=2), "a.core.dropout")
    return core


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
@pytest.mark.parametrize("rows_at_once", [0.25, 0.75, 1, 2])
def test_with_dropout_the_same_weights_are_dropped_as_in_the_explicit_core(
    mask: Mask, rows_at_once: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(short_attention, "BYTES_AT_ONCE", int(rows_at_once * H * T * T * 8))
    monkeypatch.setattr(short_attention, "QUERIES_AT_ONCE", 3)
    expected = output_and_gradients(partial(dropped_out(EagerAttention), mask=mask), inputs())
    actual = output_and_gradients(partial(dropped_out(DropoutAttention), mask=mask), inputs())
    for ours, reference in zip(actual, expected, strict=True):
        torch.testing.assert_close(ours, reference, rtol=1e-12, atol=1e-12)
    without = output_and_gradients(partial(attend, mask=mask), inputs())
    assert not torch.allclose(actual[0], without[0], rtol=1e-3)


def test_with_dropout_the_kernel_is_for_training_without_hooks_inside(monkeypatch: pytest.MonkeyPatch) -> None:
    passes: list[Dropout] = []
    kernel = short_attention.short_attention
    monkeypatch.setattr(short_attention, "short_attention", lambda *given: passes.append(given[-1]) or kernel(*given))
    core, mask = dropped_out(DropoutAttention), MASKS["causal"]
    core(*inputs(), mask)
    assert passes == [core.dropout]
    core(*(heads.detach() for heads in inputs()), mask)
    with monkeypatch.context() as context:
        context.setattr(short_attention, "SHORT", T - 1)
        core(*inputs(), Mask(T, T, window=2))
    core.eval()(*inputs(), mask)
    weights: list[Tensor] = []
    with core.dropout.register_forward_hook(lambda _, given, output: weights.append(output)):
        core.train()(*inputs(), mask)
    assert len(passes) == 1
    assert [each.shape for each in weights] == [(B, H, T, T)]


def test_bfloat16_is_exact_up_to_rounding() -> None:
    exact = output_and_gradients(attend, inputs())
    rounded = output_and_gradients(attend, inputs(dtype=torch.bfloat16))
    for ours, reference in zip(rounded, exact, strict=True):
        torch.testing.assert_close(ours.double(), reference, rtol=0, atol=0.03 * float(reference.abs().max()))


def test_heads_of_the_output_join_without_a_copy() -> None:
    query, key, value = inputs()
    assert attend(query, key, value).transpose(1, 2).is_contiguous()


def test_a_memory_of_another_length_equals_the_explicit_core() -> None:
    heads = [inputs()[0], *(heads.detach()[:, :, :4].requires_grad_() for heads in inputs()[1:])]
    mask = Mask(T, 4, causal=False)
    expected = output_and_gradients(lambda *heads: EagerAttention(config(H))(*heads, mask), heads)
    for ours, reference in zip(output_and_gradients(partial(attend, mask=mask), heads), expected, strict=True):
        torch.testing.assert_close(ours, reference, rtol=1e-12, atol=1e-12)


def test_the_core_uses_the_kernel_only_with_gradients_and_for_windows_only_in_short_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    used_dtypes: list[torch.dtype] = []

    kernel = short_attention.short_attention

    def recording_kernel(query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
        used_dtypes.append(query.dtype)
        return kernel(query, key, value, mask)

    monkeypatch.setattr(short_attention, "short_attention", recording_kernel)
    core = ShortAttention(config(H))
    core(*inputs(dtype=torch.bfloat16), Mask(T, T))
    core(*inputs(dtype=torch.float16), Mask(T, T, window=2))
    monkeypatch.setattr(short_attention, "SHORT", T - 1)
    core(*inputs(dtype=torch.bfloat16), Mask(T, T, window=2))
    core(*inputs(), Mask(T, T, causal=False))
    core(*[heads.detach() for heads in inputs(dtype=torch.bfloat16)], Mask(T, T))
    assert used_dtypes == [torch.bfloat16, torch.float16, torch.float64]
