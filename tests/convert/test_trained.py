"""Two trained checkpoints in other formats, read with the product's transforms: one sorts, one tells stories.

gpt-nano-sort is minGPT's demo, in GPT-2's names without Conv1D. babyllama105 is in llama2.c's format, with neighbouring
numbers rotated: a Llama of 900,000 parameters that was trained on TinyStories, with a published validation loss of
0.7366. Both are data outside this repository.
"""

from __future__ import annotations

import base64
import json
import math
import os
import struct
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from foretell.config.model import ModelConfig
from foretell.config.sampling import SamplingConfig
from foretell.config.section import make_section
from foretell.convert.export import export_huggingface
from foretell.convert.families import GPT2, LLAMA
from foretell.convert.family import Family, Permute, Row, Transpose, iter_ours, pairings
from foretell.convert.huggingface import load_huggingface
from foretell.generation.batch_generation import generate
from foretell.generation.sampling import Sampler
from foretell.generation.sequence import Sequence
from foretell.language_model import LanguageModel
from foretell.model.decoder import Decoder
from foretell.model.init import decoder_with_weights
from foretell.text import Tokenizer
from foretell.text.tokenizer_json import character_json

CHECKPOINTS = Path("data/checkpoints")


def checkpoint(name: str) -> Path:
    """The folder of a checkpoint: below $FORETELL_SHARED, or below a folder `shared` in any parent."""
    named = os.environ.get("FORETELL_SHARED")
    shared = [Path(named)] if named else [parent / "shared" for parent in Path(__file__).resolve().parents]
    folder = next((parent / CHECKPOINTS / name for parent in shared if (parent / CHECKPOINTS / name).is_dir()), None)
    if folder is None:
        pytest.skip(f"{CHECKPOINTS / name} is missing; name the folder above it in FORETELL_SHARED")
    return folder


def decoder_of(config: ModelConfig, weights: Iterator[tuple[str, Tensor]]) -> Decoder:
    return decoder_with_weights(config, dict(weights)).eval()


# --- minGPT's -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def sorter() -> LanguageModel:
    """GPT-2's table without the transposition."""
    content = json.loads((checkpoint("nano_sort") / "gpt-nano-sort-model.json").read_text(encoding="utf-8"))
    sizes = {"num_layers": 3, "num_heads": 3, "width": 48, "context_length": 11, "vocab_size": 3}
    config = make_section(ModelConfig, {**sizes, "tie_embeddings": False})
    rows = (replace(row, transforms=tuple(t for t in row.transforms if t != Transpose())) for row in GPT2.rows)
    family, read = replace(GPT2, rows=tuple(rows)), partial(read_base64, content)
    decoder = decoder_of(config, iter_ours(family, config, read))
    return LanguageModel(decoder, Tokenizer(character_json("012", [])))


def read_base64(content: dict[str, Any], name: str) -> Tensor:
    data = bytearray(base64.b64decode(content[name]["data"]))
    return torch.frombuffer(data, dtype=torch.float32).reshape(content[name]["shape"])


@torch.no_grad()
def sorted_by(decoder: Decoder, digits: Tensor) -> Tensor:
    """The six digits that the model generates after these (B, 6)."""
    ids = digits
    for _ in range(6):
        ids = torch.cat((ids, decoder(ids)[:, -1:].argmax(-1)), dim=1)
    return ids[:, 6:]


def test_the_sorter_sorts(sorter: LanguageModel) -> None:
    digits = torch.cartesian_prod(*[torch.arange(3)] * 6)  # all 729
    right = (sorted_by(sorter.decoder, digits) == digits.sort().values).all(-1)
    assert right.float().mean() > 0.98


def test_the_sorter_still_sorts_after_a_round_trip_through_gpt2s_format(sorter: LanguageModel, tmp_path: Path) -> None:
    assert export_huggingface(sorter, tmp_path / "out")["family"] == "gpt2"
    digits = torch.tensor([[2, 0, 1, 1, 0, 2]])
    assert sorted_by(load_huggingface(tmp_path / "out").decoder, digits).tolist() == [[0, 0, 1, 1, 2, 2]]


# --- llama2.c's -----------------------------------------------------------------------------------------------------

