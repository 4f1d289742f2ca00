"""`Scheduler`: continuous batching of sequences, which join and leave at any time."""

from __future__ import annotations

import math
from collections import Counter, OrderedDict
from collections.abc import Iterator
from copy import copy
from itertools import islice
from typing import NamedTuple

from foretell.errors import Interrupted, UsageError
from foretell.generation.admission import ReadingPace, WaitingSequences, now
from foretell.generation.block_table import BlockPool, Content, blocks_for
from foretell.generation.engine import Engine, affordable_blocks, bytes_per_block
from foretell.generation.logprobs import TokenLogprob
from foretell.generation.next_tokens import ChosenToken, Part, choose, grouped, separately
from foretell.generation.sequence import (
    Sequence,
    check_ids,
    check_length,
    first_kept,
    reason_to_end,
    rules_of,
    table_of,
)
from foretell.generation.speculation import Proposer
from foretell.model.decoder import Decoder, check_decoder
from foretell.model.paged_cache import POSITIONS_PER_BLOCK

# Sequences that run at once. With more than 64 rows on a CPU, blocks are not fused: a token takes three times as long
MAX_ROWS = {"cpu": 64}
MAX_ROWS_ELSEWHERE = 256
TOKENS_AT_ONCE = 4096  # prompt tokens in one pass, including padding
MOST_BLOCKED = 16  # sequences without room that one step tries to start
ROOTS_KEPT = 1024  # users whose texts stay in the cache
MOST_PASSED = 64  # sequences that may start before an earlier one for which there is no room


class Event(NamedTuple):
    """A sequence, its new token, and the token's log-probability if its rules want it."""

    sequence: Sequence
    token: int
    logprob: TokenLogprob | None


