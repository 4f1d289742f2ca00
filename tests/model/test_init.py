"""Initial weights: GPT-2's statistics, determined by the seed alone."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from foretell.config.model import ModelConfig
from foretell.config.section import make_section
from foretell.model.decoder import Decoder
from foretell.model.init import make_decoder, with_vocabulary
from foretell.model.presets import preset_config

SHAPE = {
    "num_layers": 8,
    "num_heads": 4,
    "width": 128,
    "context_length": 256,
    "vocab_size": 500,
    "bias": {"head": True},
}


@pytest.fixture(scope="module")
def weights() -> dict[str, Tensor]:
    return make_decoder(make_section(ModelConfig, SHAPE), seed=1).state_dict()


def expected_deviation(path: str) -> float:
    if path == "embed.position.weight":
        return 0.01
    is_residual_output = path.endswith(("attention.output.weight", "feedforward.down.weight"))
    return 0.02 / math.sqrt(2 * 8) if is_residual_output else 0.02


def test_matrices_are_normal_with_gpt2s_deviations(weights: dict[str, Tensor]) -> None:
    matrices = {path: weight for path, weight in weights.items() if weight.dim() == 2}
    assert len(matrices) == 2 + 8 * 6
    for path, weight in matrices.items():
        deviation = expected_deviation(path)
        assert float(weight.mean()) == pytest.approx(0, abs=5 * deviation / math.sqrt(weight.numel())), path
        assert float(weight.std()) == pytest.approx(deviation, rel=5 / math.sqrt(2 * weight.numel())), path


def test_biases_are_0_and_norm_scales_are_1(weights: dict[str, Tensor]) -> None:
    for path, weight in weights.items():
        if weight.dim() == 1:
            assert torch.equal(weight, torch.full_like(weight, 0.0 if path.endswith("bias") else 1.0)), path


def test_init_torch_keeps_torchs_initialisation() -> None:
    config = make_section(ModelConfig, {**SHAPE, "init": "torch"})
    with torch.random.fork_rng():
        torch.manual_seed(3)
        expected = Decoder(config).state_dict()
    actual = make_decoder(config, seed=3).state_dict()
    assert all(torch.equal(actual[path], weight) for path, weight in expected.items())


@pytest.mark.parametrize("init", ["gpt2", "torch"])
def test_equal_seeds_give_bit_identical_weights_and_other_seeds_others(init: str) -> None:
    config = preset_config("toy", vocab_size=20, init=init)
    first, second, other = (make_decoder(config, seed).embed.token.weight for seed in (1, 1, 2))
    assert torch.equal(first, second)
    assert not torch.equal(first, other)


def test_torchs_generator_is_neither_used_nor_changed() -> None:
    config = preset_config("toy", vocab_size=20)
    torch.manual_seed(5)
    before = torch.get_rng_state()
    first = make_decoder(config, seed=1).head(torch.ones(64))
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(6)
    assert torch.equal(make_decoder(config, seed=1).head(torch.ones(64)), first)


@pytest.mark.parametrize("size", ["toy", "gpt2"])
def test_a_new_decoder_predicts_a_nearly_uniform_distribution(size: str) -> None:
    shape = {"num_layers": 2, "num_heads": 2, "width": 64, "context_length": 32, "vocab_size": 100}
    decoder = make_decoder(preset_config(size, **shape), seed=1)
    losses = -decoder(torch.arange(30)[None]).log_softmax(-1).detach()
    assert float(losses.mean()) == pytest.approx(math.log(100), abs=0.1)


SIZES = {"num_layers": 1, "num_heads": 2, "width": 8, "context_length": 8, "vocab_size": 5}


@pytest.mark.parametrize("tied", [True, False])
def test_old_tokens_keep_their_logits(tied: bool) -> None:
    decoder = make_decoder(ModelConfig(**SIZES, tie_embeddings=tied, bias={"head": True}), seed=1).eval()
    larger = with_vocabulary(decoder, 7, seed=2)
    ids = torch.tensor([[0, 3, 4]])
    assert larger.config.vocab_size == 7
    assert torch.equal(larger(ids)[..., :5], decoder(ids))
    assert larger.embed.token.weight[5:].std() > 0


def test_a_decoder_with_enough_rows_is_returned_as_it_is() -> None:
    decoder = make_decoder(ModelConfig(**SIZES), seed=1)
    assert with_vocabulary(decoder, 5, seed=2) is decoder
