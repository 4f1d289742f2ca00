"""Replacing modules by path, and undoing it."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from foretell.config.model import ModelConfig
from foretell.errors import UsageError
from foretell.model.attention import EagerAttention
from foretell.model.dropout import Dropout
from foretell.model.init import make_decoder
from foretell.model.surgery import copy_with_own_hooks, recast, replace

SIZES = {"num_layers": 2, "num_heads": 2, "width": 8, "context_length": 8, "vocab_size": 11}
IDS = torch.tensor([[1, 2, 3, 4]])


@pytest.fixture
def decoder():
    return make_decoder(ModelConfig.model_validate(SIZES), seed=1).eval()


def eager(decoder):
    return lambda module: EagerAttention(decoder.config)


def test_every_match_is_replaced_and_listed(decoder):
    surgery = replace(decoder, "**.core", eager(decoder))
    assert surgery.paths == ["trunk.blocks.0.attention.core", "trunk.blocks.1.attention.core"]
    assert all(isinstance(decoder.get_submodule(path), EagerAttention) for path in surgery.paths)


def test_a_with_block_restores_the_old_modules(decoder):
    before = dict(decoder.named_modules())
    with replace(decoder, "**.core", eager(decoder)):
        assert dict(decoder.named_modules()) != before
    assert dict(decoder.named_modules()) == before


def test_an_error_in_a_with_block_restores_the_old_modules(decoder):
    before = dict(decoder.named_modules())
    with pytest.raises(RuntimeError, match="inside"), replace(decoder, "**.core", eager(decoder)):
        raise RuntimeError("inside")
    assert dict(decoder.named_modules()) == before


def test_undo_keeps_a_later_replacement(decoder):
    first = replace(decoder, "trunk.norm", lambda module: nn.Identity())
    replace(decoder, "trunk.norm", lambda module: nn.Tanh())
    first.undo()
    assert isinstance(decoder.trunk.norm, nn.Tanh)


def test_a_copy_with_its_own_hooks_shares_weights_and_no_hooks(decoder):
    seen = []
    decoder.trunk.norm.register_forward_hook(lambda *_: seen.append("original"))
    copy = copy_with_own_hooks(decoder)
    copy.trunk.blocks[1].attention.query.register_forward_hook(lambda *_: seen.append("copy"))
    expected = decoder(IDS)
    assert seen == ["original"]
    assert torch.equal(copy(IDS), expected)
    assert seen == ["original", "copy"]
    pairs = zip(decoder.named_parameters(), copy.named_parameters(), strict=True)
    assert all((name, own.data_ptr()) == (other, weight.data_ptr()) for (name, own), (other, weight) in pairs)
    copy.trunk.blocks[0].attention.core = EagerAttention(decoder.config)
    assert not isinstance(decoder.trunk.blocks[0].attention.core, EagerAttention)


def test_a_glob_without_a_match_is_refused_with_a_suggestion(decoder):
    with pytest.raises(UsageError, match="near it: trunk.norm"):
        replace(decoder, "trunk.nrm", lambda module: module)


def test_returning_the_same_module_replaces_nothing(decoder):
    assert replace(decoder, "**", lambda module: module).paths == []


@pytest.mark.parametrize("training", [True, False])
def test_a_new_module_takes_the_training_mode_of_the_old_one(decoder, training):
    decoder.train(training)
    replace(decoder, "**.core", eager(decoder))
    assert decoder.trunk.blocks[0].attention.core.training is training


def test_new_dropout_uses_the_counters_of_its_model(decoder):
    replace(decoder, "**.attention_residual.dropout", lambda module: Dropout(0.5))
    module = decoder.get_submodule("trunk.blocks.1.attention_residual.dropout")
    assert module.dropout_rng is decoder.dropout_rng
    assert module.path == "trunk.blocks.1.attention_residual.dropout"


def test_recasting_shares_parameters_and_hooks():
    class Doubled(nn.Linear):
        def forward(self, input):
            return 2 * super().forward(input)

    plain, x, calls = nn.Linear(3, 2), torch.ones(1, 3), []
    plain.register_forward_hook(lambda *_: calls.append(1))
    doubled = recast(plain, Doubled)
    assert torch.equal(doubled(x), 2 * plain(x))
    assert doubled.weight is plain.weight
    assert len(calls) == 2
