"""`Sequence`: a prompt and its continuation as ids, its blocks of the cache, its rules, and when it ends.

A full block is identified by its tokens and the blocks before it, so sequences that begin alike share their first
blocks. A returned block keeps its content until it is needed for something else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Literal

from foretell.errors import ContextLengthError, UsageError
from foretell.generation.filters import Prefix
from foretell.generation.sampling import TokenChooser
from foretell.model.decoder import Decoder
from foretell.model.paged_cache import PADDING_BLOCK, POSITIONS_PER_BLOCK

Content = tuple[int, tuple[int, ...]]  # the content id of the blocks before, and the tokens of this one


# --- blocks of the cache ---------------------------------------------------------------------------------------------


def blocks_for(num_tokens: int) -> int:
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

    def matched(self, root: int, tokens: list[int]) -> BlockTable:
        """A table of the blocks that hold the beginning of these tokens, not taken yet."""
        table = BlockTable(root)
        for first in range(0, len(tokens) - POSITIONS_PER_BLOCK + 1, POSITIONS_PER_BLOCK):
            content = (table.last_content, tuple(tokens[first : first + POSITIONS_PER_BLOCK]))
            if content not in self.ids:
                break
            table.content_ids.append(self.ids[content])
            table.blocks.append(self.block_of[self.ids[content]])
        return table

    def begun_block(self, table: BlockTable, tokens: list[int]) -> tuple[int, int]:
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

    def remember(self, table: BlockTable, tokens: list[int], count: int) -> None:
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

    def remember_part(self, table: BlockTable, tokens: list[int], count: int) -> None:
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


FinishReason = Literal["length", "stop", "end", "context", "cancelled"]


# --- a sequence ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Rules:
    """Sampling settings and limits of a sequence. Sequences with the same sampler are sampled together.

    max_tokens: None means until the context is full. end_ids: tokens that end a sequence; they are added to it.
    slide: a sequence that fills the context continues from its last half, which is read again (a context shift).
    """

    sampler: TokenChooser
    max_tokens: int | None = None
    end_ids: frozenset[int] = frozenset()
    slide: bool = False


@dataclass(eq=False)
class Sequence:
    """A prompt and the tokens generated after it.

    sample: index of the stream of random numbers. stop: called with every generated token, true for the token that ends
    the sequence. decoder: another form of the model for this sequence alone, such as one with a replaced module.
    row: for a model with an encoder, the row of its source.
    finish_reason is set once: length (max_tokens reached), end (an end token was sampled), context (the context is
    full), stop (`stop` was true, the constraint of its sampler is complete, or set by the caller), or cancelled.
    """

    prompt: list[int]
    sample: int = 0
    generated: list[int] = field(default_factory=list)
    rules: Rules | None = None
    stop: Callable[[int], bool] | None = None
    decoder: Decoder | None = None
    row: int | None = None
    finish_reason: FinishReason | None = None
    window_start: int = 0  # the first token that the model still sees; moves only with slide
    num_cached: int = 0  # visible tokens that are in the cache
    table: BlockTable | None = None  # its blocks of the cache, while it runs

    @property
    def ids(self) -> list[int]:
        return self.prompt + self.generated

    @property
    def visible(self) -> list[int]:
        """The ids that the model sees: all, or the tail after a context shift."""
        return self.ids[self.window_start :]

    @property
    def num_visible(self) -> int:
        return len(self.prompt) + len(self.generated) - self.window_start

    @property
    def num_unread(self) -> int:
        """The number of visible tokens that are not in the cache: 1 for a sequence that grows token by token."""
        return self.num_visible - self.num_cached

    @property
    def is_growing(self) -> bool:
        """True if all but the newest token has been read: the prompt has, and no context shift is pending."""
        return bool(self.generated) and self.num_unread == 1

    def unread(self, count: int) -> list[int]:
        """The first `count` visible tokens that are not in the cache."""
        if count == self.num_unread == 1 and self.generated:
            return self.generated[-1:]
        first = self.window_start + self.num_cached
        return self.ids[first : first + count]

    def prefix(self, guess: list[int]) -> Prefix:
        """The prefix for the sampler: the ids so far, and guessed ids after them."""
        return Prefix(self.ids + guess, len(self.prompt), rules_of(self).end_ids)


def rules_of(sequence: Sequence) -> Rules:
    """The rules of a sequence, which it has when it is added."""
    assert sequence.rules is not None, "a sequence is added with its rules"
    return sequence.rules


def table_of(sequence: Sequence) -> BlockTable:
    """The blocks of a running sequence."""
    assert sequence.table is not None, "the scheduler gives a sequence its blocks before it is read"
    return sequence.table


# --- the end: no other file decides when a sequence ends --------------------------------------------------------------


def reason_to_end(sequence: Sequence, token: int, context_length: int) -> FinishReason | None:
    """The reason to end after this new token; None if the sequence goes on."""
    rules = rules_of(sequence)
    if token in rules.end_ids:
        return "end"
    if sequence.stop is not None and sequence.stop(token):
        return "stop"
    if rules.sampler.completes(sequence.generated):
        return "stop"
    if rules.max_tokens is not None and len(sequence.generated) >= rules.max_tokens:
        return "length"
    is_full = sequence.num_visible > context_length
    return "context" if is_full and not rules.slide else None


def check_length(sequence: Sequence, context_length: int) -> Rules:
    """Refuse a prompt and a length that do not fit; returns the rules of the sequence."""
    limit, length, rules = context_length, len(sequence.prompt), rules_of(sequence)
    if rules.max_tokens is not None and rules.max_tokens < 0:
        raise UsageError(f"max-tokens must be 0 or more, not {rules.max_tokens}")
    if length == 0:
        raise UsageError("the prompt is empty; give at least one token to continue from")
    if rules.slide:
        sequence.window_start = 0 if length <= limit else first_kept(sequence, limit)
    elif length > limit:
        raise ContextLengthError(
            f"the prompt has {length} tokens and the model's context is {limit}; shorten it, or use --slide to "
            "continue from its tail"
        )
    elif length + (rules.max_tokens or 0) > limit + 1:  # the last token is predicted, and not read
        raise ContextLengthError(
            f"a prompt of {length} tokens and {rules.max_tokens} new ones do not fit the model's context of {limit}; "
            f"ask for at most --max-tokens {limit + 1 - length}, or use --slide"
        )
    return rules


def check_ids(sequence: Sequence, vocab_size: int) -> None:
    wrong = next((token for token in sequence.prompt if not 0 <= token < vocab_size), None)
    if wrong is not None:
        raise UsageError(f"the prompt has the id {wrong}; the model's ids are 0 to {vocab_size - 1}")


def first_kept(sequence: Sequence, context_length: int) -> int:
    """The index of the first id that a context shift keeps: the last half of the context."""
    return len(sequence.prompt) + len(sequence.generated) - max(1, context_length // 2)
