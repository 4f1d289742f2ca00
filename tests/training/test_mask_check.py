"""A model that sees what it must not is refused before it trains, and the leaking module is named."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from foretell.config.model import ModelConfig
from foretell.config.section import make_section
from foretell.data.batch import Batch, make_batch, make_document_batch
from foretell.errors import TrainingError
from foretell.model.attention import SDPAttention
from foretell.model.decoder import Decoder
from foretell.model.init import make_decoder
from foretell.model.mask import Mask
from foretell.training.mask_check import check_mask

SIZES: dict[str, Any] = {"num_layers": 2, "num_heads": 2, "width": 16, "context_length": 24, "vocab_size": 14}
LLAMA: dict[str, Any] = {"position": "rotary", "norm": "rmsnorm", "feedforward": "gated", "num_kv_heads": 1}
SOUND: dict[str, dict[str, Any]] = {
    "gpt2": {},
    "gpt1": {"norm_placement": "post"},
    "gpt3": {"window": (3, None)},
    "llama": LLAMA,
    "mistral": {**LLAMA, "window": 3},
    "qwen3": {**LLAMA, "qk_norm": True},
    "explicit core": {"dropout": 0.2, "window": 4},
    "no norm, sinusoidal": {"norm": "none", "position": "sinusoidal"},
    "smallest": {"feedforward": "none", "norm": "none", "attention_residual": False, "tie_embeddings": False},
}
PRECISIONS = {"float32": torch.float32, "bfloat16": torch.bfloat16}
CORE = "trunk.blocks.0.attention.core"
Plant = Callable[[Decoder], None]


def make(**changes: Any) -> Decoder:
    return make_decoder(make_section(ModelConfig, {**SIZES, **changes}), seed=1).train()


def rows(count: int = 4) -> Batch:
    return make_batch(np.random.default_rng(0).integers(0, 14, (count, 25)))


def documents() -> Batch:
    """Rows of several documents, some with padding behind them."""
    generator = np.random.default_rng(1)
    tokens = generator.integers(0, 14, (4, 25))
    numbers = (generator.random(tokens.shape) < 0.2).cumsum(1)
    numbers[1, 20:] = numbers[2, 15:] = -1
    return make_document_batch(tokens, numbers)


# --- sound models -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", SOUND)
def test_a_sound_model_passes(name: str, precision: str) -> None:
    decoder = make(**SOUND[name])
    for batch in (rows(), rows(1), documents()):
        check_mask(decoder, batch, PRECISIONS[precision])


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("length", [1, 2, 31, 33, 257, 513])
def test_the_fused_kernel_is_bit_identical_around_its_block_sizes(length: int, precision: str) -> None:
    decoder = make(context_length=length, width=64, num_layers=1)
    tokens = np.random.default_rng(2).integers(0, 14, (2, length + 1))
    numbers = (np.arange(length + 1) >= length // 2).astype(int) + np.zeros_like(tokens)
    for batch in (make_batch(tokens), make_document_batch(tokens, numbers)):
        check_mask(decoder, batch, PRECISIONS[precision])


def test_the_check_does_not_change_the_model() -> None:
    decoder = make(dropout=0.2)
    before = {path: weight.clone() for path, weight in decoder.state_dict().items()}
    state = torch.get_rng_state()
    check_mask(decoder, documents())
    assert decoder.training
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(weight, before[path]) for path, weight in decoder.state_dict().items())
    assert not any(module._forward_hooks for module in decoder.modules())
    assert all(weight.grad is None for weight in decoder.parameters())


# --- planted leaks ----------------------------------------------------------------------------------------------------


class AlteredMask(SDPAttention):
    """A core that gets another mask than the one it is given."""

    def __init__(self, config: ModelConfig, alter: Callable[[Tensor, Mask], Tensor]):
        super().__init__(config)
        self.alter = alter

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
        altered = self.alter(mask.allowed, mask)
        value = value.repeat_interleave(query.shape[1] // value.shape[1], dim=1)
        key = key.repeat_interleave(query.shape[1] // key.shape[1], dim=1)
        return nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=altered)


def altered_mask(layer: int, alter: Callable[[Tensor, Mask], Tensor]) -> Plant:
    return lambda decoder: decoder.set_submodule(
        f"trunk.blocks.{layer}.attention.core", AlteredMask(decoder.config, alter)
    )


def one_key_more(allowed: Tensor, mask: Mask) -> Tensor:
    return allowed | torch.ones(allowed.shape[-2:], dtype=torch.bool).tril(1)


def instead_of(path: str, wrap: Callable[[nn.Module], nn.Module]) -> Plant:
    return lambda decoder: decoder.set_submodule(path, wrap(decoder.get_submodule(path)))


class Wrapped(nn.Module):
    """A module whose output, or input, is changed on the way."""

    def __init__(self, inner: nn.Module, before: Callable = lambda *inputs: inputs, after: Callable = lambda out: out):
        super().__init__()
        self.inner, self.before, self.after = inner, before, after

    def forward(self, *inputs: Any) -> Any:
        return self.after(self.inner(*self.before(*inputs)))


def mean_over_time(x: Tensor) -> Tensor:
    return x - x.mean(1, keepdim=True)


def scaled_to_the_largest_position(positions: Tensor, dtype: torch.dtype) -> tuple[Any, ...]:
    return positions.float() / positions.max(), dtype


FUTURE = "sees the future"
LEAKS: dict[
    str, tuple[dict[str, Any], Plant, str, str]
] = {  # name: model, how to plant the leak, the named module, the finding
    "no mask": ({}, altered_mask(0, lambda allowed, mask: torch.ones_like(allowed)), CORE, FUTURE),
    "no mask in the last layer": (
        {},
        altered_mask(1, lambda allowed, mask: torch.ones_like(allowed)),
        CORE.replace("0", "1"),
        FUTURE,
    ),
    "one key too many": ({}, altered_mask(0, one_key_more), CORE, FUTURE),
    "the first query sees all": (
        {},
        altered_mask(0, lambda allowed, mask: allowed | (torch.arange(24) == 0)[:, None]),
        CORE,
        FUTURE,
    ),
    "a window around the query": (
        {"window": 3},
        altered_mask(0, lambda allowed, mask: allowed | allowed.mT),
        CORE,
        FUTURE,
    ),
    "a window one too wide": (
        {"window": 3},
        altered_mask(0, lambda allowed, mask: Mask(24, 24, window=4).allowed),
        CORE,
        "sees what lies before its window",
    ),
    "a second window one too wide": (
        {"window": 3},
        altered_mask(1, lambda allowed, mask: Mask(24, 24, window=4).allowed),
        CORE.replace("0", "1"),
        "sees what lies before its window",
    ),
    "a norm over time": (
        {},
        instead_of("trunk.blocks.1.feedforward_norm", lambda norm: Wrapped(norm, after=mean_over_time)),
        "trunk.blocks.1.feedforward_norm",
        FUTURE,
    ),
    "the embedding looks ahead": (
        {},
        instead_of("embed.token", lambda token: Wrapped(token, after=lambda x: x + 1e-6 * x.roll(-1, 1))),
        "embed.token",
        FUTURE,
    ),
    "positions that depend on later ones": (
        LLAMA,
        instead_of("trunk.rotation", lambda rotation: Wrapped(rotation, before=scaled_to_the_largest_position)),
        "trunk.rotation",
        FUTURE,
    ),
    "rows that are mixed": (
        {},
        instead_of("trunk.norm", lambda norm: Wrapped(norm, after=lambda x: x - x.mean(0))),
        "trunk.norm",
        FUTURE,
    ),
    "a head that mixes its rows": (
        {},
        instead_of("head", lambda head: Wrapped(head, after=lambda x: x - x.mean(0))),
        "head",
        FUTURE,
    ),
    "random numbers": (
        {},
        instead_of("trunk.blocks.0.feedforward.activation", lambda _: nn.Dropout(0.5)),
        "trunk.blocks.0.feedforward.activation",
        "returns different outputs for the same batch",
    ),
}


@pytest.mark.parametrize(
    ("batch", "precision"),
    [
        pytest.param(rows(), "float32", id="rows-float32"),
        pytest.param(documents(), "bfloat16", id="documents-bfloat16"),
        pytest.param(documents(), "float32", id="documents-float32", marks=pytest.mark.long),
        pytest.param(rows(), "bfloat16", id="rows-bfloat16", marks=pytest.mark.long),
    ],
)
@pytest.mark.parametrize("leak", LEAKS)
def test_a_leak_is_refused_and_its_module_named(leak: str, batch: Batch, precision: str) -> None:
    changes, plant, path, finding = LEAKS[leak]
    decoder = make(**changes)
    plant(decoder)
    with pytest.raises(TrainingError) as error:
        check_mask(decoder, batch, PRECISIONS[precision])
    named, _, said = str(error.value).partition(" ")
    assert named in (path, f"{path}.inner")
    assert said.startswith(finding)
    assert "\n" not in said


@pytest.mark.parametrize("precision", PRECISIONS)
def test_ignoring_the_document_mask_is_refused(precision: str) -> None:
    decoder = make()
    altered_mask(0, lambda allowed, mask: Mask(24, 24).allowed)(decoder)
    with pytest.raises(TrainingError, match=f"{CORE} sees other documents, or padding"):
        check_mask(decoder, documents(), PRECISIONS[precision])
    check_mask(decoder, rows(), PRECISIONS[precision])


def test_seeing_padding_is_refused() -> None:
    tokens = np.random.default_rng(3).integers(0, 14, (4, 25))
    numbers = np.where(np.arange(25) < 18, 0, -1) + np.zeros_like(tokens)
    decoder = make()
    altered_mask(0, lambda allowed, mask: torch.from_numpy(numbers[:, None, None, :24] == -1) | allowed)(decoder)
    with pytest.raises(TrainingError, match=CORE):
        check_mask(decoder, make_document_batch(tokens, numbers))


def test_a_single_row_is_enough_to_detect_a_missing_mask() -> None:
    decoder = make()
    altered_mask(0, one_key_more)(decoder)
    with pytest.raises(TrainingError, match=CORE):
        check_mask(decoder, rows(1))
