"""Reading saved weights, and the errors of the family's forward pass."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from foretell.config.model import ModelConfig
from foretell.config.section import make_section
from foretell.errors import CheckpointError, ContextLengthError, UsageError
from foretell.model.init import make_decoder
from foretell.model.presets import preset_config
from foretell.textbook.family import decoder_forward, load_weights

CONFIG = preset_config("toy", vocab_size=300, width=32, num_heads=2, head_width=16, context_length=8)
IDS = [1, 299, 7, 7, 0]


@pytest.fixture(scope="module")
def decoder():
    return make_decoder(CONFIG, seed=1).eval()


def save(decoder, directory, dtype: torch.dtype):
    weights = {path: weight.detach().to(dtype) for path, weight in decoder.named_parameters()}
    save_file(weights, directory / "model.safetensors")
    return weights


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_load_weights_reads_every_precision_exactly(decoder, tmp_path, dtype):
    written = save(decoder, tmp_path, dtype)
    read = load_weights(tmp_path)
    wide = torch.promote_types(dtype, torch.float32)
    assert read.keys() == written.keys()
    for path, weight in written.items():
        assert np.array_equal(read[path], weight.to(wide).numpy()), path
        assert read[path].dtype == weight.to(wide).numpy().dtype


def test_loaded_weights_give_the_models_logits(decoder, tmp_path):
    save(decoder, tmp_path, torch.float32)
    with torch.no_grad():
        expected = decoder(torch.tensor([IDS]))[0].numpy()
    logits = decoder_forward(CONFIG, load_weights(tmp_path / "model.safetensors"), IDS)
    assert logits == pytest.approx(expected, rel=1e-4, abs=1e-6)


def test_load_weights_names_a_missing_file(tmp_path):
    with pytest.raises(CheckpointError, match="model.safetensors is missing"):
        load_weights(tmp_path)


def test_load_weights_refuses_another_file_format(tmp_path):
    (tmp_path / "model.safetensors").write_text("no tensors here")
    with pytest.raises(CheckpointError, match="damaged or not a safetensors file"):
        load_weights(tmp_path)


def test_load_weights_refuses_integer_tensors(tmp_path):
    save_file({"embed.token.weight": torch.arange(3)}, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match="'embed.token.weight' holds I64"):
        load_weights(tmp_path)


TINY = make_section(ModelConfig, {"num_layers": 1, "num_heads": 1, "width": 2, "context_length": 3, "vocab_size": 4})


@pytest.fixture
def weights():
    return {path: weight.detach().numpy() for path, weight in make_decoder(TINY, seed=1).named_parameters()}


@pytest.mark.parametrize(
    ("ids", "error", "message"),
    [
        ([], UsageError, "at least one token"),
        ([0, 1, 2, 3], ContextLengthError, "4 tokens do not fit the model's context of 3"),
        ([0, 4], UsageError, "token id 4 is not in a vocabulary of 4"),
        ([-1], UsageError, "token id -1 is not in a vocabulary of 4"),
    ],
)
def test_invalid_ids_are_refused(weights, ids, error, message):
    with pytest.raises(error, match=message):
        decoder_forward(TINY, weights, ids)


def test_a_missing_weight_is_named_in_the_error(weights):
    del weights["trunk.norm.bias"]
    with pytest.raises(CheckpointError, match="weight 'trunk.norm.bias' is missing"):
        decoder_forward(TINY, weights, [0])


def test_an_unexpected_weight_is_named_in_the_error(weights):
    weights["head.weight"] = np.zeros((4, 2))
    with pytest.raises(CheckpointError, match="the configuration has no weight 'head.weight'"):
        decoder_forward(TINY, weights, [0])


def test_a_weight_of_another_shape_is_named_in_the_error(weights):
    weights["embed.position.weight"] = np.zeros((5, 2))
    with pytest.raises(CheckpointError, match=r"shape \(5, 2\), the configuration needs \(3, 2\)"):
        decoder_forward(TINY, weights, [0])