class Scheduler:
    """Sequences that join and leave, continued together.

        scheduler = Scheduler(decoder)
        scheduler.add(Sequence(prompt, rules=Rules(Sampler(config), max_tokens=20)))
        while scheduler.is_busy:
            for sequence, token, logprob in scheduler.step():
                ...

    The continuation of a sequence does not depend on the others. A sequence starts when there are blocks for its
    prompt. It gets blocks for the longest text that its rules allow if enough are free, else as it grows. When none is
    left, the sequence that started last releases its blocks and is read again later. memory: bytes of the cache;
    default: a quarter of the machine's. num_schedulers: the number of schedulers that share the memory. num_blocks: an
    upper limit of the blocks. proposer: guesses tokens, which are then checked several per pass. expected_tokens: see
    `Engine`. step_seconds: the approximate time limit of a step, for which long prompts are read in parts; None: read
    all that fits in one pass, so that the bits of a result do not depend on timing.
    """

    def __init__(
        self,
        decoder: Decoder,
        *,
        memory: int | None = None,
        num_schedulers: int = 1,
        num_blocks: int | None = None,
        max_rows: int | None = None,
        expected_tokens: int | None = None,
        proposer: Proposer | None = None,
        step_seconds: float | None = None,
    ):
        check_decoder(decoder)
        max_rows = max_rows or MAX_ROWS.get(decoder.device.type, MAX_ROWS_ELSEWHERE)
        self.context_length = decoder.config.context_length
        usable = max_rows * blocks_for(self.context_length)
        self.num_blocks = min(
            affordable_blocks(decoder, memory, num_schedulers), usable if num_blocks is None else num_blocks
        )
        self.engine = Engine(decoder, self.num_blocks + 1, expected_tokens)  # one more, for padding
        self.pool, self.max_rows = BlockPool(self.num_blocks + 1, self.engine.cache.clear_blocks), max_rows
        self.most_held: float = math.inf  # blocks
        self.proposer = proposer
        self.pace = ReadingPace(step_seconds, TOKENS_AT_ONCE)
        self.waiting = WaitingSequences()
        self.running: list[Sequence] = []
        self.ended: list[Sequence] = []  # sequences that ended since the last step began
        self._roots: OrderedDict[tuple[Decoder, int | None, str, str], int] = OrderedDict()  # most recently used last
        self._forms: Counter[Decoder] = Counter()  # the number of sequences that use each other form of the model

    def sharing_cache(self, step_seconds: float) -> Scheduler:
        """A scheduler with its own rows, turns and steps, whose sequences hold at most half of the cache of this one.

        One that needs more than half runs alone.
        """
        other = copy(self)
        other.most_held = self.num_blocks // 2
        other.pace = ReadingPace(step_seconds, TOKENS_AT_ONCE)
        other.waiting, other.running, other.ended = WaitingSequences(), [], []
        return other

    @property
    def is_busy(self) -> bool:
        return bool(self.waiting or self.running)

    def add(self, sequence: Sequence) -> None:
        """Add a sequence. Raises ContextLengthError or UsageError for one that does not fit or is not new."""
        if sequence.finish_reason is not None or sequence in self.waiting or sequence in self.running:
            raise UsageError("this sequence was added before; make a new one")
        check_ids(sequence, self.engine.decoder.config.vocab_size)
        rules = check_length(sequence, self.context_length)
        needed = blocks_needed(sequence, self.context_length)
        size = bytes_per_block(self.engine.decoder)
        if needed > self.num_blocks:
            raise UsageError(
                f"a text of {needed * POSITIONS_PER_BLOCK:,} tokens needs {needed * size / 2**20:,.0f} MiB of cache, "
                f"but there are {self.num_blocks * size / 2**20:,.0f}; ask for fewer tokens, or give more memory"
            )
        if rules.prompt_logprobs is not None:
            sequence.prompt_logprobs = [None] * min(len(sequence.prompt), max(1, sequence.first_logprob))
        self.waiting.add(sequence)
        if sequence.decoder is not None:
            self._forms[sequence.decoder] += 1

    def cancel(self, sequence: Sequence) -> None:
        """End a sequence now and free its blocks. No effect on a sequence that has ended or was never added."""
        is_waiting = sequence in self.waiting
        if is_waiting:
            self.waiting.remove(sequence)
            self._release_form(sequence)
        if sequence.finish_reason is None and (is_waiting or sequence in self.running):
            sequence.finish_reason = "cancelled"
        self._release_finished()

    def step(self) -> list[Event]:
        """Read parts of prompts, and the newest token of each sequence whose prompt is read; returns the new tokens.

        Sequences that end are in `ended`, including those without a new token (after an error, or with max_tokens 0).
        """
        self.ended = []
        self._release_finished()
        self._admit()
        self._release_finished()  # sequences without continuation whose prompt needs no reading
        growing = [sequence for sequence in self.running if sequence.is_growing]
        reading = [sequence for sequence in self.running if not sequence.is_growing]
        started = now()
        parts = self._next_parts(reading, self.pace.room(len(growing), len(reading)))
        events = self._read(parts)
        self.pace.note(len(parts) * max((len(part.tokens) for part in parts), default=0), started)
        started = now()
        events += self._read(self._with_blocks(self._guesses(growing)))
        self.pace.note_growing(started)
        self._release_finished()
        return events

    # ------------------------------------------------------------------ starting and ending

    def _admit(self) -> None:
        """Start sequences in order while there is room; some may pass an earlier one that does not fit."""
        being_read = {content for sequence in self.running for content in self._first_unread_content(sequence)}
        blocked: list[Sequence] = []
        for sequence in self.waiting.first(self.max_rows - len(self.running) + MOST_BLOCKED):
            if len(blocked) == MOST_BLOCKED:
                return
            if not being_read.isdisjoint(self._match(sequence)):
                continue  # another sequence is about to read the same beginning
            has_row = len(self.running) < self.max_rows or self._make_way(sequence)
            if not (has_row and self._start(sequence)):
                blocked.append(sequence)
                if sequence.num_passed >= MOST_PASSED:
                    return
                continue
            being_read.update(self._first_unread_content(sequence))  # without what `_start` copied
            self.waiting.take_turn(sequence)
            self.running.append(sequence)
            for other in blocked:
                other.num_passed += 1

    def _match(self, sequence: Sequence) -> list[Content]:
        """Assign a sequence the cached blocks of its beginning; returns the content that it will read next."""
        cacheable = sequence.visible[: sequence.num_cacheable]
        sequence.table = self.pool.matched(self._root(sequence), cacheable)
        sequence.num_cached = len(sequence.table.blocks) * POSITIONS_PER_BLOCK
        return list(self._first_unread_content(sequence))

    def _start(self, sequence: Sequence) -> bool:
        """Take blocks for a sequence; False if there are too few now."""
        held = sum(len(table_of(other).blocks) for other in self.running)
        if held and held + blocks_needed(sequence, self.context_length) > self.most_held:
            return False
        table = table_of(sequence)
        source, count = self.pool.begun_block(table, sequence.visible[: sequence.num_cacheable])
        target = len(table.blocks)
        while not self._take_blocks(sequence):
            if not self._make_way(sequence):
                return False
        if count:
            self.engine.cache.copy_block(source, table.blocks[target], count)
            sequence.num_cached += count
        self._end_if_read(sequence)
        return True

    def _take_blocks(self, sequence: Sequence) -> bool:
        """Take blocks for the longest possible text of a sequence, or else for the tokens to read."""
        table, longest = table_of(sequence), blocks_needed(sequence, self.context_length)
        if self.pool.take(table, longest):
            return True
        self._reclaim({})
        growing = sum(len(table_of(other).blocks) < blocks_needed(other, self.context_length) for other in self.running)
        num_blocks = min(longest, blocks_for(sequence.num_visible))
        is_free = self.pool.num_free >= num_blocks - len(table.blocks) + growing  # each growing one soon needs another
        return is_free and self.pool.take(table, num_blocks)

    def _make_way(self, sequence: Sequence) -> bool:
        """Pause a sequence of the user with the most running sequences, if this sequence's user has fewer."""
        counts = Counter(other.key for other in self.running)
        key, most = counts.most_common(1)[0] if counts else ("", 0)
        if most < counts[sequence.key] + 2:
            return False
        self._pause(next(other for other in reversed(self.running) if other.key == key))
        return True

    def _reclaim(self, num_read: dict[Sequence, int]) -> None:
        """Reclaim blocks that running sequences do not need yet; num_read: the tokens that the next pass reads."""
        for sequence in self.running:
            length = max(sequence.num_visible, sequence.num_cached + num_read.get(sequence, 0))
            self.pool.give_back(table_of(sequence), blocks_for(length))

    def _with_blocks(self, parts: list[Part]) -> list[Part]:
        """The parts for which there are blocks; the sequences that started last are paused until there are enough."""
        self._release_finished()
        num_read = {part.sequence: len(part.tokens) for part in parts}
        for sequence, count in num_read.items():
            num_blocks = blocks_for(sequence.num_cached + count)
            if sequence.table is not None and not self.pool.grow(sequence.table, num_blocks):
                self._reclaim(num_read)
            while sequence.table is not None and not self.pool.grow(sequence.table, num_blocks):
                self._pause(self.running[-1])
        return [part for part in parts if part.sequence.table is not None]

    def _pause(self, sequence: Sequence) -> None:
        """Move a running sequence back to the queue, without blocks; its tokens are read again unless still cached."""
        self._release_blocks(sequence)
        sequence.num_cached = 0
        self.running.remove(sequence)
        self.waiting.add(sequence, is_next=True)

    def _release_blocks(self, sequence: Sequence) -> None:
        """Return the blocks of a sequence; sequences with the same beginning can still use their content."""
        table = table_of(sequence)
        if not has_finite_logits(sequence):
            self.pool.unsound.update(table.blocks)
        self.pool.remember_part(table, sequence.visible, sequence.num_cached)
        self.pool.give_back(table)
        sequence.table = None

    def _first_unread_content(self, sequence: Sequence) -> Iterator[Content]:
        """The content of the next block that a sequence will read, if other sequences could share it."""
        if sequence.num_cached < sequence.num_cacheable:
            table = table_of(sequence)
            first = len(table.content_ids) * POSITIONS_PER_BLOCK
            last = min(first + POSITIONS_PER_BLOCK, sequence.num_cacheable + 1)
            yield table.last_content, tuple(sequence.visible[first:last])

    def _root(self, sequence: Sequence) -> int:
        """The content id before the first block, which differs by form of the model, source and user.

        Users with different keys share no blocks, so the time to the first token does not reveal the prompts of others.
        """
        key = sequence.decoder or self.engine.decoder, sequence.row, sequence.key, sequence.cache_salt
        if key not in self._roots:
            self._roots[key] = self.pool.new_root()
        self._roots.move_to_end(key)
        if len(self._roots) > ROOTS_KEPT:
            self._roots.popitem(last=False)
        return self._roots[key]

    def _release_finished(self) -> None:
        for sequence in self.running:
            if sequence.finish_reason is not None:
                self._release_blocks(sequence)
                if self.proposer is not None:
                    self.proposer.release(sequence)
                self._release_form(sequence)
                self.ended.append(sequence)
        self.running = [sequence for sequence in self.running if sequence.finish_reason is None]

    def _release_form(self, sequence: Sequence) -> None:
        """Forget another form of the model when its last sequence ends."""
        decoder = sequence.decoder
        if decoder is None:
            return
        self._forms[decoder] -= 1
        if self._forms[decoder] == 0:
            del self._forms[decoder]
            self.engine.forget(decoder)
            for key in [key for key in self._roots if key[0] is decoder]:
                del self._roots[key]

    # ------------------------------------------------------------------ reading

    def _next_parts(self, reading: list[Sequence], room: int) -> list[Part]:
        """The prompts to read next, or parts of them: at most `room` tokens, including padding.

        With a time limit, a prompt is also split to fill a pass together with others.
        """
        parts: list[Part] = []
        for sequence in reading:
            most = room if self.pace.seconds is None else room // (len(parts) + 1)
            count = min(sequence.num_to_read, most)
            if parts and (len(parts) + 1) * max(count, *(len(part.tokens) for part in parts)) > room:
                break
            num_sampled = int(count == sequence.num_unread)
            num_scored = max(0, sequence.num_cached + count - sequence.num_cacheable - num_sampled)
            parts.append(Part(sequence, sequence.unread(count), num_sampled, num_scored))
        return parts

    def _guesses(self, growing: list[Sequence]) -> list[Part]:
        """The newest token of each sequence, followed by the guesses of the proposer."""
        if self.proposer is None or not growing:
            return [Part(sequence, sequence.unread(1), 1) for sequence in growing]
        proposer = self.proposer
        guesses = separately(lambda part: proposer.propose(part, list(map(self._room_to_guess, part))), growing)
        parts = []
        for sequence, guess in zip(growing, guesses, strict=True):
            if isinstance(guess, Exception):
                fail(sequence, guess)
            else:
                parts.append(Part(sequence, [*sequence.unread(1), *guess], 1 + len(guess)))
        return parts

    def _room_to_guess(self, sequence: Sequence) -> int:
        """The largest number of tokens to guess: the token after them must fit too."""
        longest, room = rules_of(sequence).max_tokens, self.context_length - sequence.num_visible
        return room if longest is None else min(room, longest - len(sequence.generated) - 1)

    def _read(self, parts: list[Part]) -> list[Event]:
        """Read new tokens of sequences; a sequence read to its end gets a new token, after any correct guesses."""
        events: list[Event] = []
        for members in grouped(parts, lambda part: part.sequence.decoder):
            choices = iter(self._choose(members))
            for part in members:
                events += self._accept(part, list(islice(choices, part.num_logits)))
        return events

    def _choose(self, parts: list[Part]) -> list[ChosenToken | Exception]:
        """Read parts of sequences with the same form of the model; returns the choice for each row of logits."""
        rows = [row for part in parts for row in part.rows()]
        choices: list[ChosenToken | Exception] = []
        try:
            for logits in self.engine.read(
                [part.sequence for part in parts], [part.tokens for part in parts], [part.num_logits for part in parts]
            ):
                choices += choose(rows[len(choices) : len(choices) + len(logits)], logits)
        except Interrupted:
            raise
        except Exception as error:
            for part in parts:
                fail(part.sequence, error)
            return [error] * len(rows)
        return choices

    def _accept(self, part: Part, choices: list[ChosenToken | Exception]) -> list[Event]:
        """Add sampled tokens to a sequence: the correct guesses, and the token that follows them."""
        sequence, guess = part.sequence, part.guess
        events: list[Event] = []
        if sequence.finish_reason == "error":
            return events
        self._note_read(sequence, len(part.tokens) - len(guess))
        for index, choice in enumerate(choices, -part.num_scored):
            if isinstance(choice, Exception):
                fail(sequence, choice)
                break
            if index < 0:
                sequence.prompt_logprobs.append(choice.logprob)
                continue
            self._append(sequence, choice.token)
            events.append(Event(sequence, choice.token, choice.logprob))
            if sequence.finish_reason is not None or index == len(guess) or choice.token != guess[index]:
                break
            self._note_read(sequence, 1)
        self._end_if_read(sequence)
        return events

    def _note_read(self, sequence: Sequence, count: int) -> None:
        """Count tokens as cached, and record the content of the blocks that they fill."""
        sequence.num_cached += count
        table = table_of(sequence)
        if sequence.num_cached >= (len(table.content_ids) + 1) * POSITIONS_PER_BLOCK:
            self.pool.remember(table, sequence.visible, sequence.num_cached)
        if count > 1 and sequence.num_to_read == 0:
            self.pool.remember_part(table, sequence.visible, sequence.num_cached)

    # ------------------------------------------------------------------ growing

    def _append(self, sequence: Sequence, token: int) -> None:
        """Add a token to a sequence, and end it if the token is its last."""
        sequence.generated.append(token)
        try:
            reason = reason_to_end(sequence, token, self.context_length)
        except Interrupted:
            raise
        except Exception as error:
            fail(sequence, error)
            return
        if sequence.finish_reason is None:  # otherwise `stop` has cancelled it
            sequence.finish_reason = reason
        if sequence.finish_reason is None and sequence.num_visible > self.context_length:
            self._pause(sequence)  # only the last half stays visible; its positions change, so it is read again
            sequence.window_start = first_kept(sequence, self.context_length)

    def _end_if_read(self, sequence: Sequence) -> None:
        """End a sequence that generates nothing once its prompt is read."""
        if sequence.finish_reason is None and rules_of(sequence).max_tokens == 0 and sequence.num_to_read == 0:
            sequence.finish_reason = "length"


def blocks_needed(sequence: Sequence, context_length: int) -> int:
    """The blocks for the longest visible text of a sequence."""
    limit = rules_of(sequence).max_tokens
    left = context_length if limit is None else limit - len(sequence.generated)
    return blocks_for(min(context_length, sequence.num_visible + left))


def has_finite_logits(sequence: Sequence) -> bool:
    """True if the logits after the last read token are finite; then all keys and values are."""
    if sequence.decoder is not None or sequence.finish_reason == "error":  # another form may hide non-finite values
        return False
    last = sequence.prompt_logprobs[-1] if sequence.prompt_logprobs else None
    return bool(sequence.generated) or (last is not None and math.isfinite(last.logprob))


def fail(sequence: Sequence, error: Exception) -> None:
    sequence.finish_reason, sequence.error = "error", error
