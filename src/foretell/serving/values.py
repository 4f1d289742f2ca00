"""POST /explore/value: a number of a pass with its operands and their addresses."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Annotated, Any

from annotated_types import MaxLen, MinLen

from foretell.errors import CheckpointError
from foretell.insight.explain.explain_address import explain_value
from foretell.insight.explain.explanation import Explanation
from foretell.insight.explain.steps import Equation, Listing, Step
from foretell.insight.trace import Trace
from foretell.serving.changes import Changes
from foretell.serving.errors import errors_of, not_finite, refused
from foretell.serving.json_bodies import to_json
from foretell.serving.models import ExploredModel
from foretell.serving.preparation import pass_ids
from foretell.serving.requests import PassRequest
from foretell.serving.server import PassEndpoint
from foretell.typesetting.text import expression_lines

MOST_ROWS = 4096  # rows of a complete listing; a vocabulary is longer
FORMULA_WIDTH = 62  # characters
FIRST_ROWS = 100  # rows of a longer listing, plus its last row and the row of the value


class ValueRequest(PassRequest):
    """address: a name and an index without the batch row, as for `foretell explain --value`."""

    address: Annotated[str, MinLen(1), MaxLen(300)]


class Values(PassEndpoint[ValueRequest]):
    """The explanation of one number."""

    request_type = ValueRequest

    async def respond(self, served: ExploredModel, request: ValueRequest, key: str) -> bytes:
        if not request.address.isprintable():
            raise refused("address", "write one line, with \\n for a line break in a token")
        ids = await self.server.in_worker(pass_ids, served, request)
        explanation, is_changed = await self.server.engine.call(key, explain, served, request, ids)
        return await self.server.in_worker(lambda: to_json({**as_json(explanation), "changed": is_changed}))


def explain(served: ExploredModel, request: ValueRequest, ids: list[int]) -> tuple[Explanation, bool]:
    """(the explanation in the changed pass, True if the number itself was changed); in the thread of the models."""
    changes = Changes(served, request.change).operations()
    try:
        with errors_of("address"), Trace(served.model, replace=changes):
            explanation = explain_value(served.model, ids, request.address, served.readout, served.levels)
    except CheckpointError:
        raise not_finite() from None
    if math.isnan(explanation.stored):  # minus infinity is a masked score
        raise not_finite()
    return explanation, explanation.name in changes


def as_json(explanation: Explanation) -> dict[str, Any]:
    """The explanation, with the first rows of a very long listing."""
    whole = replace(explanation, steps=()).to_json()
    return {**whole, "address": explanation.address, "steps": [step_json(step) for step in explanation.steps]}


def step_json(step: Step) -> dict[str, Any]:
    """A step as JSON; an equation with the lines of its formula as text."""
    if isinstance(step, Equation):
        return {**step.to_json(), "formula": expression_lines(step.expression, FORMULA_WIDTH)}
    if not isinstance(step, Listing) or step.length <= MOST_ROWS:
        return step.to_json()
    focus = 0 if step.focus is None else step.focus
    rows = sorted({*range(FIRST_ROWS), focus, step.length - 1})
    columns = {name: [column[row] for row in rows] for name, column in step.columns.items()}
    cut = replace(step, columns=columns, focus=None if step.focus is None else rows.index(focus)).to_json()
    return {**cut, "sums": step.sums, "left_out": step.length - len(rows)}
