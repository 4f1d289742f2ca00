"""A short fuzzer: every value in every JSON file of a model is changed, and loading succeeds or fails in one line."""

from __future__ import annotations

import copy
import json
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from foretell.config.model import ModelConfig
from foretell.convert.export import write_huggingface
from foretell.convert.families import find_family
from foretell.errors import ForetellError
from foretell.language_model import LanguageModel
from foretell.loading import load
from foretell.model.init import make_decoder
from foretell.saved_model.parts_on_disk import save_model
from foretell.text import train_tokenizer
from foretell.text.tokenizer_json import special_token, with_ends, with_start

VALUES = (None, True, 0, -1, 5, 1.5, 2**31 - 1, 10**30, "", "x", "\u0000", [], ["x"], [[]], {}, {"x": 1}, {"id": []})
MUTATIONS = 120  # of each file; hundreds of thousands were tried before
FAMILY = {"position": "rotary", "norm": "rmsnorm", "feedforward": "gated", "activation": "silu", "bias": False}


def paths_in(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of every value within a JSON value."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield (*path, key)
        yield from paths_in(inner, (*path, key))


def mutated(value: Any, draw: random.Random) -> Any:
    """The value with one part replaced, removed, renamed or repeated."""
    changed = copy.deepcopy(value)
    # The vocabulary has most of the paths and little structure
    shallow = [
        path for path in paths_in(changed) if len(path) < 3 or path[:2] != ("model", "vocab") or draw.random() < 0.02
    ]
    *parents, key = draw.choice(shallow)
    holder = changed
    for parent in parents:
        holder = holder[parent]
    action = draw.randrange(10)
    if action == 0:
        del holder[key]
    elif action == 1 and isinstance(holder, dict):
        holder[draw.choice(("x", "id", "type", ""))] = holder.pop(key)
    elif action == 2 and isinstance(holder, list):
        holder.append(holder[key])
    else:
        holder[key] = draw.choice(VALUES)
    return changed


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A saved model and its export, with every kind of settings file."""
    plain = train_tokenizer("bpe", ["some text with some words"] * 9, vocab_size=270)
    content = plain.to_json()
    content["added_tokens"].append(special_token("<s>", plain.vocab_size))
    content = with_ends(with_start(content, "<s>"), ["<|endoftext|>"])
    tokenizer = type(plain)(content).with_chat_template("{{ messages }}")
    sizes = {"num_layers": 1, "num_heads": 2, "width": 8, "context_length": 16, "vocab_size": tokenizer.vocab_size}
    model = LanguageModel(make_decoder(ModelConfig.model_validate({**sizes, **FAMILY}), seed=1), tokenizer)
    own, theirs = tmp_path_factory.mktemp("own"), tmp_path_factory.mktemp("theirs")
    save_model(own, model.decoder, tokenizer)
    write_huggingface(theirs, model, find_family("llama"), torch.float32)
    (theirs / "chat_template.jinja").unlink()
    settings = json.loads((theirs / "tokenizer_config.json").read_text())
    settings["chat_template"] = [{"name": "default", "template": "a"}, {"name": "other", "template": "b"}]
    settings["added_tokens_decoder"] = {str(tokenizer.start_id): {"content": "<s>", "special": True}}
    settings |= {"additional_special_tokens": ["<s>"], "add_bos_token": True, "tokenizer_class": "GPT2Tokenizer"}
    (theirs / "tokenizer_config.json").write_text(json.dumps(settings))
    (theirs / "special_tokens_map.json").write_text(json.dumps({"bos_token": {"content": "<s>"}, "eos_token": "<s>"}))
    (theirs / "added_tokens.json").write_text(json.dumps({"<s>": tokenizer.start_id}))
    (theirs / "generation_config.json").write_text(json.dumps({"eos_token_id": [tokenizer.end_id, 5]}))
    return {"own": own, "huggingface": theirs}


FILES = {
    "own": ("config.json", "tokenizer.json"),
    "huggingface": (
        *("config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"),
        *("added_tokens.json", "generation_config.json"),
    ),
}


@pytest.mark.parametrize(("layout", "name"), [(layout, name) for layout, names in FILES.items() for name in names])
def test_a_mutated_file_is_read_or_refused_in_one_line(layout: str, name: str, models, tmp_path: Path) -> None:
    shutil.copytree(models[layout], tmp_path / "model")
    path = tmp_path / "model" / name
    content, draw = json.loads(path.read_text()), random.Random(f"{layout} {name}")
    loaded = 0
    for _ in range(MUTATIONS):
        changed = mutated(content, draw)
        path.write_text(json.dumps(changed))
        try:
            model = load(tmp_path / "model", "cpu", "float32")
            ids = model.encode("some words")
            model.decode(ids)
            loaded += 1
        except ForetellError as error:
            assert "\n" not in str(error), changed
            assert len(str(error)) < 900, changed
    assert loaded  # the fuzzer reaches what comes after the first check
