"""POST /explore/patch: the effects on a token of patching the stream after a layer, one position at a time."""

from __future__ import annotations

from typing import Annotated

from annotated_types import Ge, Le

from foretell.errors import CheckpointError
from foretell.insight.attribution.patch_map import Effect, Patch, Patches
from foretell.serving.changes import Changes
from foretell.serving.errors import errors_of, not_finite, refused
from foretell.serving.json_bodies import to_json
from foretell.serving.models import ExploredModel
from foretell.serving.preparation import check_ids, pass_ids
from foretell.serving.requests import ChangeRequest, Id, Indices, PassRequest, Text
from foretell.serving.server import PassEndpoint

TOKENS_AT_ONCE = 320  # tokens per pass: a third of a second for GPT-2's shape on two cores, while other requests wait
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
        name, passes, changes = await self.server.in_worker(prepare, served, request)

        def read(patches: list[Patch]) -> list[Effect]:
            others = {name: changes.patch(request.second, name)[0]}
            try:
                with errors_of("change"):
                    return passes.read(patches, others, lambda first: changes.operations(lambda: first))
            except CheckpointError:
                raise not_finite() from None

        effects: list[Effect] = []
        for patches in passes.batches([(name, position) for position in request.positions], TOKENS_AT_ONCE):
            effects += await self.server.engine.call(key, read, patches)
        assert passes.token is not None, "at least one position is read"
        token = {"id": passes.token, "text": served.model.tokenizer.text_of(passes.token)}
        cells = [{"position": at, **effect} for at, effect in zip(request.positions, effects, strict=True)]
        return to_json({"layer": request.layer, "name": name, "token": token, **passes.before, "positions": cells})


def prepare(served: ExploredModel, request: PatchRequest) -> tuple[str, Patches, Changes]:
    """The patched point, its passes, and further changes of a request, of which nothing is computed yet."""
    ids, stream = pass_ids(served, request), served.structure.stream
    with errors_of("second"):
        shared = min(len(ids), len(served.model.encode_fitting(request.second)))
    if request.layer + 1 >= len(stream):
        raise refused("layer", f"{served.name} has {len(stream) - 1} layers, counted from 0")
    name = stream[request.layer + 1]
    if max(request.positions) >= shared:
        which = f"both texts, which share {shared} positions, counted from 0"
        raise refused("positions", f"{max(request.positions)} is not in {which}")
    if request.token is not None:
        check_ids(served, [request.token], "token")
    changes = Changes(served, request.change, ChangeRequest(value=name, patch=request.second))
    return name, Patches(served.model, ids, served.structure, request.token), changes
