"""Blocks of the cache: their owners, and the tokens whose keys and values they hold.

A full block is identified by its tokens and the blocks before it, so sequences with a common beginning share their
first blocks. A returned block keeps its content until the block is needed for other tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import islice, takewhile

import numpy as np

from foretell.model.paged_cache import PADDING_BLOCK, POSITIONS_PER_BLOCK

Content = tuple[int, tuple[int, ...]]  # the content id of the blocks before, and the tokens of this block


def common_length(*rows: Sequence[int]) -> int:
    """The length of the common beginning of all rows."""
    return sum(1 for _ in takewhile(lambda ids: len(set(ids)) == 1, zip(*rows, strict=False)))


def blocks_for(num_tokens: int) -> int:
    return -(-num_tokens // POSITIONS_PER_BLOCK)


@dataclass
class BlockTable:
    """The blocks of one sequence.

    content_ids: the ids of the blocks whose content the pool has recorded.
    """

    root: int  # the content id before the first block; sequences with different roots share nothing
    blocks: list[int] = field(default_factory=list)
    content_ids: list[int] = field(default_factory=list)

    @property
    def last_content(self) -> int:
        """The content id of the last recorded block, or the root."""
        return self.content_ids[-1] if self.content_ids else self.root


class BlockPool:
    """The blocks of a cache, with the content and the number of owners of each.

    clear: called with blocks that may hold non-finite numbers, before they get another owner.
    """

    def __init__(self, num_blocks: int, clear: Callable[[list[int]], None]):
        self.clear = clear
        self.owners = [0] * num_blocks
        self.is_blank = np.arange(num_blocks) != PADDING_BLOCK  # free blocks without recorded content
        self.held: dict[int, None] = {}  # free blocks with recorded content, in the order of their return
        self.ids: dict[Content, int] = {}  # content to content id
        self.block_of: dict[int, int] = {}  # content id to block
        self.content_of: dict[int, tuple[Content, int]] = {}  # block to its content and content id
        self.part_after: dict[int, tuple[int, tuple[int, ...]]] = {}  # content id to a part-filled block and its tokens
        self.part_of: dict[int, int] = {}  # partly filled block to the content id before it
        self.unsound: set[int] = set()  # blocks that may hold non-finite numbers
        self.next_id = 0

    def new_root(self) -> int:
        """A content id for empty tables."""
        self.next_id += 1
        return self.next_id

    def matched(self, root: int, tokens: list[int]) -> BlockTable:
        """A table of the blocks that hold the beginning of these tokens; the blocks are not taken yet."""
        table = BlockTable(root)
        for first in range(0, len(tokens) - POSITIONS_PER_BLOCK + 1, POSITIONS_PER_BLOCK):
            content = (table.last_content, tuple(tokens[first : first + POSITIONS_PER_BLOCK]))
            if content not in self.ids:
                break
            table.content_ids.append(self.ids[content])
            table.blocks.append(self.block_of[self.ids[content]])
        return table

    def begun_block(self, table: BlockTable, tokens: list[int]) -> tuple[int, int]:
        """A block that holds the next tokens after this table, and their number; (0, 0) if there is none."""
        block, held = self.part_after.get(table.last_content, (PADDING_BLOCK, ()))
        rest = [] if block in self.unsound else tokens[len(table.blocks) * POSITIONS_PER_BLOCK :]
        same = common_length(held, rest)
        return (block, same) if same else (PADDING_BLOCK, 0)

    @property
    def num_free(self) -> int:
        """The number of blocks without an owner."""
        return int(self.is_blank.sum()) + len(self.held)

    def take(self, table: BlockTable, num_blocks: int) -> bool:
        """Take the matched blocks and more, up to `num_blocks`; if too few are free, take none and return False."""
        kept = [block for block in table.blocks if self.owners[block] == 0]
        if num_blocks - len(table.blocks) > self.num_free - len(kept):
            return False
        for block in table.blocks:
            self._own(block)
        return self.grow(table, num_blocks)

    def grow(self, table: BlockTable, num_blocks: int) -> bool:
        """Take more blocks for a table, up to `num_blocks`; if too few are free, take none and return False."""
        missing = num_blocks - len(table.blocks)
        if missing <= 0:
            return True  # the usual case; counting the free blocks takes longer
        if missing > self.num_free:
            return False
        chosen = self._choose(missing, table.blocks[-1] + 1 if table.blocks else 0)
        if unsound := self.unsound.intersection(chosen):
            self.clear(sorted(unsound))
            self.unsound -= unsound
        for block in chosen:
            self._forget(block)
            self._own(block)
            table.blocks.append(block)
        return True

    def give_back(self, table: BlockTable, kept: int = 0) -> None:
        """Return all blocks after the first `kept` to the pool. Blocks with recorded content are reused last."""
        for block in reversed(table.blocks[kept:]):  # the end of a text is least likely to be needed again
            self.owners[block] -= 1
            assert self.owners[block] >= 0, "a block was returned more often than it was taken"
            if self.owners[block] == 0 and (block in self.content_of or block in self.part_of):
                self.held[block] = None
            elif self.owners[block] == 0:
                self.is_blank[block] = True
        del table.blocks[kept:], table.content_ids[kept:]

    def remember(self, table: BlockTable, tokens: list[int], count: int) -> None:
        """Record the content of the table's full blocks; the first `count` tokens are in the cache."""
        while (len(table.content_ids) + 1) * POSITIONS_PER_BLOCK <= count:
            index = len(table.content_ids)
            first = index * POSITIONS_PER_BLOCK
            content = (table.last_content, tuple(tokens[first : first + POSITIONS_PER_BLOCK]))
            if content not in self.ids:
                self.next_id += 1
                self.ids[content] = self.next_id
                self.block_of[self.next_id] = table.blocks[index]
                self.content_of[table.blocks[index]] = (content, self.next_id)
            table.content_ids.append(self.ids[content])

    def remember_part(self, table: BlockTable, tokens: list[int], count: int) -> None:
        """Record the content of the table's last, partly filled block, to which its owner only appends."""
        full = len(table.content_ids) * POSITIONS_PER_BLOCK
        if count > full:
            block, parent = table.blocks[len(table.content_ids)], table.last_content
            self._forget_part(block)
            if old := self.part_after.get(parent):
                self._forget_part(old[0])
            self.part_after[parent] = block, tuple(tokens[full:count])
            self.part_of[block] = parent

    def _choose(self, count: int, following: int) -> list[int]:
        """Choose free blocks, preferably adjacent ones starting at `following`: their keys need not be gathered.

        With 50,000 blocks this takes 0.1 ms.
        """
        if following < len(self.is_blank) and self.is_blank[following : following + count].sum() == count:
            return list(range(following, following + count))
        blank = np.flatnonzero(self.is_blank)
        is_run = blank[count - 1 :] - blank[: max(0, len(blank) - count + 1)] == count - 1
        first = int(is_run.argmax()) if is_run.any() else 0
        chosen = blank[first : first + count].tolist()
        return [*chosen, *islice(self.held, count - len(chosen))]

    def _own(self, block: int) -> None:
        self.held.pop(block, None)
        self.is_blank[block] = False
        self.owners[block] += 1

    def _forget_part(self, block: int) -> None:
        if block in self.part_of:
            del self.part_after[self.part_of.pop(block)]

    def _forget(self, block: int) -> None:
        self._forget_part(block)
        if block in self.content_of:
            content, content_id = self.content_of.pop(block)
            del self.ids[content], self.block_of[content_id]
