"""Looks: the values of the pass that answers a request, as JSON or safetensors.

A request describes a look as data, which is never run as code.
"""

from __future__ import annotations

import base64
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from foretell.errors import CheckpointError
from foretell.generation.sequence import Sequence
from foretell.inference.continuation import Continuation
from foretell.insight.attribution.direct_logit_attribution import direct_logit_attribution
from foretell.insight.attribution.lens_arrays import read_lens
from foretell.insight.attribution.logit_lens import likeliest
from foretell.insight.recorded_values import BudgetError
from foretell.model.decoder import check_logits
from foretell.paths import select
from foretell.serving.changes import Changes
from foretell.serving.errors import ApiError, errors_of, not_finite, refused
from foretell.serving.models import ServedModel
from foretell.serving.recorders import PassRecorder, Recorder, SharedChange, StreamRecorder
from foretell.serving.requests import GenerationRequest, Look
from foretell.serving.tokens import key_of
from foretell.storage.safetensors_files import in_safetensors

MOST_NUMBERS = 500_000  # numbers in a JSON answer
MOST_LENS_POSITIONS = 64
# Points of the stream whose lens is computed between two steps. With GPT-2's shape on one core, 52 take 39 ms, 13 23
LENS_POINTS = {"cpu": 52}
LENS_POINTS_ON_GPU = 832
MOST_WATCHED = 16  # texts with a look per request
CallBetweenSteps = Callable[..., Awaitable[Any]]  # `EngineThread.call` of a key


def check_look(request: GenerationRequest, served: ServedModel, num_choices: int) -> None:
    """Raise ApiError for an impossible look or change."""
    if request.is_watched and num_choices > MOST_WATCHED:
        field = "change" if request.look is None else "look"
        raise refused(field, f"{num_choices} texts in one request; at most {MOST_WATCHED} are watched")
    if request.look is not None and request.look.contributions and request.change:
        raise ApiError(400, "look.contributions explain the unchanged model; ask without change", "look")


def make_recorder(
    served: ServedModel, sequence: Sequence, request: GenerationRequest, budget_bytes: int, changes: Changes
) -> Recorder:
    """The recorder for the requested values. Raises ApiError for an unknown name."""
    look, structure = request.look or Look(), served.structure
    with errors_of("look"):
        asked = select(look.values, structure.names) if look.values else []
    names = list(dict.fromkeys([*asked, *(structure.stream if look.lens else ())]))
    if changes.names.union(names) <= set(structure.stream):
        return StreamRecorder(served, sequence, budget_bytes, names, changes)
    kind = SharedChange if changes.key and not names else PassRecorder
    return kind(served, sequence, budget_bytes, names, changes)


