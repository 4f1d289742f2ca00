"""`BlockTable` and `BlockPool`: the cache blocks of each sequence, the free blocks, and their content.

A full block is identified by its tokens and the blocks before it, so sequences that begin alike share their first
blocks. A returned block keeps its content until it is needed for something else.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from foretell.model.paged_cache import PADDING_BLOCK, POSITIONS_PER_BLOCK

Content = tuple[int, tuple[int, ...]]  # the content id of the blocks before, and the tokens of this one


def blocks_for(num_tokens: int) -> int:
    """The number of blocks that hold `num_tokens` tokens."""
    return -(-num_tokens // POSITIONS_PER_BLOCK)


@dataclass
class BlockTable:
    """The blocks of one sequence.

    content_ids: one for each block whose content the pool has recorded, after the root.
    """

    root: int  # the content id of no blocks; sequences with different roots share nothing
    blocks: list[int] = field(default_factory=list)
    content_ids: list[int] = field(default_factory=list)

    @property
    def last_content(self) -> int:
        """The content id of all known blocks together."""
        return self.content_ids[-1] if self.content_ids else self.root


class BlockPool:
    """The blocks of a cache, with the number of owners and the content of each."""

    def __init__(self, num_blocks: int):
        self.owners = [0] * num_blocks
        # In the order of their return; a dict, since a block with a content may be taken out of the middle
        self.free = dict.fromkeys(block for block in range(num_blocks) if block != PADDING_BLOCK)
        self.ids: dict[Content, int] = {}  # content to content id
        self.block_of: dict[int, int] = {}  # content id to block
        self.content_of: dict[int, tuple[Content, int]] = {}  # block to its content and content id
        self.part_after: dict[int, tuple[int, tuple[int, ...]]] = {}  # content id to a partly filled block, its tokens
        self.part_of: dict[int, int] = {}  # partly filled block to the content id before it
        self.next_id = 0

    def new_root(self) -> int:
        """A content id for empty tables."""
        self.next_id += 1
        return self.next_id

    def matched(self, root: int, tokens: Sequence[int]) -> BlockTable:
        """A table of the blocks that hold the beginning of these tokens, not taken yet."""
        table = BlockTable(root)
        for first in range(0, len(tokens) - POSITIONS_PER_BLOCK + 1, POSITIONS_PER_BLOCK):
            content = (table.last_content, tuple(tokens[first : first + POSITIONS_PER_BLOCK]))
            if content not in self.ids:
                break
            table.content_ids.append(self.ids[content])
            table.blocks.append(self.block_of[self.ids[content]])
        return table

    def begun_block(self, table: BlockTable, tokens: Sequence[int]) -> tuple[int, int]:
        """A block that holds the next tokens after this table, and how many of them; (0, 0) without such a block."""
        block, held = self.part_after.get(table.last_content, (PADDING_BLOCK, ()))
        rest = tokens[len(table.blocks) * POSITIONS_PER_BLOCK :]
        same = 0
        while same < min(len(held), len(rest)) and held[same] == rest[same]:
            same += 1
        return (block, same) if same else (PADDING_BLOCK, 0)

    def take(self, table: BlockTable, num_blocks: int) -> bool:
        """Take the table's blocks, and more up to `num_blocks`; False if too few are free."""
        missing = num_blocks - len(table.blocks)
        kept = {block for block in table.blocks if self.owners[block] == 0}
        if missing > len(self.free) - len(kept):
            return False
        for block in table.blocks:
            self._own(block)
        for block in self._choose(missing):
            self._forget(block)
            self._own(block)
            table.blocks.append(block)
        return True

    def give_back(self, table: BlockTable) -> None:
        """Return a table's blocks. Blocks with a known content are the last to be reused."""
        for block in reversed(table.blocks):  # the end of a text is the least likely to be asked for again
            self.owners[block] -= 1
            assert self.owners[block] >= 0, "a block is given back once for every time it was taken"
            if self.owners[block] == 0:
                self.free[block] = None
        table.blocks, table.content_ids = [], []

    def remember(self, table: BlockTable, tokens: Sequence[int], count: int) -> None:
        """Note the content of the table's full blocks; the first `count` tokens are in the cache."""
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

    def remember_part(self, table: BlockTable, tokens: Sequence[int], count: int) -> None:
        """Note the content of the table's last, partly filled block; its owner only adds to it."""
        full = len(table.content_ids) * POSITIONS_PER_BLOCK
        if count > full:
            block, parent = table.blocks[len(table.content_ids)], table.last_content
            self._forget_part(block)
            if old := self.part_after.get(parent):
                self._forget_part(old[0])
            self.part_after[parent] = block, tuple(tokens[full:count])
            self.part_of[block] = parent

    def _choose(self, count: int) -> Iterable[int]:
        """Free blocks, adjacent ones if possible: their keys need not be gathered."""
        blank = sorted(block for block in self.free if block not in self.content_of)
        for first in range(len(blank) - count + 1):
            if blank[first + count - 1] - blank[first] == count - 1:
                return blank[first : first + count]
        order = [*blank, *(block for block in self.free if block in self.content_of)]
        return order[:count]

    def _own(self, block: int) -> None:
        self.free.pop(block, None)
        self.owners[block] += 1

    def _forget_part(self, block: int) -> None:
        if block in self.part_of:
            del self.part_after[self.part_of.pop(block)]

    def _forget(self, block: int) -> None:
        self._forget_part(block)
        if block in self.content_of:
            content, content_id = self.content_of.pop(block)
            del self.ids[content], self.block_of[content_id]
