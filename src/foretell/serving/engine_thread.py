"""`EngineThread`: the only thread that calls models. Calls run between steps, and results are sent once per step."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from queue import SimpleQueue
from typing import TypeVar, TypeVarTuple

from foretell.generation.scheduler import Scheduler
from foretell.generation.sequence import Sequence
from foretell.serving.choice import Answer, Choice
from foretell.serving.errors import describe

Result = TypeVar("Result")
Arguments = TypeVarTuple("Arguments")

SLICE_SECONDS = 0.02  # of a call that is an iterator; then it is the turn of another key, or of a step
MOST_SECONDS = 0.1  # of calls between two steps
# Seconds of calls per second of steps, while both wait: texts that grow keep more than half of their speed
CALLS_PER_STEPS = 0.5

logger = logging.getLogger(__name__)


class Turns:
    """Calls that wait, with one queue per client's key. Clients take turns."""

    def __init__(self) -> None:
        self._queues: OrderedDict[str, deque[Callable[[], bool]]] = OrderedDict()  # the next client first

    def __bool__(self) -> bool:
        return bool(self._queues)

    def add(self, key: str, call: Callable[[], bool]) -> None:
        self._queues.setdefault(key, deque()).append(call)

    def run_next(self) -> None:
        """Run the first call of the next client. One that returns False stays the first of its client.

        So each client has at most one computation in progress, which may hold a large cache.
        """
        key, calls = next(iter(self._queues.items()))
        if calls[0]():  # which may add another call
            calls.popleft()
        self._queues.move_to_end(key)
        if not calls:
            del self._queues[key]


