"""Marian checkpoints: the logits and the greedy translations are those of transformers' model on random weights."""

from __future__ import annotations

import json

import pytest
import torch

from foretell.errors import CheckpointError
from foretell.insight.explain.explain_address import explain
from foretell.translation.batches import make_source
from foretell.translation.translate import Decoding, translate
from foretell.translation.translator import load_marian, load_translator

V, PAD, EOS = 21, 20, 0
SOURCES = [[3, 1, 4, 1, 5, EOS], [9, 2, EOS]]
TARGETS = torch.tensor([[PAD, 7, 1, 8], [PAD, 8, 1, 8]])
VARIANTS = {
    "opus-mt": {},
    "two vocabularies": {
        "share_encoder_decoder_embeddings": False,
        "decoder_vocab_size": 23,
        "tie_word_embeddings": False,
    },
    "relu, unscaled": {"activation_function": "relu", "scale_embedding": False, "encoder_layers": 1},
}


@pytest.fixture(scope="module", params=VARIANTS)
def marian(request, tmp_path_factory):
    """A directory, and the model of transformers that saved it."""
    transformers = pytest.importorskip("transformers")
    sizes = {"vocab_size": V, "d_model": 8, "encoder_layers": 2, "decoder_layers": 2, "max_position_embeddings": 24}
    heads = {
        f"{side}_{name}": size
        for side in ("encoder", "decoder")
        for name, size in (("attention_heads", 2), ("ffn_dim", 16))
    }
    tokens = {"pad_token_id": PAD, "decoder_start_token_id": PAD, "eos_token_id": EOS, "forced_eos_token_id": None}
    options = {"scale_embedding": True, "activation_function": "swish", **VARIANTS[request.param]}
    torch.manual_seed(0)
    model = transformers.MarianMTModel(transformers.MarianConfig(**sizes | heads | tokens | options)).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "embed_positions" not in name:
                parameter.copy_(0.4 * torch.randn(parameter.shape) + (1 if "norm.weight" in name else 0))
        model.final_logits_bias.copy_(torch.randn(model.final_logits_bias.shape))
    directory = tmp_path_factory.mktemp("marian")
    model.save_pretrained(directory)
    return directory, model


def test_the_logits_are_those_of_transformers(marian):
    directory, model = marian
    source = make_source(SOURCES)
    mask = torch.arange(6) < torch.tensor(source.lengths)[:, None]
    with torch.no_grad():
        expected = model(input_ids=source.ids, attention_mask=mask.long(), decoder_input_ids=TARGETS).logits
        actual = load_marian(directory).model.given(source)(TARGETS)
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5)


def test_greedy_translations_are_those_of_transformers(marian):
    directory, model = marian
    source = make_source(SOURCES)
    mask = torch.arange(6) < torch.tensor(source.lengths)[:, None]
    options = {"num_beams": 1, "do_sample": False, "max_new_tokens": 12, "bad_words_ids": None}
    expected = model.generate(source.ids, attention_mask=mask.long(), **options)
    found = translate(load_translator(directory, "cpu"), ["3 1 4 1 5", "9 2"], Decoding(beam_size=1))
    for ours, theirs in zip(found, expected.tolist(), strict=True):
        words = [token for token in theirs[1:] if token != PAD]
        assert ours.ids[:12] == (words[: words.index(EOS)] if EOS in words else words)


def test_a_pass_over_ids_can_be_explained(marian):
    given = load_translator(marian[0], "cpu").given("3 1 4")
    assert "'20'" in str(explain(given, "7 8"))


WRONG = {
    "normalize_before": (True, "'normalize_before' is not supported"),
    "encoder_ffn_dim": (32, "encoder_ffn_dim and decoder_ffn_dim differ"),
    "activation_function": ("tanh", "unknown activation_function 'tanh'"),
    "d_model": (16, "has shape"),
    "decoder_layers": (3, "has no weight 'model.decoder.layers.2."),
    "encoder_layers": (1, "has a weight 'model.encoder.layers.1"),
    "eos_token_id": (None, "eos_token_id is None"),
}


@pytest.mark.parametrize("key", WRONG)
def test_what_is_not_supported_is_refused_by_name(marian, tmp_path, key):
    directory, _ = marian
    if key == "encoder_layers" and json.loads((directory / "config.json").read_text())["encoder_layers"] == 1:
        pytest.skip("this variant has one layer")
    value, message = WRONG[key]
    values = json.loads((directory / "config.json").read_text()) | {key: value}
    (tmp_path / "config.json").write_text(json.dumps(values))
    (tmp_path / "model.safetensors").write_bytes((directory / "model.safetensors").read_bytes())
    with pytest.raises(CheckpointError, match=message):
        load_marian(tmp_path)


def test_a_pickle_alone_is_refused(marian, tmp_path):
    (tmp_path / "config.json").write_bytes((marian[0] / "config.json").read_bytes())
    (tmp_path / "pytorch_model.bin").write_bytes(b"x")
    with pytest.raises(CheckpointError, match="has only pytorch_model.bin"):
        load_marian(tmp_path)
