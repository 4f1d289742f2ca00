"""POST /explore/page: a pass as one HTML file that needs no server."""

from __future__ import annotations

from functools import partial
from typing import Any, ClassVar

from foretell.errors import OutputError
from foretell.insight.page.write_page import make_page, values_of_file
from foretell.serving.errors import ApiError, errors_of
from foretell.serving.explorer import traced_pass
from foretell.serving.look_request import ChangeRequest
from foretell.serving.models import ExploredModel
from foretell.serving.preparation import pass_ids
from foretell.serving.requests import PassRequest
from foretell.serving.texts import PassEndpoint


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
