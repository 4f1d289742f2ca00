"""An independent reference: a small trained GPT that was published with its intermediate values.

gpt-nano-sort is minGPT's sorting demo, 85,000 parameters; weights and values of its first block for three inputs are in
the repository of llm-viz (Brendan Bycroft, MIT). The files are not part of this repository.
"""

from __future__ import annotations

import base64
import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from foretell.config.model import ModelConfig
from foretell.convert.families import GPT2
from foretell.convert.family import Family, Transpose, iter_ours
from foretell.insight.trace import Trace
from foretell.model.decoder import Decoder

FOLDER = Path("data/checkpoints/nano_sort")
RELATIVE = 1e-5  # of the largest value of a tensor
BLOCK = "trunk.blocks.0"
# a published value -> the name of ours
SAME = {
    "tok_emb": "embed.token",
    "pos_emb": "embed.position",
    "x": "embed",
    "ln1": f"{BLOCK}.attention_norm",
    "q": f"{BLOCK}.attention.core.query",
    "k": f"{BLOCK}.attention.core.key",
    "v": f"{BLOCK}.attention.core.value",
    "att": f"{BLOCK}.attention.core.masked",
    "attSm": f"{BLOCK}.attention.core.weights",
    "yProj": f"{BLOCK}.attention",
    "attnResid": f"{BLOCK}.attention_residual",
    "ln2": f"{BLOCK}.feedforward_norm",
    "fc": f"{BLOCK}.feedforward.up",
    "gelu": f"{BLOCK}.feedforward.activation",
    "mlp": f"{BLOCK}.feedforward",
    "mlpResid": f"{BLOCK}.feedforward_residual",
    "block0": "trunk.blocks.0",
    "block1": "trunk.blocks.1",
    "block2": "trunk.blocks.2",
    "ln_f": "trunk",
    "lm_head": "head",
}
# a published value that combines several of ours, or has another shape
COMBINED = {
    "qkv": lambda trace: torch.cat([trace[f"{BLOCK}.attention.{name}"] for name in ("query", "key", "value")], -1),
    "y": lambda trace: trace[f"{BLOCK}.attention.core"].transpose(1, 2).flatten(2),
    "probs": lambda trace: trace["head"].softmax(-1),
}


def nano_sort() -> Path | None:
    """The folder of the published files: in $FORETELL_SHARED, or in a folder `shared` next to any parent folder."""
    named = os.environ.get("FORETELL_SHARED")
    shared = [Path(named)] if named else [parent / "shared" for parent in Path(__file__).resolve().parents]
    return next((folder / FOLDER for folder in shared if (folder / FOLDER).is_dir()), None)


def read(name: str) -> dict[str, Tensor]:
    """The tensors of one published file."""
    folder = nano_sort()
    if folder is None:
        pytest.skip(f"{FOLDER} not found; set FORETELL_SHARED to its parent folder")
    values = json.loads((folder / name).read_text(encoding="utf-8"))
    return {key: tensor(value) for key, value in values.items() if "data" in value}


def tensor(value: dict) -> Tensor:
    content = bytearray(base64.b64decode(value["data"]))
    return torch.frombuffer(content, dtype=torch.float32).reshape(value["shape"])


def untransposed() -> Family:
    """GPT-2's table without transposition: these matrices have our layout."""
    rows = (
        replace(row, transforms=tuple(transform for transform in row.transforms if transform != Transpose()))
        for row in GPT2.rows
    )
    return replace(GPT2, rows=tuple(rows))


@pytest.fixture(scope="module")
def published() -> dict[str, Tensor]:
    return read("gpt-nano-sort-t0-partials.json")


@pytest.fixture(scope="module")
def sorter() -> Decoder:
    config = ModelConfig(  # pyrefly: ignore[missing-argument]
        num_layers=3, num_heads=3, width=48, context_length=11, vocab_size=3, tie_embeddings=False
    )
    decoder = Decoder(config).eval()
    theirs = read("gpt-nano-sort-model.json")
    decoder.load_state_dict(dict(iter_ours(untransposed(), config, theirs.__getitem__)))
    return decoder


@pytest.fixture(scope="module")
def trace(sorter: Decoder, published: dict[str, Tensor]) -> Trace:
    with Trace(sorter, "**") as trace:
        sorter(published["idx"].long())
    return trace


def error(ours: Tensor, theirs: Tensor) -> float:
    """The largest difference, relative to the largest value; -infinity must be in the same places."""
    assert ours.shape == theirs.shape
    assert torch.equal(ours.isinf(), theirs.isinf())
    finite = theirs.isfinite()
    return float((ours - theirs)[finite].abs().max() / theirs[finite].abs().max())


def test_every_published_value_is_compared(published: dict[str, Tensor]) -> None:
    assert {*SAME, *COMBINED, "idx"} == set(published)


@pytest.mark.parametrize("name", SAME)
def test_a_recorded_value_is_the_published_one(name: str, trace: Trace, published: dict[str, Tensor]) -> None:
    assert error(trace[SAME[name]], published[name]) < RELATIVE


@pytest.mark.parametrize("name", COMBINED)
def test_a_combined_value_is_the_published_one(name: str, trace: Trace, published: dict[str, Tensor]) -> None:
    assert error(COMBINED[name](trace), published[name]) < RELATIVE


def test_another_gelu_would_be_detected(sorter: Decoder, trace: Trace, published: dict[str, Tensor]) -> None:
    up = trace[f"{BLOCK}.feedforward.up"]
    assert error(torch.nn.functional.gelu(up), published["gelu"]) > RELATIVE


def test_the_sorter_sorts(trace: Trace, published: dict[str, Tensor]) -> None:
    digits, answers = published["idx"][:, :6], trace["head"].argmax(-1)[:, 5:]
    assert torch.equal(answers, digits.long().sort().values)
