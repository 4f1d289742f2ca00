"""The order in which waiting sequences start, and the number of prompt tokens that one step reads."""

from __future__ import annotations

import time
from collections import OrderedDict, deque
from collections.abc import Iterator
from itertools import islice

from foretell.generation.sequence import Sequence

# Fewer take as long, because a pass reads all weights. Also the number before the speed is known. A pass reads a
# multiple of it, so that no kernel has to pad rows
LEAST_TOKENS = 32
LEAST_SHARE = 0.3  # the least share of a step for reading prompts, however long the other sequences take
# The share of a step's time that is used if far fewer prompts are read than texts grow. With 16 clients and prompts of
# 256 tokens, 99% of the gaps between tokens are below 104 ms instead of 115, at the same tokens/s
SHORT_STEP = 0.75


class WaitingSequences:
    """Sequences that wait to run, with one queue per user key."""

    def __init__(self) -> None:
        self._queues: OrderedDict[str, OrderedDict[Sequence, None]] = OrderedDict()  # the next user first
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __contains__(self, sequence: Sequence) -> bool:
        return sequence in self._queues.get(sequence.key, ())

    def add(self, sequence: Sequence, is_next: bool = False) -> None:
        """Queue a sequence after the others of its user, or before them if `is_next`."""
        queue = self._queues.setdefault(sequence.key, OrderedDict())
        queue[sequence] = None
        queue.move_to_end(sequence, last=not is_next)
        self._count += 1

    def remove(self, sequence: Sequence) -> None:
        queue = self._queues[sequence.key]
        del queue[sequence]
        self._count -= 1
        if not queue:
            del self._queues[sequence.key]

    def take_turn(self, sequence: Sequence) -> None:
        """Remove a sequence that starts, and move its user to the end of the queue."""
        self._queues.move_to_end(sequence.key)
        self.remove(sequence)

    def first(self, count: int) -> list[Sequence]:
        """The next `count` sequences, taken from the users in turn."""
        return list(islice(self._in_turns(), count))

    def _in_turns(self) -> Iterator[Sequence]:
        queues = deque(map(iter, self._queues.values()))
        while queues:
            queue = queues.popleft()
            if (sequence := next(queue, None)) is not None:
                yield sequence
                queues.append(queue)


class ReadingPace:
    """The number of prompt tokens that one step reads, from measured passes.

    seconds: the time that a step may take; None: no limit, so that equal prompts are always split alike.
    """

    def __init__(self, seconds: float | None, most_tokens: int):
        self.seconds, self.most_tokens = seconds, most_tokens
        self._per_token: float | None = None
        self._growing = 0.0  # seconds that the last pass with one token of each growing sequence took

    def room(self, num_growing: int, num_reading: int) -> int:
        """The number of prompt tokens to read in this step, including padding."""
        if self.seconds is None:
            return self.most_tokens
        if self._per_token is None:
            return min(LEAST_TOKENS, self.most_tokens)
        left = self.seconds
        if num_growing:
            left *= min(max(SHORT_STEP, num_reading / num_growing), 1)
            left = max(left - self._growing, LEAST_SHARE * self.seconds)
        multiple = round(left / self._per_token / LEAST_TOKENS)
        return min(self.most_tokens, max(1, multiple) * LEAST_TOKENS)

    def note(self, num_tokens: int, started: float) -> None:
        """Record a finished pass over `num_tokens` prompt tokens that began at `started` (a value of `now`)."""
        if num_tokens:
            measured = (now() - started) / num_tokens
            self._per_token = measured if self._per_token is None else (self._per_token + measured) / 2

    def note_growing(self, started: float) -> None:
        """Record a finished pass over the newest token of each growing sequence."""
        self._growing = now() - started


def now() -> float:
    return time.perf_counter()
