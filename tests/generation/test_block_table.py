"""Blocks are owned, shared by equal beginnings, given back, and used again."""

from __future__ import annotations

import pytest

from foretell.generation.block_table import BlockPool, BlockTable
from foretell.model.paged_cache import PADDING_BLOCK, POSITIONS_PER_BLOCK

P = POSITIONS_PER_BLOCK
TEXT = list(range(100, 100 + 3 * P))


def taken(pool: BlockPool, root: int, tokens: list[int], num_blocks: int) -> BlockTable:
    table = pool.matched(root, tokens)
    assert pool.take(table, num_blocks)
    return table


@pytest.fixture
def pool() -> BlockPool:
    return BlockPool(9, clear=lambda blocks: None)


def test_a_table_gets_neighbouring_blocks_but_never_the_padding_block(pool: BlockPool) -> None:
    first, second = (taken(pool, root, [], 4) for root in (1, 2))
    assert (first.blocks, second.blocks) == ([1, 2, 3, 4], [5, 6, 7, 8])
    assert PADDING_BLOCK not in first.blocks + second.blocks


def test_a_table_that_needs_more_than_is_free_takes_nothing(pool: BlockPool) -> None:
    table = taken(pool, 1, [], 6)
    other = BlockTable(2)
    assert not pool.take(other, 3)
    assert (other.blocks, pool.num_free) == ([], 2)
    pool.give_back(table)
    assert pool.take(other, 8)


def test_equal_beginnings_share_their_full_blocks(pool: BlockPool) -> None:
    root = pool.new_root()
    first = taken(pool, root, TEXT, 4)
    pool.remember(first, TEXT, len(TEXT))
    second = taken(pool, root, [*TEXT[: 2 * P], 7, 7], 4)
    assert second.blocks[:2] == first.blocks[:2]
    assert not set(second.blocks[2:]) & set(first.blocks)
    assert [pool.owners[block] for block in first.blocks] == [2, 2, 1, 1]


def test_equal_tokens_after_other_tokens_are_not_shared(pool: BlockPool) -> None:
    root = pool.new_root()
    pool.remember(taken(pool, root, TEXT, 3), TEXT, len(TEXT))
    assert pool.matched(root, [7] * P + TEXT[P:]).blocks == []
    assert pool.matched(pool.new_root(), TEXT).blocks == []


def test_a_block_that_was_given_back_is_found_by_its_content_until_it_is_used_for_something_else(
    pool: BlockPool,
) -> None:
    root = pool.new_root()
    table = taken(pool, root, TEXT, 3)
    pool.remember(table, TEXT, len(TEXT))
    blocks = list(table.blocks)
    pool.give_back(table)
    assert pool.matched(root, TEXT).blocks == blocks
    taken(pool, 99, [], 6)  # five blocks hold nothing, so one of the three is lost: the last of the text
    assert pool.matched(root, TEXT).blocks == blocks[:2]


def test_a_shared_block_is_free_when_its_last_owner_gives_it_back(pool: BlockPool) -> None:
    root = pool.new_root()
    first = taken(pool, root, TEXT, 3)
    pool.remember(first, TEXT, len(TEXT))
    second = taken(pool, root, TEXT, 3)
    pool.give_back(first)
    assert pool.num_free == 5
    pool.give_back(second)
    assert pool.num_free == 8


def test_giving_back_twice_is_noticed(pool: BlockPool) -> None:
    table = taken(pool, 1, [], 2)
    copy = BlockTable(1, list(table.blocks))
    pool.give_back(table)
    with pytest.raises(AssertionError, match="returned more often"):
        pool.give_back(copy)


def test_a_begun_block_is_found_by_its_first_tokens(pool: BlockPool) -> None:
    root = pool.new_root()
    table = taken(pool, root, TEXT[:5], 1)
    pool.remember_part(table, TEXT, 5)
    assert pool.begun_block(pool.matched(root, TEXT), [*TEXT[:3], 7]) == (table.blocks[0], 3)
    assert pool.begun_block(pool.matched(root, TEXT), [7]) == (PADDING_BLOCK, 0)
    pool.give_back(table)
    taken(pool, 99, [], 8)
    assert pool.begun_block(pool.matched(root, TEXT), TEXT) == (PADDING_BLOCK, 0)
