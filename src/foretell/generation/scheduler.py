"""`Scheduler`: sequences that join, run together and leave; `generate` continues a list of them."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from torch import Tensor

from foretell.errors import UsageError
from foretell.generation.engine import Engine, affordable_blocks, bytes_per_block
from foretell.generation.sampling import TokenChooser
from foretell.generation.sequence import (
    BlockPool,
    Content,
    Rules,
    Sequence,
    blocks_for,
    check_ids,
    check_length,
    first_kept,
    reason_to_end,
    rules_of,
    table_of,
)
from foretell.generation.speculation import Proposer
from foretell.model.decoder import Decoder
from foretell.model.paged_cache import POSITIONS_PER_BLOCK

MAX_ROWS = 256  # sequences that run at once
TOKENS_AT_ONCE = 4096  # of prompts in one pass; padding counts
TOKENS_BETWEEN_STEPS = 512  # the same, while other sequences wait for their next token
Item = TypeVar("Item")
Event = tuple[Sequence, int]  # a sequence, and the token that it got


@dataclass(frozen=True)
class Part:
    """The tokens of a sequence that one pass reads; logits are wanted after the last `num_logits` of them."""

    sequence: Sequence
    tokens: list[int]
    num_logits: int

    @property
    def guess(self) -> list[int]:
        """The guessed tokens, at the end of `tokens`."""
        return self.tokens[len(self.tokens) - self.num_logits + 1 :] if self.num_logits > 1 else []


class Scheduler:
    """Sequences that join and leave, continued together.

        scheduler = Scheduler(decoder)
        scheduler.add(Sequence(prompt, rules=Rules(Sampler(config), max_tokens=20)))
        while scheduler.is_busy:
            for sequence, token in scheduler.step():
                ...

    The continuation of a sequence does not depend on the others. A sequence waits until there are free blocks for the
    longest text that its rules allow, so a running sequence is not interrupted until its context is full. memory: bytes
    of the cache; default: a quarter of the machine's. num_blocks: the number of blocks needed, if that is fewer.
    proposer: guesses tokens, several of which are then checked in one pass. expected_tokens: see `Engine`.
    """

    def __init__(
        self,
        decoder: Decoder,
        *,
        memory: int | None = None,
        num_blocks: int | None = None,
        max_rows: int = MAX_ROWS,
        expected_tokens: int | None = None,
        proposer: Proposer | None = None,
    ):
        usable = max_rows * blocks_for(decoder.config.context_length)
        self.num_blocks = min(affordable_blocks(decoder, memory), usable if num_blocks is None else num_blocks)
        self.engine = Engine(decoder, self.num_blocks + 1, expected_tokens)  # one more, for padding
        self.pool, self.max_rows = BlockPool(self.num_blocks + 1), max_rows
        self.proposer = proposer
        self.waiting: OrderedDict[Sequence, None] = OrderedDict()  # a queue that finds its members at once
        self.running: list[Sequence] = []
        self._roots: dict[tuple[Decoder, int | None], int] = {}

    @property
    def is_busy(self) -> bool:
        return bool(self.waiting or self.running)

    def add(self, sequence: Sequence) -> None:
        """Let a sequence join. Raises ContextLengthError or UsageError for one that does not fit or is not new."""
        if sequence.finish_reason is not None or sequence in self.waiting or sequence in self.running:
            raise UsageError("this sequence was added before; make a new one")
        check_ids(sequence, self.engine.decoder.config.vocab_size)
        rules = check_length(sequence, self.engine.decoder.config.context_length)
        needed = blocks_needed(sequence, self.engine.decoder.config.context_length)
        size = bytes_per_block(self.engine.decoder)
        if needed > self.num_blocks:
            raise UsageError(
                f"a text of {needed * POSITIONS_PER_BLOCK:,} tokens needs {needed * size / 2**20:,.0f} MiB of cache, "
                f"and there are {self.num_blocks * size / 2**20:,.0f}; ask for fewer tokens, or give more memory"
            )
        sequence.finish_reason = "length" if rules.max_tokens == 0 else None
        if sequence.finish_reason is None:
            self.waiting[sequence] = None

    def cancel(self, sequence: Sequence) -> None:
        """End a sequence now and free its blocks. A sequence that has ended, or was never added, does not change."""
        is_waiting = sequence in self.waiting
        self.waiting.pop(sequence, None)
        if sequence.finish_reason is None and (is_waiting or sequence in self.running):
            sequence.finish_reason = "cancelled"
        self._release_finished()

    def step(self) -> list[Event]:
        """Read a part of the prompts, and one token of each sequence whose prompt was read; returns the new tokens."""
        self._release_finished()
        self._admit()
        growing = [sequence for sequence in self.running if sequence.is_growing]
        reading = [sequence for sequence in self.running if not sequence.is_growing]
        parts = self._next_parts(reading, TOKENS_BETWEEN_STEPS if growing else TOKENS_AT_ONCE)
        events = self._read(parts) + self._read(self._guesses(growing))
        self._release_finished()
        return events

    # ------------------------------------------------------------------ starting and ending

    def _admit(self) -> None:
        """Start sequences in the order in which they were added, as long as there is room for them."""
        being_read = {}
        for sequence in self.running:
            being_read.update(dict.fromkeys(self._first_unread_content(sequence)))
        while self.waiting and len(self.running) < self.max_rows:
            sequence = next(iter(self.waiting))
            first = self._match(sequence)
            if any(content in being_read for content in first):
                return  # another sequence is about to read the same beginning
            if not self._start(sequence):
                return
            being_read.update(dict.fromkeys(first))
            self.running.append(self.waiting.popitem(last=False)[0])

    def _match(self, sequence: Sequence) -> list[Content]:
        """Give a sequence the blocks that hold its beginning; returns the content that it will read next."""
        known = sequence.visible[:-1]  # the last token has to be read for its logits
        sequence.table = self.pool.matched(self._root(sequence), known)
        sequence.num_cached = len(sequence.table.blocks) * POSITIONS_PER_BLOCK
        return list(self._first_unread_content(sequence))

    def _start(self, sequence: Sequence) -> bool:
        """Take blocks for the longest text of a sequence; False if there are too few now."""
        table = table_of(sequence)
        source, count = self.pool.begun_block(table, sequence.visible[:-1])
        target = len(table.blocks)
        if not self.pool.take(table, blocks_needed(sequence, self.engine.decoder.config.context_length)):
            return False
        if count:
            self.engine.cache.copy_block(source, table.blocks[target])
            sequence.num_cached += count
        return True

    def _first_unread_content(self, sequence: Sequence) -> Iterator[Content]:
        """The content of the next block of a sequence that is being read."""
        if sequence.num_unread > 1:  # every sequence reads its last token itself, for the logits
            table = table_of(sequence)
            first = len(table.content_ids) * POSITIONS_PER_BLOCK
            yield table.last_content, tuple(sequence.visible[first : first + POSITIONS_PER_BLOCK])

    def _root(self, sequence: Sequence) -> int:
        """The content id of no blocks. Other forms of the model, and other sources, give equal tokens other keys."""
        key = sequence.decoder or self.engine.decoder, sequence.row
        if key not in self._roots:
            self._roots[key] = self.pool.new_root()
        return self._roots[key]

    def _release_finished(self) -> None:
        for sequence in self.running:
            if sequence.finish_reason is not None:
                self.pool.remember_part(table_of(sequence), sequence.visible, sequence.num_cached)
                self.pool.give_back(table_of(sequence))
                sequence.table = None
                if self.proposer is not None:
                    self.proposer.release(sequence)
        self.running = [sequence for sequence in self.running if sequence.finish_reason is None]

    # ------------------------------------------------------------------ reading

    def _next_parts(self, reading: list[Sequence], room: int) -> list[Part]:
        """The prompts to read next, or parts of them; at most `room` tokens with the padding."""
        parts: list[Part] = []
        for sequence in reading:
            count = min(sequence.num_unread, room)
            if parts and (len(parts) + 1) * max(count, *(len(part.tokens) for part in parts)) > room:
                break
            parts.append(Part(sequence, sequence.unread(count), int(count == sequence.num_unread)))
        return parts

    def _guesses(self, growing: list[Sequence]) -> list[Part]:
        """The newest token of each sequence, followed by the guesses of the proposer."""
        if self.proposer is None or not growing:
            return [Part(sequence, sequence.unread(1), 1) for sequence in growing]
        guesses = self.proposer.propose(growing, [self._room_to_guess(sequence) for sequence in growing])
        pairs = zip(growing, guesses, strict=True)
        return [Part(sequence, [*sequence.unread(1), *guess], 1 + len(guess)) for sequence, guess in pairs]

    def _room_to_guess(self, sequence: Sequence) -> int:
        """The largest number of tokens to guess: the token after them has to fit too."""
        limit, longest = self.engine.decoder.config.context_length, rules_of(sequence).max_tokens
        room = limit - sequence.num_visible
        return room if longest is None else min(room, longest - len(sequence.generated) - 1)

    def _read(self, parts: list[Part]) -> list[Event]:
        """Read new tokens of sequences; a sequence read to its end gets one token, or all guessed tokens."""
        events: list[Event] = []
        for members in grouped(parts, lambda part: part.sequence.decoder):
            logits = self.engine.read(
                [part.sequence for part in members],
                [part.tokens for part in members],
                [part.num_logits for part in members],
            )
            sampled = iter(self._sample(members, logits))
            for part in members:
                events += self._take(part, [next(sampled) for _ in range(part.num_logits)])
        return events

    def _sample(self, parts: list[Part], logits: Tensor) -> list[int]:
        """Sample the token after each of the last tokens of each part, from its row of the logits (R, V)."""
        owners = [part.sequence for part in parts for _ in range(part.num_logits)]  # of each row
        prefixes = [part.sequence.prefix(part.guess[:count]) for part in parts for count in range(part.num_logits)]
        tokens = [0] * len(owners)
        for members in grouped(range(len(owners)), lambda row: rules_of(owners[row]).sampler):
            chosen = logits if len(members) == len(owners) else logits[members]
            sampler, samples = rules_of(owners[members[0]]).sampler, [owners[row].sample for row in members]
            for row, token in zip(members, sampler(chosen, [prefixes[row] for row in members], samples), strict=True):
                tokens[row] = token
        return tokens

    def _take(self, part: Part, tokens: list[int]) -> list[Event]:
        """Add sampled tokens to a sequence, up to the first that differs from its guess."""
        sequence, guess = part.sequence, part.guess
        self._note_read(sequence, len(part.tokens) - len(guess))
        events: list[Event] = []
        for index, token in enumerate(tokens):
            self._append(sequence, token)
            events.append((sequence, token))
            if sequence.finish_reason is not None or index == len(guess) or token != guess[index]:
                break
            self._note_read(sequence, 1)
        return events

    def _note_read(self, sequence: Sequence, count: int) -> None:
        sequence.num_cached += count
        table = table_of(sequence)
        if sequence.num_cached >= (len(table.content_ids) + 1) * POSITIONS_PER_BLOCK:
            self.pool.remember(table, sequence.visible, sequence.num_cached)
        if count > 1 and sequence.num_unread == 0:
            self.pool.remember_part(table, sequence.visible, sequence.num_cached)

    # ------------------------------------------------------------------ growing

    def _append(self, sequence: Sequence, token: int) -> None:
        """Add a token to a sequence, which may end there."""
        limit = self.engine.decoder.config.context_length
        sequence.generated.append(token)
        reason = reason_to_end(sequence, token, limit)
        if sequence.finish_reason is None:  # else `stop` has cancelled it
            sequence.finish_reason = reason
        if sequence.finish_reason is None and sequence.num_visible > limit:
            self._shift(sequence)

    def _shift(self, sequence: Sequence) -> None:
        """Keep only the last half visible. Its positions change, so all of it is read again.

        The sequence is the first to start again. It may have to wait, since its shared blocks are still in use.
        """
        self.pool.give_back(table_of(sequence))
        sequence.window_start = first_kept(sequence, self.engine.decoder.config.context_length)
        sequence.table, sequence.num_cached = None, 0
        self.running.remove(sequence)
        self.waiting[sequence] = None
        self.waiting.move_to_end(sequence, last=False)


def blocks_needed(sequence: Sequence, context_length: int) -> int:
    """Blocks for the longest text that the model will see of a sequence."""
    limit = rules_of(sequence).max_tokens
    return blocks_for(context_length if limit is None else min(context_length, sequence.num_visible + limit))


def grouped(items: Iterable[Item], key: Callable[[Item], object]) -> list[list[Item]]:
    """Items with the same object as key together, in the order in which the keys first occur."""
    groups: dict[int, list[Item]] = {}
    for item in items:
        groups.setdefault(id(key(item)), []).append(item)
    return list(groups.values())


# --- a list of sequences until all have ended ------------------------------------------------------------------------


def generate(
    decoder: Decoder,
    sequences: list[Sequence],
    sampler: TokenChooser,
    max_tokens: int | None,
    *,
    end_ids: Collection[int] = (),
    slide: bool = False,
) -> Iterator[Event]:
    """Continue all sequences together by the same rules, yielding (sequence, id) for each sampled token.

    Prompts may differ in length, and the result of each does not depend on the others. A token of end_ids ends its
    sequence; it is added to `generated` but not yielded. The caller may end a sequence by setting its `finish_reason`.
    For max_tokens and slide see `Rules`. Raises ContextLengthError or UsageError before anything is generated.
    """
    rules = Rules(sampler, max_tokens, frozenset(end_ids), slide)
    for sequence in sequences:
        sequence.rules = rules
        check_length(sequence, decoder.config.context_length)
    return (event for event in run(make_scheduler(decoder, sequences), sequences) if event[1] not in rules.end_ids)


def run(scheduler: Scheduler, sequences: list[Sequence]) -> Iterator[Event]:
    """Continue sequences, each by its own rules, yielding (sequence, id) for each sampled token.

    Other sequences of the scheduler continue too, and are not yielded. If the iterator is closed before the sequences
    have ended, they are cancelled.
    """
    own = set(sequences)
    try:
        for sequence in sequences:
            scheduler.add(sequence)
        unfinished = deque(sequences)
        while unfinished:
            if unfinished[0].finish_reason is not None:
                unfinished.popleft()
                continue
            yield from (event for event in scheduler.step() if event[0] in own)
    finally:
        for sequence in sequences:
            scheduler.cancel(sequence)


def make_scheduler(decoder: Decoder, sequences: list[Sequence], proposer: Proposer | None = None) -> Scheduler:
    """A scheduler with just enough cache for these sequences, or as much as the memory allows."""
    context_length, limits = decoder.config.context_length, [rules_of(sequence).max_tokens for sequence in sequences]
    num_blocks = sum(blocks_needed(sequence, context_length) for sequence in sequences)
    known = [limit for limit in limits if limit is not None]
    expected_tokens = max(known, default=0) if len(known) == len(limits) else None
    return Scheduler(decoder, num_blocks=num_blocks, expected_tokens=expected_tokens, proposer=proposer)
