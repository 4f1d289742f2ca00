"""Every type of block has the values of the `gguf` package's dequantisation, bit for bit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from foretell.convert.gguf import blocks as module
from foretell.convert.gguf.blocks import BLOCKS, read_floats, unpack_rows
from foretell.convert.gguf.header import TENSOR_TYPES, TYPE_OF_NAME, read_header
from foretell.convert.gguf.pack_blocks import pack_rows
from foretell.convert.gguf.write import pack_tensor
from foretell.model.quantization import dequantize

gguf = pytest.importorskip("gguf", reason="the package `gguf` is not installed")

ROWS, BLOCKS_IN_ROW = 7, 3


def random_rows(kind: str, seed: int = 0) -> np.ndarray:
    """Rows of random bytes, in which all numbers of 16 bits are finite."""
    draw = np.random.default_rng(seed)
    rows = draw.integers(0, 256, (ROWS, BLOCKS_IN_ROW, TYPE_OF_NAME[kind].size), np.uint8)
    factors = {"Q6_K": (208,), "Q4_1": (0, 2), "Q5_1": (0, 2), "Q4_K": (0, 2), "Q5_K": (0, 2)}.get(kind, (0,))
    for start in factors:
        numbers = draw.normal(size=(ROWS, BLOCKS_IN_ROW, 1)).astype(np.float16) * np.float16(0.01)
        rows[..., start : start + 2] = numbers.view(np.uint8)
    return rows.reshape(ROWS, -1)


def theirs_of(kind: str, rows: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(np.array(gguf.dequantize(rows, gguf.GGMLQuantizationType[kind])))


@pytest.mark.parametrize("kind", BLOCKS)
def test_a_block_has_the_bits_of_the_gguf_package(kind: str) -> None:
    for seed in range(20):
        rows = random_rows(kind, seed)
        ours, theirs = dequantize(**unpack_rows(kind, torch.from_numpy(rows))), theirs_of(kind, rows)
        assert torch.equal(ours.view(torch.int32), theirs.view(torch.int32))


@pytest.mark.parametrize("kind", BLOCKS)
def test_unpacked_blocks_are_packed_to_the_same_bytes(kind: str) -> None:
    rows = torch.from_numpy(random_rows(kind))
    assert torch.equal(pack_rows(kind, unpack_rows(kind, rows)), rows)


def write(path: Path, tensors: dict[str, tuple[str, np.ndarray]]) -> None:
    writer = gguf.GGUFWriter(path, "llama")
    for name, (kind, rows) in tensors.items():
        writer.add_tensor(name, rows, raw_dtype=gguf.GGMLQuantizationType[kind])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_tensors_of_every_type_are_read_a_few_rows_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WEIGHTS_AT_A_TIME", 200)
    draw, tensors = np.random.default_rng(1), {kind: (kind, random_rows(kind)) for kind in BLOCKS}
    floats = draw.normal(size=(ROWS, 5)).astype(np.float32)
    tensors["F32"], tensors["F16"] = ("F32", floats), ("F16", floats.astype(np.float16))
    tensors["BF16"] = ("BF16", gguf.quantize(floats, gguf.GGMLQuantizationType.BF16))
    write(tmp_path / "all.gguf", tensors)
    stored = read_header(tmp_path / "all.gguf").tensors
    assert set(stored) == {kind.name for kind in TENSOR_TYPES}
    for kind, (_, rows) in tensors.items():
        theirs = theirs_of(kind, rows)
        assert torch.equal(read_floats(stored[kind], torch.float32), theirs)
        assert torch.equal(read_floats(stored[kind], torch.bfloat16), theirs.bfloat16())


def test_q8_0_is_packed_to_the_bytes_of_the_gguf_package() -> None:
    draw = np.random.default_rng(2)
    values = (draw.normal(size=(64, 96)) * draw.lognormal(sigma=3, size=(64, 1))).astype(np.float32)
    values[0, :32], values[1, :32] = 0, np.arange(-16, 16) + 0.5  # zeros, and halves to round
    values[1, 0] = 127
    theirs = gguf.quantize(values, gguf.GGMLQuantizationType.Q8_0)
    packed = pack_tensor(torch.from_numpy(values), "Q8_0")
    assert np.array_equal(packed.content.numpy(), theirs) and packed.shape == (64, 96)
    assert torch.equal(packed.values(), theirs_of("Q8_0", theirs))