class EngineThread:
    """Steps the schedulers of all models in turn while there is work, and runs calls in between.

    The event loop calls `writing`, `call` and `each`, which do not block it. Calls of several keys take turns.
    """

    def __init__(self, schedulers: Iterable[Scheduler]):
        self.schedulers = list(schedulers)
        self._commands: SimpleQueue[Callable[[], object]] = SimpleQueue()  # short; each runs before the next step
        self._turns = Turns()
        self._seconds_for_calls = 0.0  # negative after a call that took longer
        self._owners: dict[Sequence, tuple[Answer, Choice]] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_stopping = False
        self.forget_counts()
        self._thread = threading.Thread(target=self._run, name="models", daemon=True)

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._thread.start()

    def stop(self) -> None:
        """End the thread after its current step."""
        self._commands.put(self._end)
        self._thread.join()

    def forget_counts(self) -> None:
        """Reset the counters, between two steps."""
        self.num_steps = self.num_tokens = self.num_prompt_tokens = 0

    # ------------------------------------------------------------------ for the event loop

    @contextmanager
    def writing(self, answer: Answer) -> Iterator[None]:
        """Add the sequences of an answer; on exit, cancel those that are still running, and free their cache blocks.

        Those that are changed or looked at wait for their client's turn, because they may begin with other passes.
        """
        has_left = False

        def add() -> bool:
            if not has_left:
                self._add(answer)
            return True

        self._commands.put(partial(self._turns.add, answer.key, add) if answer.is_watched else add)
        try:
            yield
        finally:
            has_left = True
            self._commands.put(lambda: self._cancel(answer))

    def fail_all(self, error: Exception) -> None:
        """End all answers with an error."""

        def command() -> None:
            changed: dict[Answer, None] = {}
            self._fail(list(self._owners.values()), error, changed)
            self._tell(changed)

        self._commands.put(command)

    async def call(self, key: str, function: Callable[[*Arguments], Result], *arguments: *Arguments) -> Result:
        """Run a short function in a turn of this key, unless this call is cancelled first. Raises its errors."""
        (result,) = await self._in_turns(key, lambda: (function(*arguments),))
        return result

    async def each(self, key: str, items: Iterable[Result | None]) -> AsyncIterator[Result]:
        """The items of an iterator, which runs in slices of SLICE_SECONDS in turns of this key. Raises its errors.

        None is not an item: it marks a moment at which a long computation can be interrupted.
        """
        pending, is_done = iter(items), False
        while not is_done:
            computed, is_done = await self._in_turns(key, in_slices(pending))
            for item in computed:
                yield item

    async def _in_turns(self, key: str, function: Callable[[], Result | None]) -> Result:
        """Run a function in turns of this key until it returns something."""
        future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()

        def call() -> bool:
            if future.cancelled():
                return True
            try:
                result = function()
            except Exception as error:
                self._deliver(lambda error=error: future.cancelled() or future.set_exception(error))
                return True
            if result is not None:
                self._deliver(lambda: future.cancelled() or future.set_result(result))
            return result is not None

        self._commands.put(lambda: self._turns.add(key, call))
        return await future

    # ------------------------------------------------------------------ in the thread

    @property
    def _is_busy(self) -> bool:
        return any(scheduler.is_busy for scheduler in self.schedulers)

    def _run(self) -> None:
        while not self._is_stopping:
            self._take_commands()
            started = time.perf_counter()
            if self._turns and not (self._is_busy and self._seconds_for_calls < 0):
                self._turns.run_next()
                if self._is_busy:
                    self._seconds_for_calls -= time.perf_counter() - started
                continue
            changed: dict[Answer, None] = {}
            for scheduler in self.schedulers:
                if scheduler.is_busy:
                    self._step(scheduler, changed)
            self._tell(changed)
            earned = CALLS_PER_STEPS * (time.perf_counter() - started)
            self._seconds_for_calls = min(self._seconds_for_calls + earned, MOST_SECONDS - SLICE_SECONDS)

    def _take_commands(self) -> None:
        """Run the queued commands; if there is no other work, wait for a command."""
        is_idle = not (self._is_busy or self._turns)
        while is_idle or not self._commands.empty():
            self._commands.get()()
            is_idle = False

    def _step(self, scheduler: Scheduler, changed: dict[Answer, None]) -> None:
        try:
            events = scheduler.step()
        except Exception as error:  # an error of the model: no sequence of this scheduler can continue
            logger.error("a step failed: %s", describe(error))
            self._fail([each for each in self._owners.values() if each[0].scheduler is scheduler], error, changed)
            return
        self.num_steps += 1
        self.num_tokens += len(events)
        for event in events:
            if event.sequence in self._owners:
                answer, choice = self._owners[event.sequence]
                self._note(choice, choice.take, event)
                changed[answer] = None
        for sequence in scheduler.ended:
            if sequence in self._owners:
                answer, choice = self._owners.pop(sequence)
                self._note(choice, choice.end)
                changed[answer] = None

    def _note(self, choice: Choice, note: Callable[[*Arguments], None], *arguments: *Arguments) -> None:
        """Call a method of a choice. If it fails, its sequence ends and the others continue."""
        try:
            note(*arguments)
        except Exception as error:
            choice.error = choice.continuation.sequence.error = error
            choice.continuation.sequence.finish_reason = "error"

    def _fail(self, owners: list[tuple[Answer, Choice]], error: Exception, changed: dict[Answer, None]) -> None:
        for answer, choice in owners:
            self._remove(answer, choice)
            choice.error = error
            changed[answer] = None

    def _add(self, answer: Answer) -> None:
        self.num_prompt_tokens += sum(map(len, answer.prompts))
        try:
            for choice in answer.choices:
                choice.begin()
                answer.scheduler.add(choice.continuation.sequence)
                self._owners[choice.continuation.sequence] = answer, choice
        except Exception as error:
            self._cancel(answer)
            for choice in answer.choices:
                choice.error = error
            self._tell([answer])
            return
        if answer.is_only_read:
            self._turns.add(answer.key, partial(self._read, answer))

    def _read(self, answer: Answer) -> bool:
        """Read a part of the texts of this answer and of others; True if the answer has ended."""
        if not answer.is_read:
            changed: dict[Answer, None] = {}
            self._step(answer.scheduler, changed)
            self._tell(changed)
        return answer.is_read

    def _cancel(self, answer: Answer) -> None:
        for choice in answer.choices:
            self._remove(answer, choice)

    def _remove(self, answer: Answer, choice: Choice) -> None:
        answer.scheduler.cancel(choice.continuation.sequence)
        choice.leave()
        self._owners.pop(choice.continuation.sequence, None)

    def _end(self) -> None:
        self._is_stopping = True

    def _tell(self, answers: Iterable[Answer]) -> None:
        """Wake the requests whose answers have grown."""
        if changed := list(answers):
            self._deliver(lambda: [answer.changed.set() for answer in changed])

    def _deliver(self, function: Callable[[], object]) -> None:
        """Run a function in the event loop, unless the loop is closed."""
        assert self._loop is not None, "start() sets the event loop"
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(function)


def in_slices(pending: Iterator[Result | None]) -> Callable[[], tuple[list[Result], bool] | None]:
    """A function that runs an iterator for SLICE_SECONDS; returns its items, and True if there are no more.

    It returns None if the last item is incomplete, and continues with it in the next call.
    """
    computed: list[Result] = []

    def run() -> tuple[list[Result], bool] | None:
        end = time.perf_counter() + SLICE_SECONDS
        for item in pending:
            if item is not None:
                computed.append(item)
            if time.perf_counter() >= end:
                return None if item is None else (computed, False)
        return computed, True

    return run
