"""Blocks whose sublayers read the same stream and are added: GPT-NeoX with two norms, GPT-J and Phi with one."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from foretell.model.cache import FreshKVView
from foretell.model.kernels.fast_decoder import prepare_for_generation
from foretell.model.transformer import ParallelBlock, ParallelBlockSharedNorm
from foretell.saved_model.part import DecoderPart
from foretell.saved_model.parts_on_disk import load_parts, save_parts

PARALLEL = {"parallel": ParallelBlock, "parallel, shared norm": ParallelBlockSharedNorm}


@pytest.mark.parametrize("name", PARALLEL)
def test_a_block_adds_attention_and_feedforward_of_the_same_stream(name, make_decoder, ids, assert_same):
    decoder = make_decoder(name)
    block: Any = decoder.trunk.blocks[0]
    kv = FreshKVView(ids)
    assert type(decoder.trunk.blocks[0]) is PARALLEL[name]
    x = decoder.embed(ids, kv.positions)
    rotation = decoder.trunk.rotation(kv.positions, x.dtype)
    first = block.attention_norm(x)
    second = block.feedforward_norm(x) if name == "parallel" else first
    assert_same(block(x, kv, rotation), x + block.attention(first, kv, rotation) + block.feedforward(second))


def test_a_shared_norm_has_its_weights_once(make_decoder):
    keys = dict(make_decoder("parallel, shared norm").named_parameters())
    assert "trunk.blocks.0.attention_norm.weight" in keys
    assert not any("feedforward_norm" in key for key in keys)


@pytest.mark.parametrize("name", PARALLEL)
def test_fast_kernels_keep_the_order_of_a_block(name, make_decoder, ids, assert_same):
    decoder = make_decoder(name, torch.float32)
    fast = prepare_for_generation(decoder)
    assert isinstance(fast.trunk.blocks[0], PARALLEL[name])
    assert_same(fast(ids), decoder(ids))


@pytest.mark.parametrize("name", PARALLEL)
def test_a_saved_model_loads_with_the_same_blocks(name, make_decoder, ids, tmp_path):
    decoder = make_decoder(name, torch.float32)
    save_parts(tmp_path, {"decoder": DecoderPart(decoder)})
    loaded = load_parts(tmp_path)["decoder"]
    assert isinstance(loaded, DecoderPart)
    assert torch.equal(loaded.decoder(ids), decoder(ids))