# the order of the arrays in the file; each holds all layers
ORDER = (
    *("embed_tokens", "input_layernorm", "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    *("self_attn.o_proj", "post_attention_layernorm", "mlp.gate_proj", "mlp.down_proj", "mlp.up_proj", "norm"),
)
START, PUBLISHED = 1, 0.7366
# in the style of its training texts, and not one of them
STORY = (
    "One morning Ben found a small box under the table. The box was old and full of buttons. He took a blue button to "
    'his mom and asked, "Can I keep it?" Mom said, "Yes, but you must share with your sister." Ben was not happy at '
    "first. Then he had an idea."
)


def interleaved(row: Row) -> Row:
    """The row, permuted for queries and keys, which rotate pairs (2i, 2i+1)."""
    is_rotated = row.theirs.endswith(("q_proj", "k_proj"))
    return replace(row, transforms=(Permute(),)) if is_rotated else row


@pytest.fixture(scope="module")
def teller() -> LanguageModel:
    """Llama's table, with interleaved rotation."""
    folder = checkpoint("babyllama105")
    content = (folder / "model5000.bin").read_bytes()
    width, hidden, layers, heads, kv_heads, vocabulary, context = struct.unpack("<7i", content[:28])
    sizes = {"width": width, "feedforward_width": hidden, "num_layers": layers, "num_heads": heads}
    sizes |= {"num_kv_heads": kv_heads, "vocab_size": vocabulary, "context_length": context}
    modern = {"position": "rotary", "norm": "rmsnorm", "feedforward": "gated", "activation": "silu", "bias": False}
    config = make_section(ModelConfig, {**sizes, **modern, "tie_embeddings": True})
    family = replace(LLAMA, rows=tuple(interleaved(row) for row in LLAMA.rows))
    tensors = in_order(family, config, torch.frombuffer(bytearray(content[28:]), dtype=torch.float32))
    return LanguageModel(decoder_of(config, iter_ours(family, config, tensors.__getitem__)), pieces(folder))


def in_order(family: Family, config: ModelConfig, values: Tensor) -> dict[str, Tensor]:
    """The file's values as tensors under Llama's names."""
    names = [pairing.row.theirs for pairing in pairings(family, config)]
    order = {path: next(i for i, name in enumerate(ORDER) if path.endswith(f".{name}")) for path in names}
    tensors, start = {}, 0
    for pairing in sorted(pairings(family, config), key=lambda pairing: order[pairing.row.theirs]):
        count = math.prod(pairing.shape)
        tensors[pairing.theirs] = values[start : start + count].view(pairing.shape)
        start += count
    return tensors


def pieces(folder: Path) -> Tokenizer:
    """One character per token, a space written as U+2581; the first three are special."""
    lines = (folder / "tok105.vocab").read_text(encoding="utf-8").splitlines()
    names = [line.split("\t")[0].replace("\u2581", " ") for line in lines]
    return Tokenizer(character_json(names, names[:3]))


@torch.no_grad()
def loss_of(decoder: Decoder, tokenizer: Tokenizer) -> float:
    """Nats per token of the story, after the start token and the space that every text begins with."""
    ids = torch.tensor([[START, *tokenizer.encode(f" {STORY}")]])
    return float(torch.nn.functional.cross_entropy(decoder(ids)[0, :-1], ids[0, 1:]))


def test_the_teller_reaches_about_its_published_loss(teller: LanguageModel) -> None:
    assert abs(loss_of(teller.decoder, teller.tokenizer) - PUBLISHED) < 0.15


def test_without_the_permutation_the_loss_is_much_higher(teller: LanguageModel) -> None:
    decoder = Decoder(teller.decoder.config).eval()
    wrong = {
        path: Permute().to_theirs([weight], decoder.config)[0] if ".query." in path or ".key." in path else weight
        for path, weight in teller.decoder.named_parameters()
    }
    decoder.load_state_dict(wrong)
    assert loss_of(decoder, teller.tokenizer) > 2 * PUBLISHED


def test_the_teller_tells_a_story(teller: LanguageModel) -> None:
    prompt = Sequence([START, *teller.tokenizer.encode(" Once upon a time")])
    ids = [event.token for event in generate(teller.decoder, [prompt], Sampler(SamplingConfig(temperature=0)), 120)]
    text = teller.tokenizer.decode(ids)
    assert text.startswith(", there was a little girl named Lily. She loved to play")


def test_the_teller_is_the_same_after_a_round_trip_through_llamas_format(teller: LanguageModel, tmp_path: Path) -> None:
    assert export_huggingface(teller, tmp_path / "out")["family"] == "llama"
    back = load_huggingface(tmp_path / "out")
    assert loss_of(back.decoder, back.tokenizer) == loss_of(teller.decoder, teller.tokenizer)
