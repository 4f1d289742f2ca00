"""Dropout masks come from counters, so that steps can be repeated, resumed and split."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from foretell.model.decoder import Decoder
from foretell.model.dropout import Dropout, DropoutRNG
from foretell.numerics.randomness import random_word, stream_key
from tests.model.conftest import MakeDecoder


def dropout(rate: float = 0.3, path: str = "trunk.blocks.0.residual.dropout", **counters: int) -> Dropout:
    module = Dropout(rate)
    module.bind(DropoutRNG(**counters), path)
    return module


def kept(rows: int = 4, columns: int = 50, **arguments: Any) -> Tensor:
    """True for the elements that are kept, (rows, columns)."""
    return dropout(**arguments)(torch.ones(rows, columns)) > 0


# --- what a mask depends on ------------------------------------------------------------------------------------------


def test_the_same_counters_give_the_same_mask() -> None:
    assert torch.equal(kept(seed=1, step=2, first_row=3), kept(seed=1, step=2, first_row=3))


@pytest.mark.parametrize("change", [{"seed": 7}, {"step": 7}, {"first_row": 7}, {"path": "embed.dropout"}])
def test_seed_step_row_and_path_each_change_the_mask(change: dict[str, Any]) -> None:
    assert not torch.equal(kept(**change), kept())


def test_a_mask_compares_16_bit_pieces_of_the_random_words() -> None:
    mask = kept(rows=2, columns=7, rate=0.3, path="a", seed=5, step=6, first_row=8)
    for row, row_mask in zip((8, 9), mask.tolist(), strict=True):
        words = [random_word(stream_key(5, 6, "a", row), counter) for counter in range(2)]
        pieces = [word >> shift & 0xFFFF for word in words for shift in (0, 16, 32, 48)][:7]
        signed = [piece - 65536 if piece >= 32768 else piece for piece in pieces]
        assert row_mask == [piece >= round(0.3 * 65536) - 32768 for piece in signed]


def test_micro_batches_have_the_masks_of_the_whole_batch() -> None:
    whole = kept(rows=6)
    assert torch.equal(torch.cat([kept(rows=2, first_row=first) for first in (0, 2, 4)]), whole)


def test_two_ranks_have_the_interleaved_masks_of_the_whole_batch() -> None:
    whole = kept(rows=6)
    assert torch.equal(kept(rows=3, first_row=0, row_stride=2), whole[0::2])
    assert torch.equal(kept(rows=3, first_row=1, row_stride=2), whole[1::2])


def test_a_longer_row_starts_with_the_mask_of_a_shorter_one() -> None:
    assert torch.equal(kept(columns=50)[:, :20], kept(columns=20))


def test_torchs_generator_state_does_not_change() -> None:
    before = torch.get_rng_state()
    kept()
    assert torch.equal(torch.get_rng_state(), before)


# --- rates and independence ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rate", [0.01, 0.1, 0.5, 0.9])
def test_elements_are_dropped_at_the_rate_and_the_others_scaled(rate: float) -> None:
    rows, columns = 100, 2000
    result = dropout(rate)(torch.ones(rows, columns, dtype=torch.float64))
    deviation = math.sqrt(rate * (1 - rate) / (rows * columns))
    assert abs(float((result == 0).double().mean()) - rate) < 4 * deviation
    assert torch.equal(result[result != 0].unique(), torch.tensor([1 / (1 - rate)], dtype=torch.float64))


@pytest.mark.parametrize("offset", [1, 2, 3, 4])
def test_neighbouring_elements_are_dropped_independently(offset: int) -> None:
    dropped = ~kept(rows=100, columns=2000, rate=0.5)
    both = float((dropped[:, offset:] & dropped[:, :-offset]).double().mean())
    assert abs(both - 0.25) < 4 * math.sqrt(0.25 * 0.75 / dropped.numel())


def test_a_rate_just_below_1_drops_nearly_all_elements() -> None:
    assert kept(rate=0.999999, rows=1, columns=1000).sum() <= 1


def test_nothing_is_dropped_in_evaluation() -> None:
    x = torch.randn(2, 3)
    assert dropout().eval()(x) is x


# --- in a decoder ----------------------------------------------------------------------------------------------------


def training_logits(decoder: Decoder, ids: Tensor, first_row: int = 0, step: int = 0) -> Tensor:
    decoder.dropout_rng.first_row, decoder.dropout_rng.step = first_row, step
    return decoder.train()(ids)


def test_dropout_modules_are_bound_to_their_paths(make_decoder: MakeDecoder) -> None:
    decoder = make_decoder("gpt2", dropout=0.1)
    paths = [path for path, module in decoder.named_modules() if isinstance(module, Dropout)]
    assert [module.path for module in decoder.modules() if isinstance(module, Dropout)] == paths
    assert paths == [
        "embed.dropout",
        *(
            f"trunk.blocks.{layer}.{parent}.dropout"
            for layer in range(2)
            for parent in ("attention.core", "attention_residual", "feedforward_residual")
        ),
    ]


@pytest.mark.parametrize("kind", ["embedding", "attention", "residual"])
def test_each_rate_takes_effect_and_a_step_repeats_bit_identically(
    kind: str, make_decoder: MakeDecoder, ids: Tensor
) -> None:
    decoder = make_decoder("gpt2", dropout={kind: 0.3})
    first = training_logits(decoder, ids)
    assert not torch.equal(first, decoder.eval()(ids))
    assert not torch.equal(first, training_logits(decoder, ids, step=1))
    assert torch.equal(first, training_logits(decoder, ids))


def test_a_micro_batch_trains_like_its_rows_in_the_whole_batch(
    make_decoder: MakeDecoder, ids: Tensor, assert_same: Callable[[Tensor, Tensor], None]
) -> None:
    decoder = make_decoder("gpt2", dropout=0.3)
    whole = training_logits(decoder, ids)
    assert_same(training_logits(decoder, ids[1:], first_row=1), whole[1:])
    with pytest.raises(AssertionError, match="not close"):
        assert_same(training_logits(decoder, ids[1:], first_row=0), whole[1:])


def test_a_decoder_without_dropout_has_no_dropout_modules(make_decoder: MakeDecoder) -> None:
    modules: list[nn.Module] = list(make_decoder("gpt2").modules())
    assert not any(isinstance(module, Dropout) for module in modules)
