"""Directories from untrusted sources are refused in one line; nothing is executed or written."""

from __future__ import annotations

import json
import math
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from foretell.cli.main import run as run_command
from foretell.convert.huggingface import load_huggingface
from foretell.errors import CheckpointError, ForetellError
from foretell.inference.completion import generate
from foretell.loading import load
from foretell.storage.safetensors_files import FLOATS, read_tensor
from foretell.storage.safetensors_header import read_header

Spoil = Callable[[Path], None]
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
IDS = torch.arange(7)[None]


def config_with(**changes: Any) -> Spoil:
    def spoil(folder: Path) -> None:
        values = json.loads((folder / "config.json").read_text()) | changes
        kept = {name: value for name, value in values.items() if value is not ...}
        (folder / "config.json").write_text(json.dumps(kept))

    return spoil


def weights_with(**changes: torch.Tensor | None) -> Spoil:
    """Weights with some added, replaced or (None) left out; `__` means the dots of a name."""

    def spoil(folder: Path) -> None:
        weights = load_file(folder / WEIGHTS) | {name.replace("__", "."): value for name, value in changes.items()}
        save_file({name: value for name, value in weights.items() if value is not None}, folder / WEIGHTS)

    return spoil


def header_with(change: Callable[[dict[str, Any]], None]) -> Spoil:
    """The header changed, the data unchanged."""

    def spoil(folder: Path) -> None:
        content = (folder / WEIGHTS).read_bytes()
        (length,) = struct.unpack("<Q", content[:8])
        header = json.loads(content[8 : 8 + length])
        change(header)
        encoded = json.dumps(header).encode()
        (folder / WEIGHTS).write_bytes(struct.pack("<Q", len(encoded)) + encoded + content[8 + length :])

    return spoil


def entry_with(**changes: Any) -> Spoil:
    """Other values in one entry of the header."""
    return header_with(lambda header: header["transformer.ln_f.bias"].update(changes))


def overlap(header: dict[str, Any]) -> None:
    first, second = list(header)[1:3]
    header[second]["data_offsets"] = header[first]["data_offsets"]
    header[second]["shape"], header[second]["dtype"] = header[first]["shape"], header[first]["dtype"]


def file_with(name: str, content: bytes | None) -> Spoil:
    def spoil(folder: Path) -> None:
        (folder / name).unlink()
        if content is not None:
            (folder / name).write_bytes(content)

    return spoil


def cut(folder: Path) -> None:
    (folder / WEIGHTS).write_bytes((folder / WEIGHTS).read_bytes()[:-5])


def padded(folder: Path) -> None:
    (folder / WEIGHTS).write_bytes((folder / WEIGHTS).read_bytes() + b"12345")


def pickled(folder: Path) -> None:
    (folder / WEIGHTS).unlink()
    (folder / "pytorch_model.bin").write_bytes(b"cos\nsystem\n(S'touch executed'\ntR.")


def link_out(name: str) -> Spoil:
    def spoil(folder: Path) -> None:
        elsewhere = folder.parent / f"elsewhere-{name}"
        (folder / name).rename(elsewhere)
        (folder / name).symlink_to(elsewhere)

    return spoil


def index_with(weight_map: Any) -> Spoil:
    """Weights in a shard, with this index, or an index changed by this function."""

    def spoil(folder: Path) -> None:
        weights = load_file(folder / WEIGHTS)
        (folder / WEIGHTS).rename(folder / "part.safetensors")
        listed = weight_map(dict.fromkeys(weights, "part.safetensors")) if callable(weight_map) else weight_map
        (folder / INDEX).write_text(json.dumps({"weight_map": listed}))

    return spoil


def twice(folder: Path) -> None:
    weights = load_file(folder / WEIGHTS)
    save_file(weights | {"ln_f.bias": weights["transformer.ln_f.bias"].clone()}, folder / WEIGHTS)


