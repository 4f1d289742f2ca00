"""The header of a GGUF file is checked before anything is made from it; damage is one line."""

from __future__ import annotations

import random
import struct
from pathlib import Path

import numpy as np
import pytest

from foretell.convert.gguf.header import (
    ARCHITECTURE,
    MAX_HEADER_BYTES,
    TENSOR_TYPES,
    read_general,
    read_header,
)
from foretell.errors import CheckpointError
from foretell.storage.files import is_gguf

gguf = pytest.importorskip("gguf", reason="the package `gguf` is not installed")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A small file with a pair and a tensor of every kind."""
    writer = gguf.GGUFWriter(tmp_path / "small.gguf", "llama")
    writer.add_uint32("llama.block_count", 2)
    writer.add_float32("llama.rope.freq_base", 1e4)
    writer.add_bool("tokenizer.ggml.add_bos_token", True)
    writer.add_array("tokenizer.ggml.tokens", ["a", "é", "", "▁the"])
    writer.add_array("tokenizer.ggml.token_type", [1, 1, 3, -6])
    writer.add_array("tokenizer.ggml.scores", [0.0, -1.5, 2.0, 3.0])
    for kind in TENSOR_TYPES:
        blocks = np.arange(2 * kind.size, dtype=np.uint8).reshape(2, kind.size)
        writer.add_tensor(f"{kind.name}.weight", blocks, raw_dtype=gguf.GGMLQuantizationType[kind.name])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return tmp_path / "small.gguf"


def test_pairs_and_tensors_are_as_the_gguf_package_reads_them(path: Path) -> None:
    header, reader = read_header(path), gguf.GGUFReader(path)
    theirs = {name: field.contents() for name, field in reader.fields.items() if not name.startswith("GGUF.")}
    assert header.pairs == theirs and header.pairs["tokenizer.ggml.tokens"] == ["a", "é", "", "▁the"]
    assert [tensor.name for tensor in reader.tensors] == list(header.tensors)
    for tensor in reader.tensors:
        ours = header.tensors[tensor.name]
        assert (ours.dtype, ours.shape) == (tensor.tensor_type.name, tuple(tensor.shape.tolist()[::-1]))
        assert (ours.start, ours.size) == (tensor.data_offset, tensor.n_bytes)
    assert is_gguf(path) and read_general(path) == {ARCHITECTURE: "llama"}


def test_a_file_that_is_cut_short_anywhere_is_refused_in_one_line(path: Path, tmp_path: Path) -> None:
    content, cut = path.read_bytes(), tmp_path / "cut.gguf"
    for size in range(len(content) - 31):  # the writer pads the last tensor with up to 31 bytes
        cut.write_bytes(content[:size])
        with pytest.raises(CheckpointError) as refused:
            read_header(cut)
        assert str(refused.value).startswith(str(cut)) and "\n" not in str(refused.value)


def start(pairs: int = 0, tensors: int = 0, version: int = 3) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, tensors, pairs)


def text(value: bytes) -> bytes:
    return struct.pack("<Q", len(value)) + value


def entry(name: bytes = b"w", shape: tuple[int, ...] = (32, 1), kind: int = 0, offset: int = 0) -> bytes:
    return text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset)


DATA = bytes(4096)
BAD = {
    "another format": (b"PK\x03\x04" + DATA, "does not begin with GGUF"),
    "version 1": (start(version=1) + DATA, "its version is 1; known: 2 and 3"),
    "another byte order": (start(version=3 << 24) + DATA, "its version is 50331648, big-endian"),
    "too many pairs": (start(pairs=2**60) + DATA, "it would have 1,152,921,504,606,846,976 pairs"),
    "too many tensors": (start(tensors=2**63) + DATA, "it would have 9,223,372,036,854,775,808 tensors"),
    "a long text": (start(1) + struct.pack("<Q", 2**62) + DATA, "it ends within its header"),
    "a long array": (start(1) + text(b"a") + struct.pack("<IIQ", 9, 6, 2**61) + DATA, "values in an array"),
    "a long array of texts": (start(1) + text(b"a") + struct.pack("<IIQ", 9, 8, 2**61) + DATA, "texts in an array"),
    "arrays in arrays": (start(1) + text(b"a") + struct.pack("<IIQ", 9, 9, 1) + DATA, "values of the unknown type 9"),
    "an unknown value": (start(1) + text(b"a") + struct.pack("<I", 13) + DATA, "a value has the unknown type 13"),
    "bytes outside UTF-8": (start(1) + text(b"\xff\xfe") + DATA, "codec can't decode"),
    "a pair twice": (start(2) + 2 * (text(b"a") + struct.pack("<IB", 0, 1)) + DATA, "'a' appears twice"),
    "a tensor twice": (start(0, 2) + entry() + entry(offset=128) + DATA, "two tensors 'w'"),
    "an overlap": (start(0, 2) + entry() + entry(b"v", offset=64) + DATA, "begins at byte 64 of the data, not 128"),
    "an unknown type": (start(0, 1) + entry(kind=18) + DATA, "has the tensor type 18, .* known: F32, F16, Q4_0"),
    "five dimensions": (start(0, 1) + entry(shape=(32, 1, 1, 1, 1)) + DATA, "has 5 dimensions"),
    "a size of zero": (start(0, 1) + entry(shape=(0, 4)) + DATA, r"of shape \(4, 0\) does not fit"),
    "part of a block": (start(0, 1) + entry(shape=(33, 4), kind=2) + DATA, "does not fit blocks of 32"),
    "a huge tensor": (start(0, 1) + entry(shape=(2**63, 2**63)) + DATA, "its tensors end at byte"),
    "an odd alignment": (
        start(1, 1) + text(b"general.alignment") + struct.pack("<II", 4, 33) + entry() + DATA,
        "general.alignment is 33, not a power of two",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_header_is_refused_by_what_is_wrong(name: str, tmp_path: Path) -> None:
    content, message = BAD[name]
    (tmp_path / "bad.gguf").write_bytes(content)
    with pytest.raises(CheckpointError, match=message) as refused:
        read_header(tmp_path / "bad.gguf")
    assert "\n" not in str(refused.value)


def test_an_endless_header_is_refused(tmp_path: Path) -> None:
    path, count = tmp_path / "long.gguf", MAX_HEADER_BYTES
    with path.open("wb") as file:
        file.write(start(1) + text(b"a") + struct.pack("<IIQ", 9, 0, count))
        file.truncate(2 * count)
    with pytest.raises(CheckpointError, match="values in an array"):
        read_header(path)


def mutate(content: bytes, seed: int) -> bytes:
    """The content with a few bytes replaced, removed or repeated."""
    draw, mutated = random.Random(seed), bytearray(content)
    for _ in range(draw.randint(1, 4)):
        at = draw.randrange(len(mutated))
        match draw.randrange(4):
            case 0:
                mutated[at] = draw.randrange(256)
            case 1:
                mutated[at : at + 8] = draw.choice((0, 1, 2**31, 2**63, 2**64 - 1)).to_bytes(8, "little")
            case 2:
                del mutated[at : at + draw.randint(1, 20)]
            case 3:
                mutated[at:at] = mutated[at : at + draw.randint(1, 20)]
    return bytes(mutated)


def test_a_mutated_file_is_read_or_refused_in_one_line(path: Path, tmp_path: Path) -> None:
    content, mutated, refused = path.read_bytes(), tmp_path / "mutated.gguf", 0
    for seed in range(500):
        mutated.write_bytes(mutate(content, seed))
        try:
            read_header(mutated)
        except CheckpointError as error:
            refused += 1
            assert "\n" not in str(error)
    assert 100 < refused < 500
