"""The live page: its files, the models that it can show, and the sections of a pass over a text."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from functools import partial
from typing import Annotated, Any, ClassVar

from annotated_types import MaxLen
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from foretell.errors import OutputError
from foretell.insight.page.family import Family, Index, PositionFamily
from foretell.insight.page.outline import pass_outline
from foretell.insight.page.packing import PackedSection
from foretell.insight.page.sections import find_sections, needed_values
from foretell.insight.page.traced_pass import TracedPass
from foretell.insight.page.write_page import live_files, make_page, values_of_file
from foretell.serving.changes import Patches, replacements
from foretell.serving.connection import send_stream, until_disconnected
from foretell.serving.errors import ApiError, errors_of
from foretell.serving.json_bodies import to_json
from foretell.serving.look_request import ChangeRequest, Name
from foretell.serving.models import ExploredModel
from foretell.serving.preparation import pass_ids
from foretell.serving.requests import PassRequest
from foretell.serving.server import Server
from foretell.serving.texts import PassEndpoint

SLICE_SECONDS = 0.1  # of sections that are computed between two steps of other requests
# Scripts and styles are files of this server; nothing is fetched from elsewhere, and no frame may show the page
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
TYPES = {"js": "text/javascript", "css": "text/css", "html": "text/html"}
PREFIX = "/page/"


class ExplorerRequest(PassRequest):
    """The sections of a pass that the page shows."""

    sections: Annotated[list[Name], MaxLen(4096)] = []  # noqa: RUF012 - pydantic copies it


class ExplorerFiles:
    """GET routes without a model."""

    def __init__(self, server: Server):
        self.server = server
        self.files = live_files()

    async def page(self, request: HttpRequest) -> Response:
        """GET / and GET /page/NAME."""
        name = request.url.path.removeprefix(PREFIX).lstrip("/") or "page.html"
        if name not in self.files:
            raise ApiError(404, "this path is not served")
        headers = {"content-security-policy": POLICY, "cache-control": "no-cache"}
        return Response(self.files[name], headers=headers, media_type=TYPES[name.rpartition(".")[2]])

    async def models(self, request: HttpRequest) -> Response:
        """GET /explore: the models that the page can show. reads: a text, a source, or values."""
        return JSONResponse({"models": self.server.models.explored()})


class Explorer:
    """POST /explore: a line of JSON about the pass, then one for each section as soon as it is computed.

    Nothing is kept: every request runs one pass, which records what its sections need.
    """

    def __init__(self, server: Server):
        self.server = server

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        http = HttpRequest(scope, receive)
        request = await self.server.read(ExplorerRequest, http)
        headers = self.server.check_fields(request)
        served = await self.server.in_worker(partial(self.server.models.of_pass, request))
        with self.server.admitted(http):
            await until_disconnected(self._respond(served, request, headers, send), receive)

    async def _respond(
        self, served: ExploredModel, request: ExplorerRequest, headers: dict[str, str], send: Send
    ) -> None:
        fields = {"content-type": "application/x-ndjson", **headers}
        await send_stream(send, self._lines(served, request), fields, lambda error: to_json(error) + b"\n")

    async def _lines(self, served: ExploredModel, request: ExplorerRequest) -> AsyncIterator[bytes]:
        with errors_of("model"):
            page = served.page
        known = find_sections(page, served.sections, request.sections)
        if unknown := next((name for name in request.sections if name not in known), None):
            raise ApiError(400, f"sections: {served.name} has no section {unknown!r}", "sections")
        traced = await traced_pass(self.server, served, request, needed_values(page, known.values()))
        for family, index in known.values():
            if isinstance(family, PositionFamily):
                family.check(traced, index)
        yield to_json({"pass": {"model": served.name, **pass_outline(traced)}}) + b"\n"
        waiting = [known[name] for name in request.sections]
        while waiting:
            computed = await self.server.engine.call(partial(compute_some, traced, waiting))
            for family, index, content in computed:
                section = await self.server.in_worker(partial(family.pack, family.section_name(index), content))
                yield to_json({"section": described(section)}) + b"\n"


async def traced_pass(server: Server, served: ExploredModel, request: PassRequest, values: list[str]) -> TracedPass:
    """One pass that records these values, between two steps of other requests."""
    ids = await server.in_worker(partial(pass_ids, served, request))
    patches = Patches(served, request.change)

    def record() -> TracedPass:
        replace = replacements(served, request.change, patches, lambda: 0)
        with errors_of("change"):
            return served.page.record(ids, request.text, values, replace, served.look_bytes)

    return await server.engine.call(record)


def compute_some(traced: TracedPass, waiting: list[tuple[Family, Index]]) -> list[tuple[Family, Index, Any]]:
    """The contents of the first sections that wait, for SLICE_SECONDS; they are removed from the list."""
    computed, end = [], time.monotonic() + SLICE_SECONDS
    while waiting and (not computed or time.monotonic() < end):
        family, index = waiting.pop(0)
        computed.append((family, index, family.content(traced, index)))
    return computed


def described(section: PackedSection) -> dict[str, Any]:
    return {**section.to_json(), "content": section.content}


class PageFile(PassEndpoint[PassRequest]):
    """The file that `foretell explain --html` writes, of a pass with appended tokens and changes."""

    request_type, media_type = PassRequest, "text/html"
    headers: ClassVar = {"content-disposition": "attachment; filename=explorer.html"}

    async def respond(self, served: ExploredModel, request: PassRequest, key: str) -> bytes:
        with errors_of("model"):
            values = values_of_file(served.page, len(await self.server.in_worker(partial(pass_ids, served, request))))
        traced = await traced_pass(self.server, served, request, values)
        for point in range(len(served.page.lens_points)):  # matrix multiplications belong to the thread of the models
            await self.server.engine.call(partial(traced.lens, point))
        remarks = [f"The pass was changed: {in_words(change)}." for change in request.change]
        try:
            return (await self.server.in_worker(partial(make_page, traced, remarks=remarks)))[1].encode()
        except OutputError as error:
            raise ApiError(400, str(error), "text") from None


def in_words(change: ChangeRequest) -> str:
    """`trunk.blocks.0.attention.core, scale 0, heads 3`; a vector as the number of its entries."""
    given: dict[str, Any] = change.model_dump(exclude_none=True, exclude={"value"})
    shown = {
        name: f"vector of {len(value)} numbers" if name in ("add", "set") and isinstance(value, list) else value
        for name, value in given.items()
    }
    return ", ".join(
        [change.value, *(f"{name} {', '.join(map(str, v)) if isinstance(v, list) else v}" for name, v in shown.items())]
    )
