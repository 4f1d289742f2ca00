"""Users take turns, the sequences of one user start as they came, and a step reads what its time allows."""

from __future__ import annotations

import pytest

from foretell.generation import admission
from foretell.generation.admission import LEAST_TOKENS, ReadingPace, WaitingSequences
from foretell.generation.sequence import Sequence


def waiting(keys: str) -> tuple[WaitingSequences, list[Sequence]]:
    queue, sequences = WaitingSequences(), [Sequence([1], index, key=key) for index, key in enumerate(keys)]
    for sequence in sequences:
        queue.add(sequence)
    return queue, sequences


def order(queue: WaitingSequences) -> list[int]:
    """The samples in the order in which they start, one at a time."""
    started = []
    while queue:
        started.append(queue.first(1)[0])
        queue.take_turn(started[-1])
    return [sequence.sample for sequence in started]


def test_users_take_turns() -> None:
    queue, _ = waiting("aaabac")
    assert [sequence.sample for sequence in queue.first(4)] == [0, 3, 5, 1]
    assert order(queue) == [0, 3, 5, 1, 2, 4]


def test_a_user_who_comes_later_has_the_next_turn() -> None:
    queue, sequences = waiting("aaaa")
    queue.take_turn(sequences[0])
    queue.add(Sequence([1], 9, key="b"))
    queue.take_turn(sequences[1])
    assert order(queue) == [9, 2, 3]


def test_a_sequence_that_was_paused_is_the_first_of_its_user() -> None:
    queue, sequences = waiting("aab")
    queue.take_turn(sequences[0])
    queue.add(sequences[0], is_next=True)
    assert order(queue) == [2, 0, 1]


def test_a_sequence_that_is_taken_out_leaves_nothing() -> None:
    queue, sequences = waiting("ab")
    assert sequences[0] in queue
    queue.remove(sequences[0])
    assert sequences[0] not in queue
    assert (len(queue), order(queue)) == (1, [1])
    assert queue._queues == {}


# --- tokens that a step reads -----------------------------------------------------------------------------------------


class Clock:
    """A machine that reads a token in `per_token` seconds, after `overhead`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, per_token: float, overhead: float = 0.0):
        self.time, self.per_token, self.overhead = 0.0, per_token, overhead
        monkeypatch.setattr(admission, "now", lambda: self.time)

    def step(self, pace: ReadingPace, growing: float = 0.0, num_reading: int = 16) -> float:
        """One step next to 16 sequences that grow, or none; returns its seconds."""
        started, room = self.time, pace.room(16 if growing else 0, num_reading)
        self.time += self.overhead + room * self.per_token
        pace.note(room, started)
        middle = self.time
        self.time += growing
        pace.note_growing(middle)
        return self.time - started


def test_steps_take_the_given_time_after_the_first_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    for per_token in (1e-5, 1e-4, 1e-3):
        clock, pace = Clock(monkeypatch, per_token, overhead=0.01), ReadingPace(0.1, 100_000)
        assert pace.room(0, 1) == LEAST_TOKENS
        steps = [clock.step(pace) for _ in range(12)]
        assert steps[-1] == pytest.approx(0.1, rel=0.15)


def test_the_other_sequences_have_their_part_of_the_step(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, pace = Clock(monkeypatch, 1e-3), ReadingPace(0.1, 4096)
    assert [clock.step(pace, growing=0.04) for _ in range(8)][-1] == pytest.approx(0.1, rel=0.05)
    assert [clock.step(pace, growing=0.2) for _ in range(8)][-1] == pytest.approx(0.232, rel=0.05)


@pytest.mark.parametrize(("num_reading", "seconds"), [(1, 0.075), (12, 0.075), (14, 0.0875), (16, 0.1), (160, 0.1)])
def test_a_step_is_shorter_where_fewer_are_read_than_grow(
    monkeypatch: pytest.MonkeyPatch, num_reading: int, seconds: float
) -> None:
    clock, pace = Clock(monkeypatch, 1e-4), ReadingPace(0.1, 4096)
    steps = [clock.step(pace, growing=0.04, num_reading=num_reading) for _ in range(8)]
    assert steps[-1] == pytest.approx(seconds, rel=0.05)


def test_a_slow_pass_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, pace = Clock(monkeypatch, 1e-3), ReadingPace(0.1, 4096)
    for _ in range(6):
        clock.step(pace)
    pace.note(100, clock.time - 5.0)  # the weights were packed
    assert pace.room(0, 1) == LEAST_TOKENS
    assert [clock.step(pace) for _ in range(16)][-1] == pytest.approx(0.1, rel=0.1)


def test_without_a_time_the_parts_do_not_depend_on_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, pace = Clock(monkeypatch, 1.0), ReadingPace(None, 512)
    for _ in range(3):
        assert pace.room(1, 1) == pace.room(0, 1) == 512
        clock.step(pace)


def test_a_step_reads_at_least_some_tokens_and_never_more_than_fits_a_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    for per_token, room in ((10.0, LEAST_TOKENS), (1e-9, 64)):
        clock, pace = Clock(monkeypatch, per_token), ReadingPace(0.1, 64)
        for _ in range(3):
            clock.step(pace)
        assert pace.room(0, 1) == room
