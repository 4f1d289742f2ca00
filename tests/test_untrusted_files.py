"""Files of a model that are links, pipes, devices or too large are refused in one line before they are read."""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import SafetensorError, safe_open

from foretell.config.model import ModelConfig
from foretell.convert.export import write_huggingface
from foretell.convert.families import choose_family
from foretell.errors import CheckpointError, ForetellError
from foretell.finding import find_tokenizer
from foretell.language_model import LanguageModel
from foretell.loading import load
from foretell.model.init import make_decoder
from foretell.saved_model.parts_on_disk import save_model
from foretell.storage.files import JSON_LIMIT, TEMPLATE_LIMIT, VOCABULARY_LIMIT, read_json
from foretell.storage.safetensors_files import read_tensor
from foretell.storage.safetensors_header import DTYPE_BITS, read_header
from foretell.text import train_tokenizer

CONFIG, WEIGHTS, TOKENIZER, TEMPLATE = "config.json", "model.safetensors", "tokenizer.json", "chat_template.jinja"
SETTINGS = ("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "generation_config.json")
FILES = {
    "own": (CONFIG, WEIGHTS, TOKENIZER, TEMPLATE),
    "huggingface": (CONFIG, WEIGHTS, TOKENIZER, TEMPLATE, *SETTINGS),
}
LIMITS = {CONFIG: JSON_LIMIT, TOKENIZER: VOCABULARY_LIMIT, TEMPLATE: TEMPLATE_LIMIT}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A saved model with a chat template, and its export; don't change them."""
    tokenizer = train_tokenizer("bytes", ["a text"]).with_chat_template("{{ messages }}")
    sizes = {"num_layers": 1, "num_heads": 2, "width": 8, "context_length": 16, "vocab_size": tokenizer.vocab_size}
    model = LanguageModel(make_decoder(ModelConfig.model_validate(sizes), seed=1), tokenizer)
    folders = {name: tmp_path_factory.mktemp(name) for name in FILES}
    save_model(folders["own"], model.decoder, tokenizer)
    write_huggingface(folders["huggingface"], model, choose_family(model.config), torch.float32)
    return folders


@pytest.fixture(params=[(layout, name) for layout, names in FILES.items() for name in names], ids="-".join)
def file(request: pytest.FixtureRequest, models: dict[str, Path], tmp_path: Path) -> Path:
    """Each file of a copy of each model; some do not exist."""
    layout, name = request.param
    shutil.copytree(models[layout], tmp_path / "model")
    return tmp_path / "model" / name


def moved_out(path: Path) -> None:
    outside = path.parent.parent / "outside"
    if path.exists():
        path.rename(outside)
    else:
        outside.write_text("{}", encoding="utf-8")
    path.symlink_to(outside)


def linked(target: str) -> Callable[[Path], None]:
    def link(path: Path) -> None:
        path.unlink(missing_ok=True)
        path.symlink_to(target)

    return link


def piped(path: Path) -> None:
    path.unlink(missing_ok=True)
    os.mkfifo(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (moved_out, "is a link out of its directory"),
        (linked("/dev/zero"), "is a link out of its directory, to /dev/zero"),
        (piped, "is not a regular file"),
    ],
)
def test_links_out_of_the_folder_devices_and_pipes_are_refused(file: Path, change, message: str) -> None:
    change(file)
    with pytest.raises(ForetellError, match=message) as raised:
        load(file.parent, "cpu")
    assert "\n" not in str(raised.value)
    assert file.name in str(raised.value)


def test_a_link_to_itself_is_one_line(file: Path) -> None:
    linked(file.name)(file)
    with pytest.raises(ForetellError) as raised:
        load(file.parent, "cpu")
    assert "\n" not in str(raised.value)


def test_a_link_within_the_folder_is_read(file: Path) -> None:
    if file.exists():
        file.rename(file.with_name("other"))
        file.symlink_to("other")
    assert load(file.parent, "cpu").tokenizer.chat_template == "{{ messages }}"


@pytest.mark.parametrize("name", LIMITS)
def test_each_kind_of_file_has_a_size_limit(name: str, models: dict[str, Path], tmp_path: Path) -> None:
    shutil.copytree(models["own"], tmp_path / "model")
    os.truncate(tmp_path / "model" / name, LIMITS[name] + 1)
    with pytest.raises(ForetellError, match=f"{name} has .* bytes, far more than such a file needs"):
        load(tmp_path / "model", "cpu")


