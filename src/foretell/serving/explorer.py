"""The sections of a pass for the live page, and the page of a pass as a file."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from functools import partial
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import torch
from annotated_types import Ge, MaxLen
from torch import Tensor

from foretell.errors import OutputError
from foretell.generation.block_table import common_length
from foretell.insight.page.family import PositionFamily
from foretell.insight.page.outline import pass_outline
from foretell.insight.page.packing import PackedSection, pack_exact
from foretell.insight.page.page_pass import PagePass, array
from foretell.insight.page.sections import find_sections, needed_values
from foretell.insight.page.write_page import make_page, values_of_file
from foretell.model.cache import KeptKeys, KeptKVView, KVView
from foretell.serving.changes import Changes
from foretell.serving.connection import Stream
from foretell.serving.errors import ApiError, errors_of, not_finite, refused
from foretell.serving.json_bodies import to_json
from foretell.serving.models import ExploredModel, ServedModel
from foretell.serving.preparation import pass_ids
from foretell.serving.requests import ChangeRequest, Name, PassRequest, WithoutNulls
from foretell.serving.server import PassEndpoint, Server

MOST_KEPT = 32  # passes
MOST_NEW = 1 / 8  # largest new share of a text when continuing a pass; more takes nearly as long as the whole pass


class ExplorerRequest(PassRequest):
    """The sections of a pass that the page shows."""

    sections: Annotated[list[Name], MaxLen(4096)] = []  # noqa: RUF012 - pydantic copies it


PassFields = dict[str, Any]  # the fields of a request that determine its pass


class KeptPass(NamedTuple):
    """The keys and values of a pass, which only its client can continue."""

    owner: tuple[str, str]  # (model, client)
    ids: list[int]
    keys: KeptKeys

    @property
    def nbytes(self) -> int:
        return sum(each.nbytes for pair in self.keys.values() for each in pair)


class KeptPasses:
    """Recent passes. If a client's text continues one, its next logits are computed from it, before the whole pass.

    With strict layers, these logits are bit-identical to the whole pass. The recorded stream of each client's last text
    is also kept, for the lens. Used only in the thread of the models.
    """

    def __init__(self) -> None:
        self._passes: list[KeptPass] = []  # most recent last
        self._recorded: dict[str, tuple[PassFields, PagePass]] = {}  # by client, most recent last

    def recorded(self, client: str, asked: PassFields, values: list[str]) -> PagePass | None:
        """The last pass of this client, if it matches the request and has recorded these values."""
        last, traced = self._recorded.get(client, (None, None))
        return traced if traced is not None and last == asked and traced.has(values) else None

    def keep_recorded(self, served: ServedModel, client: str, asked: PassFields, traced: PagePass) -> None:
        """Keep a pass with a recorded stream; the oldest ones are dropped as in `keep`."""
        if not traced.has(point.name for point in served.page.points):
            return
        self._recorded.pop(client, None)
        self._recorded[client] = (asked, traced)
        while sum(each.recorded.trace.held_bytes for _, each in self._recorded.values()) > served.look_bytes:
            del self._recorded[next(iter(self._recorded))]

    @torch.inference_mode()
    def read_on(self, served: ServedModel, client: str, ids: list[int]) -> Tensor | None:
        """The logits (V,) after ids, if a kept pass of this client covers most of them from the beginning."""
        own = (each for each in self._passes if each.owner == (served.name, client))
        earlier = max(own, key=lambda each: common_length(each.ids, ids), default=None)
        if earlier is None:
            return None
        start = min(common_length(earlier.ids, ids), len(ids) - 1)
        if len(ids) - start > len(ids) * MOST_NEW:
            return None
        decoder, rest = served.model.decoder, torch.tensor([ids[start:]], device=served.model.device)
        view = KeptKVView(rest, earlier.keys, start)
        hidden = decoder.hidden(rest, view)  # (1, T, D)
        self.keep(served, client, ids, view.kept)
        return decoder.head(hidden[:, -1:])[0, 0, : served.model.tokenizer.vocab_size]

    def keep(self, served: ServedModel, client: str, ids: list[int], keys: KeptKeys) -> None:
        """Keep a pass, and drop the oldest ones if all together exceed `look_bytes`."""
        owner = (served.name, client)
        others = [each for each in self._passes if (each.owner, each.ids) != (owner, ids)][1 - MOST_KEPT :]
        self._passes = [*others, KeptPass(owner, ids, keys)]
        while sum(each.nbytes for each in self._passes) > served.look_bytes:
            del self._passes[0]


class LeftError(Exception):
    """The client of a pass has left."""


class GivenUpKVView(KeptKVView):
    """A pass that stops after the current layer if its client leaves, so that other requests need not wait."""

    has_left = False

    def extend(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        if self.has_left:
            raise LeftError
        return super().extend(layer, key, value)


class Explorer(PassEndpoint[ExplorerRequest]):
    """POST /explore: a line of JSON about the pass, then one for each section as soon as it is computed.

    A request runs one pass, which records the values for its sections, unless the previous pass has them. If the text
    continues a kept pass, the first line has its next logits.
    """

    request_type = ExplorerRequest

    def __init__(self, server: Server):
        super().__init__(server)
        self.kept = KeptPasses()

    async def respond(self, served: ExploredModel, request: ExplorerRequest, key: str) -> Stream:
        lines = self._lines(served, request, key)
        return Stream(lines, {"content-type": "application/x-ndjson"}, lambda error: to_json(error) + b"\n")

    async def _lines(self, served: ExploredModel, request: ExplorerRequest, key: str) -> AsyncGenerator[bytes, None]:
        with errors_of("model"):
            page = served.page
        known = find_sections(page, served.sections, request.sections)
        if unknown := next((name for name in request.sections if name not in known), None):
            raise refused("sections", f"{served.name} has no section {unknown!r}; `outline` lists them as `available`")
        ids = await self.server.in_worker(pass_ids, served, request)
        values = needed_values(page, known.values())
        if isinstance(served, ServedModel) and not request.change:
            if "logits" in known:
                for line in await self._next_lines(served, key, ids):
                    yield line
            asked = request.model_dump(exclude={"sections"})
            traced = await self.server.engine.call(key, self.kept.recorded, key, asked, values)
            if traced is None:
                traced = await self._new_pass(served, request, key, ids, values)
                await self.server.engine.call(key, self.kept.keep_recorded, served, key, asked, traced)
        else:
            traced = await traced_pass(self.server, key, served, request, ids, values)
        for family, index in known.values():
            if isinstance(family, PositionFamily):
                family.check(traced, index)
        yield to_json({"pass": {"model": served.name, **pass_outline(traced)}}) + b"\n"
        wanted = (known[name] for name in request.sections)
        computed = ((family, index, family.content(traced, index)) for family, index in wanted)
        async for family, index, content in self.server.engine.each(key, computed):
            try:
                section = await self.server.in_worker(family.pack_live, index, content)
            except OutputError as error:
                raise not_finite() if request.change else error from None
            yield to_json({"section": described(section)}) + b"\n"

    async def _next_lines(self, served: ServedModel, key: str, ids: list[int]) -> list[bytes]:
        """A line with the logits after ids, before their pass, if a kept pass allows it."""
        logits = await self.server.engine.call(key, self.kept.read_on, served, key, ids)
        if logits is None:
            return []
        section = described(pack_exact("logits", array(logits)))
        return [to_json({"next": {"isExact": served.model.is_strict, "section": section}}) + b"\n"]

    async def _new_pass(
        self, served: ServedModel, request: PassRequest, key: str, ids: list[int], values: list[str]
    ) -> PagePass:
        """Run an unchanged pass and keep it; it stops if this task is cancelled."""
        view = GivenUpKVView(torch.tensor([ids], device=served.model.device))
        try:
            traced = await traced_pass(self.server, key, served, request, ids, values, view)
        finally:
            view.has_left = True
        await self.server.engine.call(key, self.kept.keep, served, key, ids, view.kept)
        return traced


async def traced_pass(
    server: Server,
    key: str,
    served: ExploredModel,
    request: PassRequest,
    ids: list[int],
    values: list[str],
    kv: KVView | None = None,
) -> PagePass:
    """Run a pass that records these values, between two steps of other requests."""
    changes = Changes(served, request.change)

    def record() -> PagePass:
        replace = changes.operations()
        with errors_of("change"):
            return served.page.record(ids, request.text, values, replace, served.look_bytes, kv)

    return await server.engine.call(key, record)


def described(section: PackedSection) -> dict[str, Any]:
    return {**section.to_json(), "content": section.content}


class PageFileRequest(PassRequest):
    """choice: the view that the page shows first; invalid parts are adjusted to the pass."""

    choice: Annotated[
        dict[Literal["token", "key", "layer", "head", "sourceToken"], Annotated[int, Ge(0)]], WithoutNulls
    ] = {}  # noqa: RUF012


class PageFile(PassEndpoint[PageFileRequest]):
    """The file of `foretell explain --html`, for a pass with appended tokens and changes."""

    request_type = PageFileRequest
    headers: ClassVar = {
        "content-type": "text/html; charset=utf-8",
        "content-disposition": "attachment; filename=explorer.html",
    }

    async def respond(self, served: ExploredModel, request: PageFileRequest, key: str) -> bytes:
        with errors_of("model"):
            ids = await self.server.in_worker(pass_ids, served, request)
            values = values_of_file(served.page, len(ids))
        traced = await traced_pass(self.server, key, served, request, ids, values)
        for point in range(len(served.page.lens_points)):  # matrix products run in the thread of the models
            await self.server.engine.call(key, traced.lens, point)
        remarks = [f"The pass was changed: {in_words(change)}." for change in request.change]
        try:
            choice = {str(name): index for name, index in request.choice.items()}
            make = partial(make_page, traced, remarks=remarks, choice=choice)
            return (await self.server.in_worker(make))[1].encode()
        except OutputError as error:
            raise ApiError(400, str(error), "text") from None


def in_words(change: ChangeRequest) -> str:
    """`trunk.blocks.0.attention.core, scale 0, heads 3`; for a vector, only its length."""
    words = [change.value]
    for name, value in change.model_dump(exclude_none=True, exclude={"value"}).items():
        if isinstance(value, list):
            is_vector = name in ("add", "set")
            value = f"vector of {len(value)} numbers" if is_vector else ", ".join(map(str, value))
        words.append(f"{name} {value}")
    return ", ".join(words)
