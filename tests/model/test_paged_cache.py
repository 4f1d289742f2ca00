"""Passes over a cache in blocks have the logits of a pass over the whole text."""

from __future__ import annotations

import re
import resource
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from foretell.config.model import ModelConfig
from foretell.config.section import make_section
from foretell.model.decoder import Decoder
from foretell.model.init import make_decoder
from foretell.model.paged_cache import (
    POSITIONS_PER_BLOCK,
    PagedKVCache,
    PagedKVView,
    PagedRow,
    StaticPagedKVView,
    zeroed_memory,
)

P = POSITIONS_PER_BLOCK
LENGTH = 2 * P + 5
MODELS: dict[str, dict[str, Any]] = {
    "gpt2": {},
    "qwen3": {"position": "rotary", "norm": "rmsnorm", "qk_norm": True, "num_kv_heads": 1},
    "windows": {"position": "sinusoidal", "window": (None, 7)},
}
TABLES = {"runs": [[1, 2, 3], [4, 5, 6]], "scattered": [[5, 1, 3], [2, 6, 4]], "shared": [[1, 2, 3], [1, 5, 6]]}


@pytest.fixture(params=MODELS)
def decoder(request: pytest.FixtureRequest) -> Decoder:
    sizes = {"num_layers": 2, "num_heads": 2, "width": 16, "context_length": 3 * P, "vocab_size": 23}
    return make_decoder(make_section(ModelConfig, {**sizes, **MODELS[request.param]}), seed=2).double().eval()


@pytest.fixture
def ids() -> Tensor:
    ids = torch.randint(23, (2, LENGTH), generator=torch.Generator().manual_seed(1))
    ids[1, :P] = ids[0, :P]  # the rows share their first block
    return ids


def new_cache(decoder: Decoder) -> PagedKVCache:
    return PagedKVCache(decoder.config, 7, torch.float64, "cpu")


def read(decoder: Decoder, ids: Tensor, cache: PagedKVCache, tables: list[list[int]], lengths: list[list[int]]):
    """The logits of each row's tokens, read in passes of lengths[pass][row] tokens."""
    starts, logits = [0, 0], [[], []]
    for counts in lengths:
        rows = [PagedRow(table, start, count) for table, start, count in zip(tables, starts, counts, strict=True)]
        part = torch.zeros(2, max(counts), dtype=torch.long)
        for row, (start, count) in enumerate(zip(starts, counts, strict=True)):
            part[row, :count] = ids[row, start : start + count]
        for row, output in enumerate(decoder(part, PagedKVView(cache, rows))):
            logits[row].append(output[: counts[row]])
        starts = [start + count for start, count in zip(starts, counts, strict=True)]
    return [torch.cat(row) for row in logits]


@pytest.mark.parametrize("tables", TABLES.values(), ids=TABLES)
@pytest.mark.parametrize(
    "lengths", [[[LENGTH] * 2], [[40, 40], [1, 1], [28, 28]], [[P, P + 3], [7, 1], [1, 1], [29, 32]]],
    ids=["whole", "even", "uneven"],
)  # fmt: skip
@torch.inference_mode()
def test_a_text_in_blocks_has_the_logits_of_the_whole_text(
    decoder: Decoder, ids: Tensor, tables: list[list[int]], lengths: list[list[int]]
) -> None:
    for row, (actual, expected) in enumerate(
        zip(read(decoder, ids, new_cache(decoder), tables, lengths), decoder(ids), strict=True)
    ):
        torch.testing.assert_close(actual, expected[: len(actual)], msg=lambda text, row=row: f"row {row}: {text}")


@torch.inference_mode()
def test_rows_that_wrongly_share_a_block_are_noticed(decoder: Decoder, ids: Tensor) -> None:
    logits = read(decoder, ids, new_cache(decoder), [[1, 2, 3], [4, 2, 6]], [[40, 40], [1, 1], [28, 28]])
    assert not torch.allclose(torch.stack(logits), decoder(ids))


@torch.inference_mode()
def test_evenly_spaced_runs_of_blocks_are_read_without_a_copy(decoder: Decoder) -> None:
    cache = new_cache(decoder)
    for tables, is_view in ((TABLES["runs"], True), (TABLES["scattered"], False)):
        view = PagedKVView(cache, [PagedRow(table, 40, 1) for table in tables])
        is_shared = view.gather(cache.keys[0]).untyped_storage().data_ptr() == cache.keys.untyped_storage().data_ptr()
        assert is_shared == is_view


@torch.inference_mode()
def test_what_a_block_held_before_is_never_seen(decoder: Decoder, ids: Tensor) -> None:
    cache = new_cache(decoder)
    cache.keys.fill_(1e6), cache.values.fill_(1e6)
    (actual, _) = read(decoder, ids, cache, TABLES["scattered"], [[P, P + 3], [1, 1], [1, 1]])
    torch.testing.assert_close(actual, decoder(ids[:1, : P + 2])[0])


@torch.inference_mode()
def test_a_static_step_has_the_logits_of_one_that_knows_the_lengths(decoder: Decoder, ids: Tensor) -> None:
    tables, cache = TABLES["scattered"], new_cache(decoder)
    read(decoder, ids, cache, tables, [[40, 33]])
    positions = torch.tensor([[40], [33]])
    new = ids.gather(1, positions)
    actual = decoder(new, StaticPagedKVView(cache, torch.tensor(tables), positions))[:, 0]
    expected = torch.stack([decoder(ids[:1, :41])[0, -1], decoder(ids[1:, :34])[0, -1]])
    torch.testing.assert_close(actual, expected)


def test_a_copied_block_is_equal_in_every_layer(decoder: Decoder) -> None:
    cache = new_cache(decoder)
    cache.keys[:, :, 3], cache.values[:, :, 3] = 1.5, 2.5
    cache.copy_block(3, 5, 7)
    assert torch.equal(cache.keys[:, :, 5, :7], cache.keys[:, :, 3, :7])
    assert torch.equal(cache.values[:, :, 5, :7], cache.values[:, :, 3, :7])
    assert not cache.values[:, :, 5, 7:].any()  # the numbers of another text, which may not be finite
    assert not cache.keys[:, :, 4].any()


@pytest.mark.skipif(sys.platform != "linux", reason="other systems choose the size of their pages")
def test_a_cache_takes_memory_for_what_is_written_and_not_for_its_neighbourhood():
    memory = np.frombuffer(zeroed_memory(256 * 2**20), np.uint8)
    before = anonymous_memory()
    memory[:: 2**20] = 1  # one key of each of 256 heads
    assert anonymous_memory() - before < 2**12 * resource.getpagesize()  # 16 MiB with pages of 4 KiB
    assert int(memory.sum()) == 256


def anonymous_memory() -> int:
    """The memory of this process, in bytes."""
    text = Path("/proc/self/status").read_text()
    return 1024 * sum(map(int, re.findall(r"^(?:RssAnon|VmSwap):\s+(\d+) kB$", text, re.MULTILINE)))
