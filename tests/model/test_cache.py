"""Cached equals uncached and batched equals alone, for every configuration and in both precisions."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from foretell.config.model import ModelConfig
from foretell.errors import UsageError
from foretell.model.cache import CachedKVView, KVCache
from foretell.model.decoder import Decoder
from tests.model.conftest import AssertSame, MakeDecoder

# new tokens of three rows in each pass; after the first pass the rows have different lengths
UNEVEN_PASSES = [(5, 1, 3), (1, 1, 1), (2, 6, 1), (1, 0, 2), (1, 1, 1), (2, 3, 4)]


@pytest.fixture(params=[torch.float64, torch.float32], ids=["float64", "float32"])
def decoder(config: ModelConfig, make_decoder: MakeDecoder, request: pytest.FixtureRequest) -> Decoder:
    return make_decoder(config, request.param)


def new_cache(decoder: Decoder, rows: int) -> KVCache:
    config = decoder.config
    return KVCache(config, rows, config.context_length, decoder.embed.token.weight.dtype, "cpu")


def cached_logits(decoder: Decoder, ids: Tensor, chunk: int) -> Tensor:
    """The logits of all positions, with `chunk` tokens per pass."""
    cache = new_cache(decoder, len(ids))
    parts = [decoder(part, cache.make_room([part.shape[1]] * len(ids))) for part in ids.split(chunk, dim=1)]
    return torch.cat(parts, dim=1)  # (B, T, V)


def uneven_pass_logits(
    decoder: Decoder, rows: list[list[int]], passes: list[tuple[int, int, int]] | list[tuple[int, int]]
) -> list[Tensor]:
    """The logits (T, V) of each row, from passes with padding that must not be seen."""
    cache = new_cache(decoder, len(rows))
    collected: list[list[Tensor]] = [[] for _ in rows]
    for counts in passes:
        ids = torch.full((len(rows), max(counts)), 7)
        for row, (start, count) in enumerate(zip(cache.lengths, counts, strict=True)):
            ids[row, :count] = torch.tensor(rows[row][start : start + count])
        logits = decoder(ids, cache.make_room(list(counts)))
        for row, count in enumerate(counts):
            collected[row].append(logits[row, :count])
    return [torch.cat(parts) for parts in collected]


# --- cached = uncached -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("chunk", [1, 5, 12], ids=["one by one", "in chunks", "at once"])
def test_cached_logits_equal_uncached_logits(
    decoder: Decoder, ids: Tensor, chunk: int, assert_same: AssertSame
) -> None:
    assert_same(cached_logits(decoder, ids, chunk), decoder(ids))


@given(chunks=st.lists(st.integers(1, 5), min_size=1, max_size=12).filter(lambda chunks: sum(chunks) <= 12))
def test_any_split_into_chunks_gives_the_same_logits(
    chunks: list[int], make_decoder: MakeDecoder, assert_same: AssertSame
) -> None:
    decoder = make_decoder("mistral")
    ids = torch.arange(sum(chunks))[None] % decoder.config.vocab_size
    cache = new_cache(decoder, 1)
    parts = [decoder(part, cache.make_room([part.shape[1]])) for part in ids.split(chunks, dim=1)]
    assert_same(torch.cat(parts, dim=1), decoder(ids))


def test_a_position_off_by_one_is_detected(
    make_decoder: MakeDecoder, ids: Tensor, assert_same: AssertSame, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = property(lambda view: view.slots.add(1).clamp(max=view.cache.capacity - 1))
    monkeypatch.setattr(CachedKVView, "positions", late)
    decoder = make_decoder("gpt2")
    with pytest.raises(AssertionError, match="not close"):
        assert_same(cached_logits(decoder, ids, 1), decoder(ids))


# --- batched = alone -------------------------------------------------------------------------------------------------


def test_batched_rows_equal_each_row_alone(decoder: Decoder, ids: Tensor, assert_same: AssertSame) -> None:
    assert_same(decoder(ids), torch.cat([decoder(row[None]) for row in ids]))


def test_batched_uneven_rows_equal_each_row_alone(decoder: Decoder, ids: Tensor, assert_same: AssertSame) -> None:
    rows = [row[:length].tolist() for row, length in zip(ids, map(sum, zip(*UNEVEN_PASSES, strict=True)), strict=True)]
    for logits, row in zip(uneven_pass_logits(decoder, rows, UNEVEN_PASSES), rows, strict=True):
        assert_same(logits, decoder(torch.tensor([row]))[0])


def test_rows_that_see_their_padding_are_detected(
    make_decoder: MakeDecoder, ids: Tensor, assert_same: AssertSame, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CachedKVView, "make_mask", blind_to_padding(CachedKVView.make_mask))
    decoder = make_decoder("no positions")
    rows = [ids[0, :4].tolist(), ids[1, :6].tolist()]
    with pytest.raises(AssertionError, match="not close"):
        assert_same(uneven_pass_logits(decoder, rows, [(3, 5), (1, 1)])[0], decoder(torch.tensor([rows[0]]))[0])


def blind_to_padding(make_mask: Callable) -> Callable:
    def make(view: CachedKVView, window: int | None):
        mask = make_mask(view, window)
        if mask.key_positions is not None:
            mask.key_positions.copy_(torch.zeros_like(mask.key_positions))
        return mask

    return make


def test_kept_rows_are_unchanged_when_other_rows_are_dropped(
    decoder: Decoder, ids: Tensor, assert_same: AssertSame
) -> None:
    cache = new_cache(decoder, 3)
    decoder(ids[:, :6], cache.make_room([6, 4, 3]))
    cache.keep_rows([0, 2])
    assert cache.lengths == [6, 3]
    logits = decoder(torch.stack([ids[0, 6:8], ids[2, 3:5]]), cache.make_room([2, 2]))
    assert_same(logits[0], decoder(ids[:1, :8])[0, 6:])
    assert_same(logits[1], decoder(ids[2:, :5])[0, 3:])


# --- size ------------------------------------------------------------------------------------------------------------


def test_cache_size_is_what_cost_predicts(config: ModelConfig) -> None:
    cache = KVCache(config, rows=3, capacity=7, dtype=torch.float32, device="cpu")
    per_slot = (cache.keys.nbytes + cache.values.nbytes) // (3 * (7 + 1))  # one more slot, for padding
    assert per_slot == config.cache_bytes_per_token(element_bytes=4)


def test_tokens_beyond_the_capacity_are_refused(config: ModelConfig) -> None:
    cache = KVCache(config, rows=2, capacity=4, dtype=torch.float32, device="cpu")
    cache.make_room([3, 1])
    with pytest.raises(UsageError, match="a row of 5 tokens does not fit into the cache, which holds 4"):
        cache.make_room([2, 1])
    with pytest.raises(UsageError, match="the cache has 2 rows, but counts has 1"):
        cache.make_room([1])
    assert cache.lengths == [3, 1]
    for sizes in ({"rows": 0, "capacity": 4}, {"rows": 2, "capacity": 0}):
        with pytest.raises(UsageError, match="must be a whole number, 1 or more, not 0"):
            KVCache(config, **sizes, dtype=torch.float32, device="cpu")
