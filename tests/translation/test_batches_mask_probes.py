"""The mask check lets sound models pass and names the module that leaks."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from foretell.errors import TrainingError
from foretell.model.mask import Mask
from foretell.model.memory_cache import document_mask, full_mask
from foretell.model.surgery import replace
from foretell.translation.batches import EncodedPair, PairBatch, make_pair_batch
from foretell.translation.task import check_pair_mask


@pytest.fixture(scope="module")
def batch() -> PairBatch:
    rng = np.random.default_rng(0)
    lengths = [(7, 9), (4, 6), (7, 8), (2, 3)]
    return make_pair_batch([EncodedPair(rng.integers(11, size=s), rng.integers(11, size=t)) for s, t in lengths], 16)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_sound_models_pass(make_model, shape, batch, dtype):
    check_pair_mask(make_model(shape, torch.float32), batch, dtype)


def test_sound_models_pass_in_training_mode_with_dropout(make_model, batch):
    check_pair_mask(make_model("modern", torch.float32, dropout=0.1).train(), batch)


class WithoutMask(nn.Module):
    """A core that hides nothing."""

    def __init__(self, core: nn.Module):
        super().__init__()
        self.core = core

    def forward(self, query, key, value, mask):
        return self.core(query, key, value, Mask(query.shape[2], key.shape[2], causal=False))


BROKEN = {
    "trunk.blocks.1.attention.core": "trunk.blocks.1.attention.core sees the future",
    "trunk.blocks.0.cross_attention.core": "trunk.blocks.0.cross_attention.core sees the source's padding",
    "encoder.trunk.blocks.1.attention.core": "encoder.trunk.blocks.1.attention.core sees the source's padding",
}


class PaddingAlone(nn.Module):
    """A core that hides padding, and no other pair of the row."""

    def __init__(self, core: nn.Module):
        super().__init__()
        self.core = core

    def forward(self, query, key, value, mask):
        keys = mask.key_document_ids
        return self.core(
            query,
            key,
            value,
            document_mask((keys[:, :1] * 0).expand(-1, query.shape[2]), keys.clamp(max=0)),
        )


@pytest.mark.parametrize("path", ["trunk.blocks.0.cross_attention.core", "encoder.trunk.blocks.1.attention.core"])
def test_a_core_that_sees_other_pairs_is_caught(make_model, batch, path):
    model = make_model("modern", torch.float32)
    with replace(model, path, PaddingAlone), pytest.raises(TrainingError, match=f"{path} sees another pair"):
        check_pair_mask(model, batch)


@pytest.mark.parametrize("path", BROKEN)
def test_a_core_without_its_mask_is_caught(make_model, batch, path):
    model = make_model("modern", torch.float32)
    with replace(model, path, WithoutMask), pytest.raises(TrainingError, match=BROKEN[path]):
        check_pair_mask(model, batch)


def test_a_decoder_that_does_not_read_its_source_is_caught(make_model, batch):
    model = make_model("modern", torch.float32)
    for layer in range(2):
        model.get_parameter(f"trunk.blocks.{layer}.cross_attention.output.weight").zero_()
    with pytest.raises(TrainingError, match="the losses are the same for another source"):
        check_pair_mask(model, batch)


def test_lengths_decide_what_is_padding():
    assert full_mask(torch.arange(3)[None], 2, None).is_open
    assert full_mask(torch.arange(3)[None], 2, [3, 3]).is_open
    padded = full_mask(torch.arange(3)[None], 2, [3, 1]).allowed
    assert padded[:, 0].tolist() == [[[True] * 3] * 2, [[True, False, False]] * 2]
