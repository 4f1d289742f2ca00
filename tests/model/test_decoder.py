"""The whole decoder: parameter names, tied head, copies, and context limit; the lessons have known values."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from foretell.config.model import ModelConfig
from foretell.config.section import make_section
from foretell.errors import ContextLengthError
from foretell.model.decoder import Decoder
from foretell.model.init import decoder_with_weights
from foretell.model.init import make_decoder as new_decoder
from tests.model.conftest import MakeDecoder

# --- names: frozen, because they are the keys on disk ----------------------------------------------------------------

EVERYTHING: dict[str, Any] = {
    "num_layers": 1,
    "num_heads": 2,
    "width": 8,
    "context_length": 4,
    "vocab_size": 5,
    "qk_norm": True,
    "feedforward": "gated",
    "activation": "silu",
    "tie_embeddings": False,
    "bias": {"head": True},
}
EVERY_PARAMETER = [
    "embed.token.weight",
    "embed.position.weight",
    "trunk.blocks.0.attention_norm.weight",
    "trunk.blocks.0.attention_norm.bias",
    "trunk.blocks.0.attention.query.weight",
    "trunk.blocks.0.attention.query.bias",
    "trunk.blocks.0.attention.key.weight",
    "trunk.blocks.0.attention.key.bias",
    "trunk.blocks.0.attention.value.weight",
    "trunk.blocks.0.attention.value.bias",
    "trunk.blocks.0.attention.query_norm.weight",
    "trunk.blocks.0.attention.query_norm.bias",
    "trunk.blocks.0.attention.key_norm.weight",
    "trunk.blocks.0.attention.key_norm.bias",
    "trunk.blocks.0.attention.output.weight",
    "trunk.blocks.0.attention.output.bias",
    "trunk.blocks.0.feedforward_norm.weight",
    "trunk.blocks.0.feedforward_norm.bias",
    "trunk.blocks.0.feedforward.gate.weight",
    "trunk.blocks.0.feedforward.gate.bias",
    "trunk.blocks.0.feedforward.up.weight",
    "trunk.blocks.0.feedforward.up.bias",
    "trunk.blocks.0.feedforward.down.weight",
    "trunk.blocks.0.feedforward.down.bias",
    "trunk.norm.weight",
    "trunk.norm.bias",
    "head.weight",
    "head.bias",
]
MODULES_WITHOUT_PARAMETERS = [
    "trunk.blocks.0.attention",
    "trunk.blocks.0.attention.core",
    "trunk.blocks.0.attention_residual",
    "trunk.blocks.0.feedforward",
    "trunk.blocks.0.feedforward.activation",
    "trunk.blocks.0.feedforward_residual",
    "embed",
    "trunk",
    "trunk.blocks",
    "trunk.blocks.0",
]


def test_parameter_paths_are_the_frozen_ones() -> None:
    assert sorted(Decoder(make_section(ModelConfig, EVERYTHING)).state_dict()) == sorted(EVERY_PARAMETER)


def test_module_paths_of_a_block_are_the_frozen_ones() -> None:
    assert set(MODULES_WITHOUT_PARAMETERS) <= set(dict(Decoder(make_section(ModelConfig, EVERYTHING)).named_modules()))


def test_state_dict_keys_are_the_parameter_names(decoder: Decoder) -> None:
    assert list(decoder.state_dict()) == [path for path, _ in decoder.named_parameters()]


# --- a tied head is the token embedding ------------------------------------------------------------------------------


def assert_tied(decoder: Decoder, ids: Tensor) -> None:
    before = decoder(ids)
    with torch.no_grad():
        decoder.embed.token.weight[5] = 0  # not among ids, so only the head uses it
    after = decoder(ids)
    assert not after[..., 5].any()
    assert torch.equal(after[..., :5], before[..., :5])


def deep_copied(decoder: Decoder) -> Decoder:
    return copy.deepcopy(decoder)


def reloaded(decoder: Decoder) -> Decoder:
    other = new_decoder(decoder.config, seed=2).double()
    other.load_state_dict(decoder.state_dict())
    return other


def filled_from_meta(decoder: Decoder) -> Decoder:
    return decoder_with_weights(decoder.config, decoder.state_dict())


def moved_to_float32(decoder: Decoder) -> Decoder:
    return copy.deepcopy(decoder).to(torch.float32)


@pytest.mark.parametrize("change", [lambda decoder: decoder, deep_copied, reloaded, filled_from_meta, moved_to_float32])
def test_a_tied_head_stays_tied(change: Callable[[Decoder], Decoder], make_decoder: MakeDecoder) -> None:
    assert_tied(change(make_decoder("gpt2")).eval().requires_grad_(False), torch.tensor([[1, 2, 3]]))


def test_a_tied_head_saves_no_weight_but_its_bias(make_decoder: MakeDecoder) -> None:
    assert not [path for path in make_decoder("gpt2").state_dict() if path.startswith("head")]
    assert [path for path in make_decoder("biases").state_dict() if path.startswith("head")] == ["head.bias"]


@pytest.mark.parametrize("change", [deep_copied, reloaded, filled_from_meta])
def test_a_copy_gives_bit_identical_logits(change: Callable[[Decoder], Decoder], decoder: Decoder, ids: Tensor) -> None:
    assert torch.equal(change(decoder).eval()(ids), decoder(ids))


def test_changing_a_copy_does_not_change_the_original(decoder: Decoder, ids: Tensor) -> None:
    before, copied = decoder(ids), copy.deepcopy(decoder)
    for parameter in copied.parameters():
        parameter.zero_()
    assert torch.equal(decoder(ids), before)


def test_a_copy_has_its_own_dropout_counters(make_decoder: MakeDecoder, ids: Tensor) -> None:
    decoder = make_decoder("gpt2", dropout=0.3).train()
    copied = copy.deepcopy(decoder)
    copied.dropout_rng.step = 1
    assert not torch.equal(copied(ids), decoder(ids))


def test_float32_equals_float64_up_to_rounding(config: ModelConfig, make_decoder: MakeDecoder, ids: Tensor) -> None:
    double = make_decoder(config)
    single = copy.deepcopy(double).float()
    torch.testing.assert_close(single(ids).double(), double(ids), rtol=0, atol=2e-5 * float(double(ids).abs().max()))


# --- calls -----------------------------------------------------------------------------------------------------------


def test_logits_are_the_head_of_the_hidden_states(decoder: Decoder, ids: Tensor) -> None:
    assert torch.equal(decoder.head(decoder.hidden(ids)), decoder(ids))


def test_every_weight_affects_the_logits(config: ModelConfig, make_decoder: MakeDecoder, ids: Tensor) -> None:
    decoder = make_decoder(config).requires_grad_(True)
    decoder(ids).square().sum().backward()
    parameters = decoder.named_parameters()
    unused = [path for path, parameter in parameters if parameter.grad is None or not parameter.grad.any()]
    # a bias added to every key shifts all scores of a query equally, which softmax ignores
    assert [path for path in unused if not path.endswith("key.bias")] == []


def test_input_longer_than_the_context_is_refused(decoder: Decoder) -> None:
    assert decoder(torch.zeros(1, 12, dtype=torch.long)).shape == (1, 12, 11)
    with pytest.raises(ContextLengthError, match="13 tokens do not fit the model's context of 12"):
        decoder(torch.zeros(1, 13, dtype=torch.long))


def test_a_pickled_decoder_has_the_same_logits(decoder: Decoder, ids: Tensor) -> None:
    assert torch.equal(pickle.loads(pickle.dumps(decoder))(ids), decoder(ids))
