"""Recording and changing of values of a sequence, in the common pass of all sequences if possible, else separately."""

from __future__ import annotations

import uuid
from abc import ABC, abstractmethod
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from foretell.generation.recorded_step import ReadingHook
from foretell.generation.sequence import Sequence
from foretell.insight.recorded_values import BudgetError
from foretell.insight.trace import Trace
from foretell.model.decoder import HEAD, Decoder
from foretell.serving.changes import Changes, Operation
from foretell.serving.errors import errors_of
from foretell.serving.models import ChangedForm, ServedModel
from foretell.typesetting.numbers import format_bytes

Calls = list[tuple[int, Tensor]]  # the position of the first token of a pass, and a value without its row axis


class Recorder(ABC):
    """Records the values `names` of one sequence. `begin` and `end` run in the thread of the models, between steps."""

    def __init__(self, served: ServedModel, sequence: Sequence, budget_bytes: int, names: list[str], changes: Changes):
        self.served, self.sequence, self.budget_bytes = served, sequence, budget_bytes
        self.names, self.changes = names, changes
        self.decoder: Decoder = served.model.decoder
        self.structure = served.structure
        self._open = ExitStack()

    @abstractmethod
    def begin(self) -> None:
        """Add the hooks. Raises UsageError or ApiError for names and shapes that do not fit."""

    @abstractmethod
    def all_calls(self, name: str) -> Calls:
        """The values of all passes. Raises BudgetError if the budget was exceeded."""

    def end(self) -> None:
        """Remove the hooks; the recorded values stay."""
        self._open.close()

    def calls(self, name: str) -> Calls:
        """The values of the passes, without repetitions after a pause of the sequence."""
        last: Calls = []
        for start, value in self.all_calls(name):
            while last and last[-1][0] >= start:
                last.pop()
            last.append((start, value))
        return last


class StreamRecorder(Recorder):
    """Records and changes the residual stream in the common pass, in this sequence's row.

    The stream is between blocks, so fused blocks stay fused, and the bits of other sequences do not change.
    """

    def begin(self) -> None:
        self.bytes = 0
        self._calls: dict[str, Calls] = {name: [] for name in self.names}
        operations = self.changes.operations(lambda: self.sequence.num_cached)
        if operations or self._calls:
            self.sequence.cache_salt = uuid.uuid4().hex  # so that it reads its whole prompt and shares no keys
        one_token = torch.zeros(1, 1, self.decoder.config.width, dtype=self.decoder.dtype, device=self.decoder.device)
        for operation in operations.values():
            operation(one_token)  # check it here, because an error in a pass would end all sequences
        for name in {**operations, **self._calls}:
            hook = partial(self._change, name, operations[name]) if name in operations else StreamHook(self, name)
            module = self.decoder.get_submodule(self.structure[name].module)
            self._open.callback(module.register_forward_hook(hook).remove)

    def row_of_pass(self) -> tuple[int, int] | None:
        """This sequence's row and number of tokens in the pass; None if the pass does not include it."""
        rows = enumerate(self.served.scheduler.engine.reading)
        return next(((row, count) for row, (sequence, count) in rows if sequence is self.sequence), None)

    def record(self, name: str, own: Tensor) -> None:
        """Store a value (t, D) of this sequence, if requested."""
        if name in self._calls and self.bytes <= self.budget_bytes:  # an error here would end all sequences
            self.bytes += own.nbytes
            self._calls[name].append((self.sequence.num_cached, own.clone()))

    def _change(self, name: str, operation: Operation, _: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> Tensor:
        if (place := self.row_of_pass()) is None:
            return output
        row, count = place
        changed = output.clone()
        changed[row : row + 1, :count] = operation(output[row : row + 1, :count])
        self.record(name, changed[row, :count])
        return changed

    def all_calls(self, name: str) -> Calls:
        if self.bytes > self.budget_bytes:
            raise BudgetError(f"the values of this look may take {format_bytes(self.budget_bytes)}", "Ask for fewer")
        return self._calls[name]


class StreamHook(ReadingHook):
    """Passes the stream of a sequence to its recorder, also in captured steps."""

    def __init__(self, recorder: StreamRecorder, name: str):
        self.recorder, self.name = recorder, name

    def __call__(self, module: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> None:
        if place := self.recorder.row_of_pass():
            row, count = place
            self.recorder.record(self.name, output[row, :count])


class SharedChange(Recorder):
    """Only changes values; sequences with equal, position-independent changes share a form and its passes."""

    def begin(self) -> None:
        key, forms = self.changes.key, self.served.changed_forms
        if key not in forms:
            forms[key] = self._make_form()
        forms[key].users += 1
        self._open.callback(self._leave, key)
        self.decoder = self.sequence.decoder = forms[key].decoder

    def _make_form(self) -> ChangedForm:
        engine = self.served.scheduler.engine
        decoder = engine.watched_copy()
        with ExitStack() as hooks, errors_of("change"):
            hooks.callback(engine.forget, decoder)
            hooks.enter_context(Trace(decoder, replace=self.changes.operations()))
            return ChangedForm(decoder, hooks.pop_all())

    def _leave(self, key: str) -> None:
        forms = self.served.changed_forms
        forms[key].users -= 1
        if forms[key].users == 0:
            forms.pop(key).hooks.close()

    def all_calls(self, name: str) -> Calls:
        raise AssertionError(f"{name} was not requested")


class PassRecorder(Recorder):
    """Records and changes any values in a separate pass of this sequence.

    It uses a copy of the prepared decoder that shares its weights and has separate hooks.
    """

    def begin(self) -> None:
        self._starts: list[int] = []  # the position of the first token of each pass
        self._ends: list[int] = []  # the position after the last token of each pass
        self._head_passes: list[int] = []  # the pass of each call of the head
        self.decoder = self.served.scheduler.engine.watched_copy()
        self.sequence.decoder = self.decoder
        with errors_of("change"):
            starts = self._starts  # not self, because a cycle with the trace would keep its values for long
            replace = self.changes.operations(lambda: starts[-1])
            self.trace = Trace(self.decoder, self.names, replace=replace, budget_bytes=self.budget_bytes)
            self._open.enter_context(self.trace)
        for module, note in ((self.decoder.embed, self._note_pass), (self.decoder.head, self._note_head)):
            self._open.callback(module.register_forward_pre_hook(note).remove)

    def end(self) -> None:
        super().end()
        if self.decoder is not self.served.model.decoder:
            self.served.scheduler.engine.forget(self.decoder)  # also for a sequence that was never added

    def _note_pass(self, _: object, inputs: tuple[Any, ...]) -> None:
        self._starts.append(self.sequence.num_cached)
        self._ends.append(self._starts[-1] + inputs[0].shape[1])

    def _note_head(self, *_: object) -> None:
        self._head_passes.append(len(self._starts) - 1)

    def all_calls(self, name: str) -> Calls:
        if name == HEAD:
            return self._logits()
        return [(start, value[0]) for start, value in zip(self._starts, self.trace.calls(name), strict=True)]

    def _logits(self) -> list[tuple[int, Tensor]]:
        """(first position, logits (n, V)) of the passes: the head reads the last n tokens of each, in chunks."""
        chunks: dict[int, list[Tensor]] = {}
        for index, rows in zip(self._head_passes, self.trace.calls(HEAD), strict=True):
            chunks.setdefault(index, []).append(rows)
        passes = [(self._ends[index], torch.cat(rows)) for index, rows in chunks.items()]
        return [(end - len(logits), logits) for end, logits in passes if len(logits)]