TWICE = b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}'
ENTRY_TWICE = len(TWICE).to_bytes(8, "little") + TWICE + bytes(8)
SQUARE = torch.zeros(72, 72)
FIRST = "transformer.wte.weight"
HUGE = ("vocab_size", "hidden_size", "intermediate_size", "head_dim", "num_attention_heads", "num_key_value_heads")
BEYOND_TORCH = {
    "model_type": "llama",
    "num_hidden_layers": 2,
    "max_position_embeddings": 9,
    **dict.fromkeys(HUGE, 2**24),
}
REFUSED: dict[str, tuple[Spoil, str]] = {
    "unknown architecture": (
        config_with(model_type="gpt3"),
        "model_type 'gpt3', which foretell cannot read; known: gpt2, openai-gpt",
    ),
    "mamba is not llama": (
        config_with(model_type="mamba"),
        "'mamba', which foretell cannot read; known: gpt2, .*gemma3_text$",
    ),
    "mixtral is not mistral": (
        config_with(model_type="mixtral"),
        "cannot read: it needs experts; known: gpt2, .*gemma3_text$",
    ),
    "gptj is not gpt2": (config_with(model_type="gptj"), "cannot read; known: gpt2, .*gemma3_text$"),
    "a classifier": (
        weights_with(score__weight=torch.zeros(2, 72)),
        "has the weight 'score.weight', the head of a classifier or another task",
    ),
    "an extra weight of the trunk": (weights_with(extra=SQUARE), "has a weight 'extra' that a gpt2 does not"),
    "far from any architecture": (config_with(model_type="zzz"), "model_type 'zzz'.*known: gpt2, openai-gpt, llama"),
    "architecture that is a list": (config_with(model_type=["gpt2"]), "model_type"),
    "another architecture": (config_with(model_type="llama"), "config.json: max_position_embeddings is missing"),
    "an absurd number of layers": (config_with(n_layer=10**9), "n_layer = 1000000000"),
    "many layers": (config_with(n_layer=16_000), "has 28 weights, too few for the configuration's 16000 layers"),
    "one layer more": (config_with(n_layer=3), "has no weight 'transformer.h.2.ln_1.weight'"),
    "one layer less": (config_with(n_layer=1), "has a weight 'transformer.h.1.* beyond the 1 layer of its config.json"),
    "no layers": (config_with(n_layer=0), "config.json: n_layer = 0: input should be greater than 0"),
    "no width": (config_with(n_embd=None), "config.json: n_embd = None: input should be a valid integer"),
    "an odd number of heads": (config_with(n_head=5), "n_embd 72 is not a multiple of n_head 5; change one$"),
    "weights without a configuration": (file_with("config.json", None), "is not complete: config.json is missing"),
    "absurd width": (config_with(n_embd=3 * 2**40), "n_embd = 3298534883328"),
    "another width": (config_with(n_embd=75), "has shape .*, the configuration asks for"),
    "sizes beyond torch's limits": (config_with(**BEYOND_TORCH), "config.json: .*exceed torch's limits"),
    "absurd context": (config_with(n_positions=2**24), "'transformer.wpe.weight' has shape"),
    "config that is a list": (file_with("config.json", b"[]"), "config.json does not hold a JSON object"),
    "config nested deeply": (file_with("config.json", b"[" * 100_000), "config.json is not readable JSON"),
    "config that is huge": (file_with("config.json", b" " * 2**24), "config.json has 16,777,216 bytes"),
    "header bomb": (file_with(WEIGHTS, (2**60).to_bytes(8, "little") + b"{}"), "its header would have 1152921504606"),
    "header larger than allowed": (file_with(WEIGHTS, (2**20 + 1).to_bytes(8, "little") + b" " * 2**21), "its header"),
    "header nested deeply": (
        file_with(WEIGHTS, (10**5).to_bytes(8, "little") + b"[" * 10**5),
        "its header is not JSON",
    ),
    "header not UTF-8": (file_with(WEIGHTS, (4).to_bytes(8, "little") + b"\xff\xfe{}"), "its header is not JSON"),
    "header is a list": (file_with(WEIGHTS, (2).to_bytes(8, "little") + b"[]"), "its header is not a JSON object"),
    "a name twice in the header": (file_with(WEIGHTS, (14).to_bytes(8, "little") + b'{"a":1, "a":2}'), "appears twice"),
    "a valid entry twice in the header": (file_with(WEIGHTS, ENTRY_TWICE), "appears twice"),
    "empty weights": (file_with(WEIGHTS, b""), "its header would have 0 bytes, and the file has 0"),
    "few bytes": (file_with(WEIGHTS, b"abc"), "the file has 3"),
    "no tensors": (file_with(WEIGHTS, (2).to_bytes(8, "little") + b"{}"), "has 0 weights"),
    "no weights": (file_with(WEIGHTS, None), f"has no weights: neither {WEIGHTS} nor {INDEX}"),
    "a pickle": (pickled, "has only pytorch_model.bin; such a file can run any code when it is opened"),
    "a pickle under the name": (
        file_with(WEIGHTS, b"\x80\x02}q\x00." * 9),
        "damaged, cut short or not a safetensors file",
    ),
    "cut short": (cut, "cut short .*: its tensors end at byte .*, and the file has"),
    "longer than its header states": (padded, "its tensors end at byte .*, and the file has"),
    "overlapping tensors": (header_with(overlap), "begins at byte .* of the data, the one before ends at"),
    "a gap": (entry_with(shape=[71], data_offsets=[4, 288]), "begins at byte 4 of the data, the one before ends at"),
    "offsets outside": (entry_with(data_offsets=[2**40, 2**40 + 288]), "the one before ends at"),
    "offsets backwards": (
        entry_with(data_offsets=[288, 0]),
        "'transformer.ln_f.bias' has -288 bytes, which do not fit its shape",
    ),
    "negative offsets": (entry_with(data_offsets=[-288, 0]), "not whole numbers from 0 on"),
    "no offsets": (entry_with(data_offsets=None), "has no dtype, shape and data_offsets"),
    "offsets that are text": (entry_with(data_offsets="08"), "has no dtype, shape and data_offsets"),
    "an absurd shape": (entry_with(shape=[2**62, 2**62]), "has 288 bytes, which do not fit its shape"),
    "many dimensions": (entry_with(shape=[1] * 100), "has 100 dimensions"),
    "many dimensions of size 1": (entry_with(shape=[72] + [1] * 99), "'transformer.ln_f.bias' has 100 dimensions"),
    "a negative shape": (entry_with(shape=[-72]), "not whole numbers from 0 on"),
    "a true shape": (entry_with(shape=[True]), "not whole numbers from 0 on"),
    "unknown dtype": (entry_with(dtype="F12"), "unknown dtype 'F12'"),
    "a dtype that is a number": (entry_with(dtype=7), "has no dtype, shape and data_offsets"),
    "whole numbers as weights": (entry_with(dtype="I32"), "holds I32, which is not a floating-point type"),
    "an entry that is a number": (
        header_with(lambda header: header.update(x=3)),
        "'x' has no dtype, shape and data_offsets",
    ),
    "missing weight": (weights_with(transformer__ln_f__bias=None), "has no weight 'transformer.ln_f.bias'"),
    "extra weight": (weights_with(transformer__ln_g__bias=SQUARE), "has a weight 'transformer.ln_g.bias' that a gpt2"),
    "misshaped weight": (
        weights_with(transformer__h__0__attn__c_attn__weight=SQUARE),
        r"'transformer.h.0.attn.c_attn.weight' has shape \(72, 72\), the configuration asks for \(72, 216\)",
    ),
    "weight twice": (twice, "has 1 weights twice, with and without 'transformer.'"),
    "a head that is not tied": (weights_with(lm_head__weight=torch.zeros(37, 72)), "'lm_head.weight' is not the embed"),
    "a head that is missing": (config_with(tie_word_embeddings=False), "has no weight 'lm_head.weight'"),
    "index that leads out": (index_with({FIRST: "../part.safetensors"}), "names '../part.safetensors'"),
    "index with a path": (index_with({FIRST: "/etc/passwd"}), "names '/etc/passwd'"),
    "index with a pickle": (index_with({FIRST: "part.bin"}), "names 'part.bin'"),
    "index of a missing file": (index_with({FIRST: "p.safetensors"}), "p.safetensors is missing"),
    "index with other names": (
        index_with(lambda weight_map: weight_map | {"x": "part.safetensors"}),
        "'x' is in the index and not",
    ),
    "index with fewer names": (
        index_with(lambda weight_map: {FIRST: weight_map[FIRST]}),
        "is in the file, not in the index",
    ),
    "index without a map": (index_with(None), "has no weight_map"),
    "index of numbers": (index_with({FIRST: 3}), "has no weight_map"),
    "weights elsewhere": (link_out(WEIGHTS), f"{WEIGHTS} is a link out of its directory"),
    "config elsewhere": (link_out("config.json"), "config.json is a link out of its directory"),
    "tokenizer elsewhere": (link_out("tokenizer.json"), "tokenizer.json is a link out of its directory"),
    "broken tokenizer": (file_with("tokenizer.json", b"{}"), "tokenizer.json"),
    "tokenizer of another vocabulary": (
        lambda folder: (
            config_with(vocab_size=20)(folder),
            weights_with(transformer__wte__weight=torch.zeros(20, 72))(folder),
        )[-1],
        "the tokenizer has 30 tokens and the model 20; they do not belong together",
    ),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_a_bad_directory_is_refused_in_one_line(kind: str, copy_of, tmp_path: Path) -> None:
    spoil, message = REFUSED[kind]
    folder = copy_of("gpt2")
    spoil(folder)
    before = sorted(path.name for path in folder.iterdir())
    with pytest.raises(ForetellError, match=message) as raised:
        load(folder, "cpu")
    assert "\n" not in str(raised.value)
    assert len(str(raised.value)) < 600
    assert raised.value.exit_code == 1
    assert sorted(path.name for path in folder.iterdir()) == before


def test_a_pipe_in_place_of_a_file_does_not_hang(copy_of) -> None:
    folder = copy_of("gpt2")
    (folder / "tokenizer_config.json").unlink(missing_ok=True)
    os.mkfifo(folder / "tokenizer_config.json")
    with pytest.raises(CheckpointError, match="tokenizer_config.json is not a regular file"):
        load_huggingface(folder)


@pytest.mark.parametrize("verb", [["info"], ["next", "a"], ["convert", "out", "--to", "huggingface"]])
def test_every_verb_refuses_it_in_one_line(verb: list[str], copy_of, monkeypatch, tmp_path: Path, capfd) -> None:
    folder = copy_of("gpt2")
    cut(folder)
    monkeypatch.chdir(tmp_path)
    assert run_command([verb[0], str(folder), *verb[1:]]) == 1
    error = capfd.readouterr().err.strip().splitlines()[-1]
    assert error.startswith("foretell: ")
    assert "cut short" in error
    assert [path.name for path in tmp_path.iterdir()] == ["copy"]


# --- unusual but valid -----------------------------------------------------------------------------------------------


def in_a_cache(folder: Path) -> Path:
    """A download cache keeps the files of a revision as links to blobs."""
    revision = folder.parent / "models--x" / "snapshots" / "0123"
    blobs = revision.parent.parent / "blobs"
    revision.mkdir(parents=True)
    blobs.mkdir()
    for index, path in enumerate(sorted(folder.iterdir())):
        path.rename(blobs / str(index))
        (revision / path.name).symlink_to(Path("../../blobs") / str(index))
    return revision


def without_prefix(folder: Path) -> Path:
    weights = load_file(folder / WEIGHTS)
    save_file({name.removeprefix("transformer."): value for name, value in weights.items()}, folder / WEIGHTS)
    return folder


def with_buffers(folder: Path) -> Path:
    """Older files hold the causal mask, and a copy of the tied head."""
    weights = load_file(folder / WEIGHTS)
    weights |= {f"transformer.h.{layer}.attn.bias": torch.ones(1, 1, 19, 19).tril().bool() for layer in range(2)}
    weights |= {f"transformer.h.{layer}.attn.masked_bias": torch.tensor(-1e4) for layer in range(2)}
    weights["lm_head.weight"] = weights["transformer.wte.weight"].clone()
    save_file(weights, folder / WEIGHTS)
    return folder


def misaligned(folder: Path) -> Path:
    """Older writers did not round the header's length up."""
    content = (folder / WEIGHTS).read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    header = content[8 : 8 + length].rstrip() + b" "
    header += b" " * (3 - len(header) % 4)
    (folder / WEIGHTS).write_bytes(struct.pack("<Q", len(header)) + header + content[8 + length :])
    return folder


def with_an_index(folder: Path) -> Path:
    index_with(lambda weight_map: weight_map)(folder)
    return folder


UNUSUAL = [in_a_cache, without_prefix, with_buffers, misaligned, with_an_index]


@torch.no_grad()
@pytest.mark.parametrize("change", UNUSUAL)
def test_an_unusual_directory_loads_as_the_same_model(change: Callable[[Path], Path], copy_of, directory_of) -> None:
    expected = load_huggingface(directory_of("gpt2")).decoder(IDS)
    model = load_huggingface(change(copy_of("gpt2")))
    assert torch.equal(model.decoder(IDS), expected)
    assert [note.partition(": ")[2] for note in model.notes] == ["7 of the model's 37 tokens are not in the tokenizer"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("wanted", [torch.float32, torch.float16, torch.bfloat16])
def test_every_stored_precision_can_be_read_in_every_other(dtype, wanted, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("foretell.storage.safetensors_files.READ_AT_A_TIME", 64)  # several parts
    tensors = {"a": torch.randn(7, 5).to(dtype), "b": torch.randn(3).to(dtype), "c": torch.randn(()).to(dtype)}
    save_file(tensors, tmp_path / "x.safetensors")
    for name, stored in read_header(tmp_path / "x.safetensors").items():
        assert FLOATS[stored.dtype] == dtype
        assert torch.equal(read_tensor(stored, wanted), tensors[name].to(wanted))


def test_writing_into_a_loaded_weight_does_not_change_the_file(copy_of) -> None:
    folder = copy_of("llama")
    before = (folder / WEIGHTS).read_bytes()
    with torch.no_grad():
        for parameter in load_huggingface(folder).decoder.parameters():
            parameter.add_(1)
    assert (folder / WEIGHTS).read_bytes() == before


# --- mutated files ---------------------------------------------------------------------------------------------------

BITS = {"BOOL": 8, "U8": 8, "I8": 8, "I16": 16, "U16": 16, "I32": 32, "U32": 32, "I64": 64, "U64": 64, "C64": 64}
BITS |= {"F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "F8_E8M0": 8, "F8_E4M3": 8, "F8_E5M2": 8, "F16": 16, "BF16": 16}
BITS |= {"F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8, "F32": 32, "F64": 64}


@pytest.fixture(scope="module")
def small_file(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("small") / "small.safetensors"
    save_file({"a.weight": torch.ones(2, 3), "b": torch.zeros(4, dtype=torch.float16)}, path)
    return path


@settings(max_examples=60)
@given(data=st.data())
def test_a_mutated_file_is_read_completely_or_refused_in_one_line(small_file: Path, data: st.DataObject) -> None:
    content = bytearray(small_file.read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        start = data.draw(st.integers(0, len(content) - 1))
        content[start : start + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    mutated = small_file.with_name("mutated.safetensors")
    mutated.write_bytes(content)
    try:
        tensors = read_header(mutated)
    except CheckpointError as error:
        assert "\n" not in str(error)
        return
    assert sum(math.prod(tensor.shape) * BITS[tensor.dtype] // 8 for tensor in tensors.values()) <= len(content)
    for tensor in tensors.values():
        if tensor.dtype in FLOATS:
            assert read_tensor(tensor, torch.float32).shape == tensor.shape


def test_a_directory_without_a_tokenizer_is_read_and_takes_ids(copy_of) -> None:
    folder = copy_of("gpt2")
    logits = load(folder, "cpu")([[1, 2, 3]])
    (folder / "tokenizer.json").unlink()
    model = load(folder, "cpu")
    assert any("no tokenizer; a text is token ids" in note for note in model.notes)
    assert model.encode("1 2 3") == [1, 2, 3]
    assert torch.equal(model(model.encode("1 2 3")), logits)
    assert model.tokenizer.end_ids == ()


def test_without_a_tokenizer_the_end_ids_of_the_configuration_end_a_text(copy_of) -> None:
    folder = copy_of("gpt2")
    (folder / "tokenizer.json").unlink()
    content = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**content, "eos_token_id": [7, 10**9, 9]}))
    model = load(folder, "cpu")
    assert model.tokenizer.end_ids == (7, 9)
    assert model.encode("7 9") == [7, 9]
    completion = generate(model, "1 2", 4, temperature=0, logit_bias={9: 99})
    assert (completion.token_ids, completion.finish_reason) == ([], "end")


@pytest.mark.parametrize("name", ["tokenizer.model", "vocab.json"])
def test_a_tokenizer_that_cannot_be_read_is_not_left_out(copy_of, name: str) -> None:
    folder = copy_of("gpt2")
    (folder / "tokenizer.json").rename(folder / name)
    with pytest.raises(ForetellError, match="holds no tokenizer"):
        load(folder, "cpu")