def test_a_manifest_that_is_a_device_is_refused(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").symlink_to("/dev/zero")
    with pytest.raises(CheckpointError, match="link out of its directory"):
        read_json(tmp_path / "manifest.json")


def test_a_tokenizer_that_the_user_names_may_be_a_link(models: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "mine.json").symlink_to(models["own"] / TOKENIZER)
    assert find_tokenizer(str(tmp_path / "mine.json")).kind == "bytes"


# --- weights that change ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", FILES)
@pytest.mark.parametrize(
    "change", [lambda path, size: path.write_bytes(bytes(size)), os.truncate], ids=["zeros", "cut"]
)
def test_a_loaded_model_does_not_change_with_its_files(layout: str, change, models, tmp_path: Path) -> None:
    shutil.copytree(models[layout], tmp_path / "model")
    model, ids = load(tmp_path / "model", "cpu", "float32"), [1, 2, 3]
    before = model(ids)
    weights = tmp_path / "model" / WEIGHTS
    change(weights, weights.stat().st_size // 2)
    assert torch.equal(model(ids), before)


@pytest.mark.parametrize("change", [lambda path: os.truncate(path, 400), lambda path: os.utime(path)])
def test_weights_that_change_while_they_are_read_are_an_error(change, models, tmp_path: Path) -> None:
    path = shutil.copy(models["own"] / WEIGHTS, tmp_path)
    os.utime(path, ns=(0, 0))
    tensors = read_header(Path(path))
    change(path)
    with pytest.raises(CheckpointError, match="changed while it was read"):
        read_tensor(tensors["trunk.norm.weight"], torch.float32)


def test_a_header_of_a_million_empty_tensors_is_refused_before_it_is_parsed(models, tmp_path: Path) -> None:
    shutil.copytree(models["own"], tmp_path / "model")
    entries = (f'"{index}":{{"dtype":"F32","shape":[0],"data_offsets":[0,0]}}' for index in range(10**6))
    header = ("{" + ",".join(entries) + "}").encode()
    (tmp_path / "model" / WEIGHTS).write_bytes(len(header).to_bytes(8, "little") + header)
    with pytest.raises(CheckpointError, match="its header would have"):
        load(tmp_path / "model", "cpu")


# --- headers ---------------------------------------------------------------------------------------------------------

ENTRIES = st.fixed_dictionaries(
    {
        "dtype": st.sampled_from([*DTYPE_BITS, "F12", 7]),
        "shape": st.lists(st.sampled_from([0, 1, 2, 3, 4, 16, -1, True, 2**62]), max_size=3),
        "data_offsets": st.lists(st.sampled_from([0, 2, 3, 4, 6, 8, 16, -1, True, 2**63]), min_size=1, max_size=3),
    }
)
METADATA_VALUES = [None, {"a": "b"}, {"a": 1}, [], 2]
EXTRAS = st.sampled_from([{}, {"x": 3}, *({"__metadata__": value} for value in METADATA_VALUES)])


@st.composite
def headers(draw: st.DrawFn) -> tuple[dict[str, Any], int]:
    """Entries of tensors one after the other, of which one may be replaced by another entry; the size of the data."""
    header, end = {}, 0
    for name in draw(st.lists(st.sampled_from("abcd"), unique=True, max_size=4)):
        dtype, shape = (
            draw(st.sampled_from(sorted(DTYPE_BITS))),
            draw(st.lists(st.sampled_from([0, 1, 4, 8]), max_size=2)),
        )
        size = math.prod(shape) * DTYPE_BITS[dtype] // 8
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end + size]}
        end += size
    if header and draw(st.booleans()):
        field = draw(st.sampled_from(["dtype", "shape", "data_offsets"]))
        draw(st.sampled_from(list(header.values())))[field] = draw(ENTRIES)[field]
    return header | draw(EXTRAS), max(0, end + draw(st.sampled_from([0, 0, 0, 1, -1])))


@settings(max_examples=500)
@given(headers())
def test_a_header_is_accepted_exactly_if_the_safetensors_library_accepts_it(tmp_path_factory, drawn) -> None:
    header, size = drawn
    encoded, path = json.dumps(header).encode(), tmp_path_factory.getbasetemp() / "drawn.safetensors"
    path.write_bytes(len(encoded).to_bytes(8, "little") + encoded + bytes(size))
    try:
        with safe_open(path, "np") as file:
            slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118 - not a dict
            expected = {name: (each.get_dtype(), tuple(each.get_shape())) for name, each in slices.items()}
    except SafetensorError:
        with pytest.raises(CheckpointError, match="damaged, cut short or not a safetensors file"):
            read_header(path)
    else:
        assert {name: (each.dtype, each.shape) for name, each in read_header(path).items()} == expected
