"""The encoder-decoder: equal to torch's, and the same with a cache, in a batch and alone."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from foretell.config.section import make_section
from foretell.errors import ConfigError, ContextLengthError
from foretell.model.structure import model_structure
from foretell.translation.batches import make_source
from foretell.translation.config import EncoderDecoderConfig
from foretell.translation.encoder_decoder import EncoderDecoder

SOURCES = [[3, 1, 4, 1, 5], [9, 2], [6, 5, 3]]
TARGETS = torch.tensor([[2, 7, 1, 8], [2, 8, 1, 8], [2, 8, 4, 5]])
PROJECTIONS = ("query", "key", "value")


def copy_layer(reference: nn.Module, block: nn.Module, attentions: dict[str, str], names: dict[str, str]) -> None:
    """Give a layer of torch's the weights of a block; the names are torch's and ours."""
    for theirs, ours in attentions.items():
        for kind in ("weight", "bias"):
            projections: list[Tensor] = [block.get_parameter(f"{ours}.{name}.{kind}") for name in PROJECTIONS]
            reference.get_parameter(f"{theirs}.in_proj_{kind}").copy_(torch.cat(projections))
        names = {**names, f"{theirs}.out_proj": f"{ours}.output"}
    for theirs, ours in names.items():
        reference.get_submodule(theirs).load_state_dict(block.get_submodule(ours).state_dict())


@torch.no_grad()
def torch_transformer(model: EncoderDecoder, *, norm_first: bool) -> nn.Transformer:
    """torch.nn.Transformer with the weights of the model; with the norm last it has no norm at the end."""
    options: dict[str, Any] = {"dropout": 0.0, "batch_first": True, "norm_first": norm_first, "dtype": torch.float64}
    encoder_layer = nn.TransformerEncoderLayer(8, 2, 32, **options)
    decoder_layer = nn.TransformerDecoderLayer(8, 2, 32, **options)
    norms = [nn.LayerNorm(8, dtype=torch.float64) if norm_first else None for _ in range(2)]
    encoder = nn.TransformerEncoder(encoder_layer, 2, norms[0], enable_nested_tensor=False)
    decoder = nn.TransformerDecoder(decoder_layer, 2, norms[1])
    transformer = nn.Transformer(8, 2, custom_encoder=encoder, custom_decoder=decoder, batch_first=True)  # new weights
    inner = {"linear1": "feedforward.up", "linear2": "feedforward.down", "norm1": "attention_norm"}
    names = {**inner, "norm2": "feedforward_norm"}
    for reference, block in zip(encoder.layers, model.encoder.trunk.blocks, strict=True):
        copy_layer(reference, block, {"self_attn": "attention"}, names)
    names = {**inner, "norm2": "cross_attention_norm", "norm3": "feedforward_norm"}
    for reference, block in zip(decoder.layers, model.trunk.blocks, strict=True):
        copy_layer(reference, block, {"self_attn": "attention", "multihead_attn": "cross_attention"}, names)
    for norm, trunk in zip(norms, (model.encoder.trunk, model.trunk), strict=True):
        if norm is not None:
            norm.load_state_dict(trunk.norm.state_dict())
    return transformer.eval()


@pytest.mark.parametrize("placement", ["post", "pre"])
def test_logits_equal_those_of_torchs_transformer(make_model, placement):
    model = make_model("vaswani", norm_placement=placement)
    source = make_source(SOURCES)
    padding = torch.arange(5) >= torch.tensor(source.lengths)[:, None]
    memory_in, target_in = (
        embed(ids, torch.arange(ids.shape[1])[None])
        for embed, ids in ((model.encoder.embed, source.ids), (model.embed, TARGETS))
    )
    future = nn.Transformer.generate_square_subsequent_mask(4, dtype=torch.float64)
    expected = torch_transformer(model, norm_first=placement == "pre")(
        memory_in, target_in, tgt_mask=future, src_key_padding_mask=padding, memory_key_padding_mask=padding
    )
    torch.testing.assert_close(model.given(source)(TARGETS), model.head(expected), rtol=0, atol=1e-10)


def test_a_pickled_model_has_the_same_logits(make_model, shape):
    model, source = make_model(shape), make_source(SOURCES)
    assert torch.equal(pickle.loads(pickle.dumps(model)).given(source)(TARGETS), model.given(source)(TARGETS))


def test_ragged_sources_together_are_each_alone(make_model, shape):
    model = make_model(shape)
    together = model.given(make_source(SOURCES))(TARGETS)
    for row, source in enumerate(SOURCES):
        alone = model.given(make_source([source]))(TARGETS[row : row + 1])
        torch.testing.assert_close(together[row], alone[0], rtol=0, atol=1e-12)


def test_token_by_token_with_a_cache_is_the_whole_pass(make_model, shape):
    model = make_model(shape).given(make_source(SOURCES))
    expected, cache = model(TARGETS), model.make_cache(3, 4)
    logits = [model(TARGETS[:, step : step + 1], cache.make_room([1] * 3))[:, 0] for step in range(4)]
    torch.testing.assert_close(torch.stack(logits, dim=1), expected, rtol=0, atol=1e-12)


def test_rows_of_a_cache_can_be_dropped_and_copied(make_model):
    model, rows = make_model("modern"), [2, 0, 0]
    conditioned = model.given(make_source(SOURCES))
    cache = conditioned.make_cache(3, 4)
    conditioned(TARGETS[:, :2], cache.make_room([2] * 3))
    cache.keep_rows(rows)
    actual = conditioned(TARGETS[rows, 2:], cache.make_room([2] * 3))
    expected = model.given(make_source([SOURCES[row] for row in rows]))(TARGETS[rows])[:, 2:]
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-12)


def test_the_source_is_encoded_and_projected_once_per_cache(make_model):
    calls: list[tuple[str, int]] = []

    def record(name: str):
        return lambda module, inputs, output: calls.append((name, output.shape[1]))

    model = make_model("modern").given(make_source(SOURCES))
    handles = [
        model.encoder.register_forward_hook(record("encoder")),
        model.get_submodule("trunk.blocks.0.cross_attention.key").register_forward_hook(record("key")),
    ]
    cache = model.make_cache(3, 4)
    for step in range(3):
        model(TARGETS[:, step : step + 1], cache.make_room([1] * 3))
    for handle in handles:
        handle.remove()
    assert calls == [("encoder", 5), ("key", 5), ("key", 0), ("key", 0)]


def test_a_shared_vocabulary_has_one_embedding_and_one_key(make_model):
    shared, separate = make_model("vaswani"), make_model("two vocabularies")
    assert "encoder.embed.token.weight" not in shared.state_dict()
    assert shared.encoder.embed.token.weight is shared.embed.token.weight is shared.head.weight
    assert separate.state_dict()["encoder.embed.token.weight"].shape == (11, 8)


def test_a_given_source_leaves_the_model_as_it_was(make_model):
    model = make_model("vaswani")
    conditioned = model.given(make_source(SOURCES))
    assert model.source is None
    assert dict(conditioned.named_parameters()).keys() == dict(model.named_parameters()).keys()
    assert conditioned.trunk is model.trunk


def test_every_value_of_both_sides_is_described(make_model, shape):
    structure = model_structure(make_model(shape))
    assert [value.name for value in structure.values.values() if value.formula == "unknown"] == []
    assert (structure.memory, structure.stream[0], structure.memory_stream[0]) == ("encoder", "embed", "encoder.embed")
    assert structure.memory_axes("trunk.blocks.1.cross_attention.core.weights") == "S"
    assert structure.memory_axes("encoder.trunk.blocks.0.attention.core.weights") == "TS"
    assert structure.memory_axes("trunk.blocks.1.attention.core.weights") == ""


def test_a_configuration_from_before_rotated_memories_is_what_it_was(tiny_config):
    saved = {key: value for key, value in tiny_config("modern").model_dump().items() if key != "rotate_cross_attention"}
    queries = "trunk.blocks.0.cross_attention.core.query"
    for config, formula in (
        (make_section(EncoderDecoderConfig, saved), "identity"),
        (tiny_config("modern"), "rotated heads"),
    ):
        model = EncoderDecoder(config)
        assert model_structure(model)[queries].formula == formula
        assert (model.encode(make_source(SOURCES)).rotation is None) == (formula == "identity")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"window": 3}, "an encoder-decoder has no window"),
        ({"feedforward": "none"}, "an encoder-decoder needs feedforward"),
        ({"attention_residual": False}, "an encoder-decoder needs attention_residual"),
    ],
)
def test_shapes_that_it_cannot_have_are_refused(tiny_config, changes, message):
    with pytest.raises(ConfigError, match=message):
        tiny_config("vaswani", **changes)


def test_a_source_beyond_the_context_is_refused(make_model):
    with pytest.raises(ContextLengthError, match="a source of 25 tokens does not fit the model's context of 24"):
        make_model("vaswani").given(make_source([[1] * 25]))
