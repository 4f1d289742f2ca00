"""The kernels that are chosen for each use of a model."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from foretell.config.model import ModelConfig
from foretell.model.attention import EagerAttention, SDPAttention
from foretell.model.decoder import Decoder, TiedHead
from foretell.model.dispatch import AlignedTiedHead, Use, choose_kernels
from foretell.model.init import make_decoder
from foretell.model.norm import RMSNorm
from foretell.model.rms_norm import CPURMSNorm
from foretell.model.short_attention import MAX_LENGTH, DropoutAttention, ShortAttention

SIZES = {"num_layers": 2, "num_heads": 2, "width": 8, "context_length": 8, "vocab_size": 11, "norm": "rmsnorm"}
CPU, CUDA = torch.device("cpu"), torch.device("cuda")
IDS = torch.tensor([[1, 2, 3, 4]])


def make_model(**changes):
    return make_decoder(ModelConfig.model_validate({**SIZES, **changes}), seed=1)


def kinds(model: nn.Module) -> set[type[nn.Module]]:
    return {type(module) for module in model.modules()}


@pytest.mark.parametrize(
    ("use", "norm", "core"),
    [
        (Use(CPU, torch.float32, 8), CPURMSNorm, SDPAttention),
        (Use(CPU, torch.bfloat16, 8), CPURMSNorm, SDPAttention),
        (Use(CPU, torch.float32, 8, is_training=True), CPURMSNorm, SDPAttention),
        (Use(CPU, torch.bfloat16, 8, is_training=True), CPURMSNorm, ShortAttention),
        (Use(CPU, torch.bfloat16, MAX_LENGTH + 1, is_training=True), CPURMSNorm, SDPAttention),
        (Use(CUDA, torch.bfloat16, 8, is_training=True), RMSNorm, SDPAttention),
        (Use(CUDA, torch.float32, 8), RMSNorm, SDPAttention),
    ],
)
def test_each_use_gets_its_kernels_even_after_another_use(use, norm, core):
    model = make_model()
    choose_kernels(model, Use(CPU, torch.bfloat16, 8, is_training=True))
    choose_kernels(model, use)
    assert kinds(model) & {RMSNorm, CPURMSNorm} == {norm}
    assert kinds(model) & {SDPAttention, ShortAttention} == {core}


def test_a_new_decoder_has_cpu_kernels():
    assert RMSNorm not in kinds(make_model())


def test_parameters_and_their_paths_are_kept():
    model = make_model()
    before = dict(model.named_parameters())
    choose_kernels(model, Use(CUDA, torch.bfloat16, 8))
    after = dict(model.named_parameters())
    assert list(after) == list(before)
    assert all(after[path] is before[path] for path in before)


@pytest.mark.parametrize(
    ("use", "core"),
    [
        (Use(CPU, torch.bfloat16, 8, is_training=True), DropoutAttention),
        (Use(CPU, torch.float32, 4096, is_training=True), DropoutAttention),
        (Use(CPU, torch.float32, 8), EagerAttention),
        (Use(CUDA, torch.bfloat16, 8, is_training=True), EagerAttention),
    ],
)
def test_attention_with_dropout_has_a_kernel_for_training_on_a_cpu(use, core):
    model = make_model(dropout={"attention": 0.5})
    choose_kernels(model, use)
    assert kinds(model) & {EagerAttention, DropoutAttention} == {core}


def test_a_subclass_of_a_layer_is_not_replaced():
    class HalfNorm(RMSNorm):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) / 2

    model = make_model()
    model.trunk.norm = HalfNorm(8, eps=1e-6)
    choose_kernels(model, Use(CUDA, torch.float32, 8))
    assert isinstance(model.trunk.norm, HalfNorm)


def test_kernels_give_the_logits_of_the_plain_layers():
    model = make_model().eval()
    fast = model(IDS)
    choose_kernels(model, Use(CUDA, torch.float32, 8))  # the plain layers run on a CPU too
    torch.testing.assert_close(model(IDS), fast, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("use", "head"),
    [(Use(CUDA, torch.bfloat16, 8, is_training=True), AlignedTiedHead), (Use(CUDA, torch.bfloat16, 8), TiedHead)],
)
def test_on_a_gpu_the_tied_head_is_aligned_for_training(use: Use, head: type[nn.Module]) -> None:
    model = make_model()
    choose_kernels(model, use)
    assert type(model.head) is head


def logits_and_gradients(model: Decoder) -> list[Tensor]:
    logits = model(IDS)
    logits.square().sum().backward()
    return [logits, *(parameter.grad for parameter in model.parameters() if parameter.grad is not None)]


def test_an_aligned_head_has_the_logits_the_gradients_and_the_keys_of_a_plain_one() -> None:
    plain, aligned = make_model(bias={"head": True}), make_model(bias={"head": True})
    choose_kernels(aligned, Use(CUDA, torch.float32, 8, is_training=True))
    assert aligned.state_dict().keys() == plain.state_dict().keys()
    for value, expected in zip(logits_and_gradients(aligned), logits_and_gradients(plain), strict=True):
        torch.testing.assert_close(value, expected, rtol=1e-5, atol=1e-6)
