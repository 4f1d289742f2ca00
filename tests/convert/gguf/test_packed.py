"""Matrices of a GGUF file stay packed, with the same values, in memory, on disk and in kernels."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import foretell
from foretell.cli.main import run as run_command
from foretell.config.model import ModelConfig
from foretell.config.section import make_section
from foretell.convert.family import iter_theirs
from foretell.convert.gguf.blocks import BLOCKS
from foretell.convert.gguf.export import describe_file
from foretell.convert.gguf.header import TYPE_OF_NAME
from foretell.convert.gguf.metadata import choose_architecture
from foretell.convert.gguf.write import PackedTensor, write_gguf
from foretell.language_model import LanguageModel
from foretell.model.init import make_decoder
from foretell.model.kernels.fast_decoder import prepare_for_generation
from foretell.model.quantized_linear import QuantizedEmbedding, QuantizedMatrix, plain_weights
from foretell.text import Tokenizer
from tests.convert.gguf.conftest import ROTARY
from tests.convert.gguf.test_blocks import random_rows, theirs_of

gguf = pytest.importorskip("gguf", reason="the package `gguf` is not installed")

WIDTH = 256  # of a block of the K types
IDS = [[5, 9, 2, 250, 31, 8]]
BOUNDS = {"Q5_0": 1.6, "Q5_1": 1.6, "Q5_K": 1.6, "Q6_K": 1.4}  # bytes in memory over those of the file; others 1.1


def random_blocks(kind: str, rows: int, inputs: int) -> torch.Tensor:
    """Blocks (rows, bytes) of random integers, scales and minima."""
    size, weights = TYPE_OF_NAME[kind].size, TYPE_OF_NAME[kind].weights
    needed = rows * inputs // weights * size
    drawn = np.concatenate(
        [random_rows(kind, seed).reshape(-1) for seed in range(-(-needed // random_rows(kind).size))]
    )
    return torch.from_numpy(drawn[:needed].reshape(rows, -1).copy())


def write_packed(path: Path, tokenizer: Tokenizer, kinds: dict[str, str], tied: bool = True) -> dict[str, torch.Tensor]:
    """Write a llama whose matrices have these types by the beginning of their names; returns the values of all."""
    sizes = {"num_layers": 2, "num_heads": 4, "width": WIDTH, "context_length": 64, "feedforward_width": 2 * WIDTH}
    sizes |= {**ROTARY, "vocab_size": tokenizer.vocab_size, "tie_embeddings": tied}
    model = LanguageModel(make_decoder(make_section(ModelConfig, sizes), seed=1), tokenizer)
    family = choose_architecture(model.config, "llama")
    tensors, values = {}, {}
    for name, tensor in iter_theirs(family, model.config, {k: w.detach() for k, w in model.decoder.named_parameters()}):
        kind = next((kind for start, kind in kinds.items() if name.startswith(start)), None)
        if tensor.dim() == 2 and kind:
            blocks = random_blocks(kind, *tensor.shape)
            tensors[name] = PackedTensor(kind, blocks)
            values[name] = theirs_of(kind, blocks.numpy()).view(tensor.shape)
        else:
            tensors[name], values[name] = PackedTensor("F32", tensor), tensor
    write_gguf(path, family.name, describe_file(model, family, "f32"), tensors)
    return values


@pytest.fixture
def tokenizer(tokenizers_by_split) -> Tokenizer:
    return tokenizers_by_split["qwen2"]


def logits(model: LanguageModel) -> torch.Tensor:
    with torch.no_grad():
        return model(IDS)


@pytest.mark.parametrize("kind", BLOCKS)
def test_every_type_keeps_its_values_and_its_size(kind: str, tokenizer: Tokenizer, tmp_path: Path) -> None:
    path = tmp_path / "packed.gguf"
    values = write_packed(path, tokenizer, {"": kind})
    model = foretell.load(path, "cpu", "float32")
    assert isinstance(model.decoder.embed.token, QuantizedEmbedding) and kind.lower() in model.precision
    plain = model.with_float_weights("compare")
    family = choose_architecture(model.config, "llama")
    for name, tensor in iter_theirs(family, model.config, {k: w.detach() for k, w in plain.decoder.named_parameters()}):
        assert torch.equal(tensor, values[name]), name
    assert torch.allclose(logits(model), logits(plain), rtol=1e-4, atol=1e-5 * float(logits(plain).abs().max()))
    used = sum(tensor.nbytes for tensor in (*model.decoder.parameters(), *model.decoder.buffers()))
    assert used < BOUNDS.get(kind, 1.1) * path.stat().st_size


@pytest.mark.parametrize("kind", ["Q4_0", "Q5_K"])
def test_a_cast_rounds_values_and_not_scales(kind: str, tokenizer: Tokenizer, tmp_path: Path) -> None:
    write_packed(tmp_path / "packed.gguf", tokenizer, {"": kind})
    exact = foretell.load(tmp_path / "packed.gguf", "cpu", "float32")
    narrow = foretell.load(tmp_path / "packed.gguf", "cpu", "bfloat16")
    assert narrow.dtype == torch.bfloat16
    weights, rounded = plain_weights(exact.decoder), plain_weights(narrow.decoder)
    assert all(torch.equal(rounded[path], weight.bfloat16()) for path, weight in weights.items())
    back = narrow.to(dtype="float32")
    assert back.dtype == torch.float32
    matrices = [module for module in back.decoder.modules() if isinstance(module, QuantizedMatrix)]
    assert matrices and all(matrix.dtype == torch.float32 for matrix in matrices)
    assert all(
        torch.equal(weight, weights[path]) for path, weight in plain_weights(back.decoder).items() if "norm" not in path
    )


MIXED = {
    "token_embd": "Q6_K",
    "output": "Q8_0",
    "blk.0.attn_v": "Q6_K",
    "blk.0": "Q4_K",
    "blk.1.ffn_down": "Q5_1",
    "blk.1": "Q4_0",
}


def test_mixed_types_are_saved_and_loaded_with_the_same_bits(tokenizer: Tokenizer, tmp_path: Path, capfd) -> None:
    write_packed(tmp_path / "packed.gguf", tokenizer, MIXED, tied=False)
    model = foretell.load(tmp_path / "packed.gguf", "cpu", "float32")
    model.save(tmp_path / "saved")
    again = foretell.load(tmp_path / "saved", "cpu", "float32")
    assert torch.equal(logits(again), logits(model)) and again.quantization == model.quantization
    assert foretell.load(tmp_path / "saved", "cpu", "bfloat16").dtype == torch.bfloat16
    for name in ("packed.gguf", "saved"):
        assert run_command(["info", str(tmp_path / name)]) == 0
        out = capfd.readouterr().out
        assert "q4_0 (" in out or "q4_0" in out, name


def test_what_came_packed_leaves_with_the_same_bytes(
    tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd
) -> None:
    monkeypatch.chdir(tmp_path)
    write_packed(Path("packed.gguf"), tokenizer, MIXED, tied=False)
    assert run_command(["convert", "packed.gguf", "saved"]) == 0
    assert run_command(["convert", "saved", "again.gguf", "--to", "gguf"]) == 0
    assert "again.gguf: llama (GGUF), packed, " in capfd.readouterr().out
    before, after = (tensors_of(path) for path in ("packed.gguf", "again.gguf"))
    assert before.keys() == after.keys() and all(kind == after[name][0] for name, (kind, _) in before.items())
    assert all(np.array_equal(data, after[name][1]) for name, (_, data) in before.items())


def tensors_of(path: str) -> dict[str, tuple[str, np.ndarray]]:
    return {tensor.name: (tensor.tensor_type.name, tensor.data) for tensor in gguf.GGUFReader(path).tensors}


@pytest.mark.parametrize("kinds", [{"": "Q4_1"}, MIXED], ids=["Q4_1", "mixed"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_kernels_compute_the_same(
    kinds: dict[str, str], dtype: torch.dtype, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    write_packed(tmp_path / "packed.gguf", tokenizer, kinds, tied="output" not in kinds)
    model = foretell.load(tmp_path / "packed.gguf", "cpu", dtype)
    fast = prepare_for_generation(model.decoder, wait=True)
    assert fast is not model.decoder
    with torch.no_grad():
        ids = torch.tensor(IDS)
        ours, theirs = fast(ids).float(), model.decoder(ids).float()
    bound = 1e-4 if dtype == torch.float32 else 0.05
    assert float((ours - theirs).abs().max()) < bound * float(theirs.abs().max())


def test_a_packed_model_is_converted_quantised_and_tuned_from_its_values(
    tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_packed(Path("packed.gguf"), tokenizer, {"": "Q4_1"})
    model = foretell.load("packed.gguf", "cpu", "float32")
    assert run_command(["convert", "packed.gguf", "hf", "--to", "huggingface"]) == 0
    assert torch.equal(logits(foretell.load("hf", "cpu", "float32")), logits(model.with_float_weights("compare")))
    assert "int8 in groups of 64" in model.quantize("int8").precision
    assert "int8 in groups of 64" in foretell.load("packed.gguf", "cpu", "float32", quantize="int8").precision
