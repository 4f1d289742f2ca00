"""`Answer` and its choices, written by the thread of the models and read by the event loop."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from dataclasses import dataclass, field
from functools import cached_property

from foretell.generation.scheduler import Event, Scheduler
from foretell.generation.sequence import rules_of
from foretell.inference.continuation import Continuation
from foretell.serving.look import Watch
from foretell.serving.models import ServedModel
from foretell.serving.tokens import ShownToken

ENDINGS = {"end": "stop", "stop": "stop", "length": "length", "context": "length"}  # OpenAI's names


@dataclass(eq=False)
class Choice:
    """One continuation of a prompt.

    text, tokens: the final part so far. A token is final when its text is final: a token that may belong to a stop
    string waits, and one inside a stop string is dropped. So the joined pieces of a stream equal the plain answer. Only
    the thread of the models appends to them; the event loop reads from its last position on.
    """

    index: int
    continuation: Continuation
    watch: Watch | None = None
    text: str = ""
    tokens: list[ShownToken] = field(default_factory=list)
    finish_reason: str | None = None
    error: Exception | None = None
    _waiting: deque[ShownToken] = field(default_factory=deque)
    _num_taken: int = 0

    @property
    def has_ended(self) -> bool:
        return self.finish_reason is not None or self.error is not None

    @cached_property
    def prompt_text(self) -> str:
        stream = self.continuation.tokenizer.stream()
        return "".join([*map(stream.push, self.continuation.sequence.prompt), stream.finish()])

    def take(self, event: Event) -> None:
        """Record a new token; runs in the thread of the models."""
        starts = self.continuation.starts
        if self._num_taken < len(starts):  # the end token has no text and is not shown
            self._waiting.append(ShownToken(event.token, starts[self._num_taken], event.logprob))
        self._num_taken += 1
        if self.continuation.sequence.finish_reason is None:
            self._release(self.continuation.new_text(), is_end=False)

    def begin(self) -> None:
        """Prepare any requested look; runs in the thread of the models."""
        if self.watch is not None:
            self.watch.begin()

    def leave(self) -> None:
        """Undo `begin`; runs in the thread of the models."""
        self.continuation.sequence.stop = None  # breaks a reference cycle, which would keep both for long
        if self.watch is not None:
            self.watch.end()

    def end(self) -> None:
        """Record the end of the sequence; runs in the thread of the models."""
        self.leave()
        sequence = self.continuation.sequence
        self._release(self.continuation.new_text(), is_end=True)
        if sequence.finish_reason in ENDINGS:
            self.finish_reason = ENDINGS[sequence.finish_reason]
        else:
            error = sequence.error or RuntimeError("the request was cancelled")
            self.error = self.watch.explained(error) if self.watch is not None else error

    def _release(self, new_text: str, is_end: bool) -> None:
        text = self.text + new_text
        is_whole = is_end and not self.continuation.stops.stopped
        while self._waiting and (self._waiting[0].start < len(text) or is_whole):
            self.tokens.append(self._waiting.popleft())
        self.text = text


class Answer:
    """The choices of a request. `changed` is set when a choice has grown."""

    def __init__(self, model: ServedModel, choices: list[Choice], prompts: list[list[int]], seed: int):
        self.model, self.choices, self.prompts, self.seed = model, choices, prompts, seed
        self.created = int(time.time())
        self.changed = asyncio.Event()

    @property
    def has_ended(self) -> bool:
        return all(choice.has_ended for choice in self.choices)

    @property
    def key(self) -> str:
        """The client's key."""
        return self.choices[0].continuation.sequence.key

    @cached_property
    def is_only_read(self) -> bool:
        """True if no text grows token by token: at most one token follows, from the pass that ends the prompt."""
        return all(rules_of(choice.continuation.sequence).max_tokens in (0, 1) for choice in self.choices)

    @property
    def is_read(self) -> bool:
        return all(choice.continuation.sequence.finish_reason is not None for choice in self.choices)

    @property
    def scheduler(self) -> Scheduler:
        return self.model.reader if self.is_only_read else self.model.scheduler

    @property
    def is_watched(self) -> bool:
        return any(choice.watch is not None for choice in self.choices)

    @property
    def usage(self) -> dict[str, int]:
        """The numbers of tokens in the prompts and in all choices, including end tokens."""
        prompt = sum(map(len, self.prompts))
        completion = sum(len(choice.continuation.sequence.generated) for choice in self.choices)
        return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}

    async def wait(self) -> None:
        """Wait until a choice has grown since the last call."""
        await self.changed.wait()
        self.changed.clear()

    async def ended(self) -> None:
        """Wait until all choices have ended. Raises the error of the first failed choice."""
        while not self.has_ended:
            await self.wait()
        self.check()

    def check(self) -> None:
        """Raise the error of the first failed choice."""
        if error := next((choice.error for choice in self.choices if choice.error is not None), None):
            raise error
