"""POST /explore/patch: the effects on a token of patching the stream after a layer, one position at a time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

import torch
from annotated_types import Ge, Le
from torch import nn

from foretell.errors import CheckpointError
from foretell.insight.trace import Trace
from foretell.model.cache import KeptKeys, KeptKVView
from foretell.serving.changes import Changes
from foretell.serving.errors import errors_of, not_finite, refused
from foretell.serving.json_bodies import to_json
from foretell.serving.models import ExploredModel
from foretell.serving.preparation import check_ids, pass_ids
from foretell.serving.requests import ChangeRequest, Id, Indices, PassRequest, Text
from foretell.serving.server import PassEndpoint

TOKENS_AT_ONCE = 320  # tokens per batch: a third of a second for GPT-2's shape on two cores, while other requests wait
EMBEDDING = -1  # the index of the embedding, before the first layer


class PatchRequest(PassRequest):
    """A row of the map. token: the token whose logit is shown; by default the most probable one without patches."""

    second: Text
    layer: Annotated[int, Ge(EMBEDDING), Le(2**16)]
    positions: Indices
    token: Id | None = None


class PatchMap(PassEndpoint[PatchRequest]):
    """The row of one layer. If the client has left, nothing is computed."""

    request_type = PatchRequest

    async def respond(self, served: ExploredModel, request: PatchRequest, key: str) -> bytes:
        row = await self.server.in_worker(PatchRow, served, request)
        for positions in row.batches():
            await self.server.engine.call(key, row.read, positions)
        return to_json(row.to_json())


class PatchRow:
    """The effects of one layer's patches. Each batch begins with the unpatched pass: rows of a batch are computed
    in the same way, so a patch without an effect has a difference of exactly 0."""

    def __init__(self, served: ExploredModel, request: PatchRequest):
        self.served, self.request, self.ids = served, request, pass_ids(served, request)
        self.token, self.effects, self.before = request.token, list[dict[str, Any]](), dict[str, float]()
        self.keys: KeptKeys = {}  # from the unpatched pass
        with errors_of("second"):
            shared = min(len(self.ids), len(served.model.encode_fitting(request.second)))
        stream = served.structure.stream
        if request.layer + 1 >= len(stream):
            raise refused("layer", f"{served.name} has {len(stream) - 1} layers, counted from 0")
        self.name = stream[request.layer + 1]
        if max(request.positions) >= shared:
            which = f"both texts, which share {shared} positions, counted from 0"
            raise refused("positions", f"{max(request.positions)} is not in {which}")
        if request.token is not None:
            check_ids(served, [request.token], "token")
        patch = ChangeRequest(value=self.name, patch=request.second)
        self.changes = Changes(served, request.change, patch)

    def batches(self) -> Iterator[list[int]]:
        """Batches of positions: a pass reads the text from the first position of its batch."""
        left = self.request.positions
        while left:
            size = max(1, TOKENS_AT_ONCE // (len(self.ids) - min(left)) - 1)
            yield left[:size]
            left = left[size:]

    def read(self, positions: list[int]) -> None:
        """Run a batch: unpatched, and with a patch at each position; in the thread of the models."""
        model, first = self.served.model, min(positions)
        if first and not self.keys:
            _, self.keys = self._pass(0, [])
        logits, _ = self._pass(first, positions)
        try:
            logprobs = model.log_probabilities(logits)
        except CheckpointError:
            raise not_finite() from None
        if self.token is None:
            self.token = int(logprobs[0].argmax())
        pairs = zip(logits[:, self.token].tolist(), logprobs[:, self.token].tolist(), strict=True)
        self.before, *after = ({"logit": logit, "logprob": logprob} for logit, logprob in pairs)
        for position, effect in zip(positions, after, strict=True):
            differences = {f"{name}_difference": value - self.before[name] for name, value in effect.items()}
            self.effects.append({"position": position, **effect, **differences})

    @torch.inference_mode()
    def _pass(self, first: int, positions: list[int]) -> tuple[torch.Tensor, KeptKeys]:
        """The logits (1 + N, V) after the text (unpatched, and with a patch at each of N positions), and the keys.

        Only the tokens from `first` on are read, because earlier tokens do not see the patches.
        """
        decoder, other = self.served.model.decoder, self.changes.patch(self.request.second, self.name)  # (1, T, D)

        def patched(_: nn.Module, __: tuple[Any, ...], stream: torch.Tensor) -> torch.Tensor:
            rows = stream.repeat(1 + len(positions), 1, 1)  # the layers before have processed one row
            for row, position in enumerate(positions, start=1):
                rows[row, position - first] = other[0, position]
            return rows

        layer = decoder.get_submodule(self.served.structure[self.name].module)
        replace = self.changes.operations(lambda: first)
        ids = torch.tensor([self.ids[first:]], device=decoder.device)
        view = KeptKVView(ids, self.keys, first)
        trace = Trace(decoder, replace=replace, structure=self.served.structure)
        with errors_of("change"), trace, layer.register_forward_hook(patched):
            hidden = decoder.hidden(ids, decoder.join(view, [0]))  # (1 + N, T, D)
            return decoder.head(hidden[:, -1:])[:, 0], view.kept

    def to_json(self) -> dict[str, Any]:
        assert self.token is not None, "at least one position is read"
        token = {"id": self.token, "text": self.served.model.tokenizer.text_of(self.token)}
        row = {"layer": self.request.layer, "name": self.name, "token": token}
        return {**row, **self.before, "positions": self.effects}