class Watch:
    """The look of one sequence. `begin` and `end` run in the thread of the models."""

    def __init__(
        self,
        served: ServedModel,
        continuation: Continuation,
        request: GenerationRequest,
        budget_bytes: int,
        changes: Changes,
    ):
        self.served, self.continuation, self.request = served, continuation, request
        self.sequence, self.look = continuation.sequence, request.look or Look()
        self.recorder = make_recorder(served, self.sequence, request, budget_bytes, changes)
        self.begin, self.end = self.recorder.begin, self.recorder.end

    def explained(self, error: Exception) -> Exception:
        """The error that ended the sequence; if a change caused non-finite numbers, it is an error of the request."""
        if isinstance(error, CheckpointError) and self.request.change:
            error.__traceback__ = None  # breaks a cycle: its frames refer to the sequence, which refers to the error
            return not_finite()
        return refused("look", error.for_server()) if isinstance(error, BudgetError) else error

    async def result(self, call: CallBetweenSteps) -> dict[str, Any]:
        """The values as JSON. The lens is computed a few positions at a time, between steps of other requests."""
        parts: dict[str, Any] = {"values": await call(self._values)}
        if self.look.lens:
            streams = {name: await call(self._whole, name) for name in self.recorder.structure.stream}
            first, stream = streams[self.recorder.structure.stream[0]]
            positions = self._positions(first, len(stream))[:MOST_LENS_POSITIONS]
            points = LENS_POINTS.get(self.served.model.device.type, LENS_POINTS_ON_GPU)
            size = max(1, points // len(streams))
            groups = [positions[first : first + size] for first in range(0, len(positions), size)]
            parts["lens"] = [row for group in groups for row in await call(self._lens, streams, group)]
        if self.look.contributions:
            parts["contributions"] = await call(self._contributions)
        return parts

    def _values(self) -> dict[str, Any] | str:
        """The recorded values by name, or for safetensors the file's bytes in base64."""
        names = select(self.look.values, self.recorder.structure.names) if self.look.values else []
        calls = {name: self._kept(name) for name in names}
        if self.look.format == "safetensors":
            tensors = {f"{name}@{start}": value for name, parts in calls.items() for start, value in parts}
            return base64.b64encode(in_safetensors(tensors)).decode()
        count = sum(value.numel() for parts in calls.values() for _, value in parts)
        if count > MOST_NUMBERS:
            advice = "choose fewer values or positions, or the format safetensors"
            raise ApiError(400, f"the look has {count:,} numbers, and JSON holds {MOST_NUMBERS:,}; {advice}", "look")
        return {name: [as_json(start, value) for start, value in parts] for name, parts in calls.items()}

    def _kept(self, name: str) -> list[tuple[int, Tensor]]:
        """(position of the first token, value without the row axis) for a name, at the requested positions."""
        dims = self.recorder.structure[name].dims[1:]
        if "T" not in dims:
            return [(0, self._calls(name)[-1][1])]
        axis, parts = dims.index("T"), []
        merged = [self._whole(name)] if "S" not in dims else self._calls(name)
        for start, value in merged:
            positions = self._positions(start, value.shape[axis])
            for first, count in runs_of(positions):
                parts.append((first, value.narrow(axis, first - start, count)))
        return parts

    def _calls(self, name: str) -> list[tuple[int, Tensor]]:
        """The values of all passes. Raises ApiError if there was none, because the last token of a text is not read."""
        if not (calls := self.recorder.calls(name)):
            raise refused("look", f"{name} was not computed: the last token is not read; raise max_tokens")
        return calls

    def _whole(self, name: str) -> tuple[int, Tensor]:
        """A value without an axis of keys, concatenated over all passes."""
        calls = self._calls(name)
        axis = self.recorder.structure[name].dims[1:].index("T")
        return calls[0][0], torch.cat([value for _, value in calls], dim=axis)

    def _positions(self, start: int, count: int) -> list[int]:
        """The requested positions among `count` positions from `start`."""
        first_new = len(self.sequence.prompt)
        spans = {"prompt": range(first_new), "new": range(first_new, 2**31), "all": range(2**31)}
        chosen = range(start, start + count) if self.look.positions is None else sorted(set(self.look.positions))
        return [each for each in chosen if start <= each < start + count and each in spans[self.look.tokens]]

    @torch.inference_mode()
    def _lens(self, streams: dict[str, tuple[int, Tensor]], positions: list[int]) -> list[dict[str, Any]]:
        """The tokens predicted from the stream at each position, after the embedding and every block."""
        model = self.served.model
        points = [values[position - start] for position in positions for start, values in streams.values()]
        lens = read_lens(self.recorder.decoder, torch.stack(points), model.tokenizer.vocab_size, self.look.lens)
        check_logits(torch.from_numpy(lens.logits))
        readings = iter(zip(likeliest(model, lens), lens.entropies.tolist(), strict=True))

        def reading(name: str) -> dict[str, Any]:
            tokens, entropy = next(readings)
            keys = [(token, key_of(token.id, model.tokenizer)) for token in tokens]
            top = [{"id": token.id, "token": key, "logprob": token.logprob} for token, key in keys]
            return {"name": name, "top": top, "entropy": entropy}

        return [{"position": position, "readings": list(map(reading, streams))} for position in positions]

    def _contributions(self) -> dict[str, Any]:
        """The contributions to the logit of the first new token, from another pass over the prompt."""
        generated = self.sequence.generated
        model, token = self.served.model, generated[0] if generated else None
        direct = direct_logit_attribution(model, self.sequence.prompt, token=token)
        return replace(direct, text=key_of(direct.token, model.tokenizer)).to_json()


def as_json(position: int, value: Tensor) -> dict[str, Any]:
    """A tensor for JSON, as an array whose numbers are written outside the thread of the models."""
    return {"position": position, "shape": list(value.shape), "values": value.float().cpu().numpy()}


def runs_of(positions: list[int]) -> list[tuple[int, int]]:
    """(first, count) of the runs of consecutive positions."""
    runs: list[tuple[int, int]] = []
    for position in positions:
        if runs and sum(runs[-1]) == position:
            runs[-1] = runs[-1][0], runs[-1][1] + 1
        else:
            runs.append((position, 1))
    return runs
