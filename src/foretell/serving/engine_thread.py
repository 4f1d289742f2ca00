"""`EngineThread`: the only thread that calls models. Commands run between steps, and results are sent once per step."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from queue import SimpleQueue
from typing import TypeVar, TypeVarTuple

from foretell.generation.scheduler import Scheduler
from foretell.generation.sequence import Sequence
from foretell.serving.choice import Answer, Choice
from foretell.serving.errors import describe

Result = TypeVar("Result")
Arguments = TypeVarTuple("Arguments")

logger = logging.getLogger(__name__)


class EngineThread:
    """Steps the schedulers of all models in turn while there is work.

    The event loop calls `writing` and `call`, which do not block it.
    """

    def __init__(self, schedulers: Iterable[Scheduler]):
        self.schedulers = list(schedulers)
        self._commands: SimpleQueue[Callable[[], None]] = SimpleQueue()
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
        """Add the sequences of an answer; on exit, cancel those that are still running, and free their cache blocks."""
        self._commands.put(lambda: self._add(answer))
        try:
            yield
        finally:
            self._commands.put(lambda: self._cancel(answer))

    def fail_all(self, error: Exception) -> None:
        """End all answers with an error."""

        def command() -> None:
            changed: dict[Answer, None] = {}
            self._fail(self.schedulers, error, changed)
            self._tell(changed)

        self._commands.put(command)

    async def call(self, function: Callable[[*Arguments], Result], *arguments: *Arguments) -> Result:
        """Run a short function between two steps, unless this call is cancelled first. Raises its errors."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Result] = loop.create_future()

        def command() -> None:
            if future.cancelled():
                return
            try:
                result = function(*arguments)
            except Exception as error:
                self._deliver(lambda error=error: future.cancelled() or future.set_exception(error))
            else:
                self._deliver(lambda: future.cancelled() or future.set_result(result))

        self._commands.put(command)
        return await future

    # ------------------------------------------------------------------ in the thread

    def _run(self) -> None:
        while not self._is_stopping:
            self._take_commands()
            changed: dict[Answer, None] = {}
            for scheduler in self.schedulers:
                if scheduler.is_busy:
                    self._step(scheduler, changed)
            self._tell(changed)

    def _take_commands(self) -> None:
        """Run the queued commands; if there is no other work, wait for a command."""
        is_idle = not any(scheduler.is_busy for scheduler in self.schedulers)
        while is_idle or not self._commands.empty():
            self._commands.get()()
            is_idle = False

    def _step(self, scheduler: Scheduler, changed: dict[Answer, None]) -> None:
        try:
            events = scheduler.step()
        except Exception as error:  # an error of the model: no sequence of this scheduler can continue
            logger.error("a step failed: %s", describe(error))
            self._fail([scheduler], error, changed)
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

    def _fail(self, schedulers: list[Scheduler], error: Exception, changed: dict[Answer, None]) -> None:
        for answer, choice in list(self._owners.values()):
            if answer.model.scheduler in schedulers:
                self._remove(answer, choice)
                choice.error = error
                changed[answer] = None

    def _add(self, answer: Answer) -> None:
        self.num_prompt_tokens += sum(map(len, answer.prompts))
        try:
            for choice in answer.choices:
                choice.begin()
                answer.model.scheduler.add(choice.continuation.sequence)
                self._owners[choice.continuation.sequence] = answer, choice
        except Exception as error:
            self._cancel(answer)
            for choice in answer.choices:
                choice.error = error
            self._tell([answer])

    def _cancel(self, answer: Answer) -> None:
        for choice in answer.choices:
            self._remove(answer, choice)

    def _remove(self, answer: Answer, choice: Choice) -> None:
        answer.model.scheduler.cancel(choice.continuation.sequence)
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
