"""The vectors of the parts of a pass, number by number.

`contributions.vector[t,n,d]`: after the last norm, with the statistics of the pass; `contributions.written[t,n,d]`: as
the part wrote it.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import nn

from foretell.insight.attribution.direct_logit_attribution import HeadOutputs, Normalized, Part
from foretell.insight.explain.contribution_values import VECTOR, Contributions
from foretell.insight.explain.steps import (
    Column,
    Listing,
    Remark,
    Step,
    Working,
    equals,
    factor,
    multiply_out,
    plus,
    quotient,
    scale_of,
    unchanged,
    written,
)
from foretell.insight.recording import Array, address_of
from foretell.model.quantized_linear import QuantizedLinear
from foretell.typesetting.expression import Call, Expression

WRITTEN = "contributions.written"

Explained = tuple[float, Working]  # the stored number, and the steps to it


def explain_mean_vector(numbers: Contributions, index: tuple[int, ...]) -> Explained:
    """The mean over all positions, which a task's head reads."""
    part, element = index
    rows = numbers.vectors(slice(0, len(numbers.recording.ids)))[part, :, element]
    opens = address_of(VECTOR, ":", part, element)
    return float(rows.mean()), added_up({"position": range(len(rows)), "contribution": rows}, opens, len(rows))


def explain_vector(numbers: Contributions, index: tuple[int, ...]) -> Explained:
    """An element of a part's vector after the norms, which are linear with the statistics of the pass."""
    position, part, element = index
    _, *norms = numbers.stream.trail(numbers.names[part])
    x, source = numbers.written(position, part), address_of(WRITTEN, position, part, ":")
    steps: list[Step] = [] if norms else [Remark(f"No norm follows {source.replace(':', str(element))}.")]
    for norm in norms:
        assert isinstance(norm, Normalized), "a part passes norms"
        added, x = through(numbers, norm, position, x, source, element)
        steps, source = [*steps, *added], ""
    stored = float(numbers.vectors(slice(position, position + 1))[part, 0, element])
    return stored, Working(steps, float(x[element]), 8 * float(np.abs(x).max() + abs(stored)))


def through(
    numbers: Contributions, norm: Normalized, position: int, x: Array, source: str, element: int
) -> tuple[list[Step], Array]:
    """The steps of one norm to an element, and the whole vector after it; source: of x, if it has an address."""
    frozen = norm.frozen(numbers.recording.trace, position)
    multiplier = float(torch.as_tensor(frozen.scale).expand(len(x))[element])
    steps: list[Step] = []
    mean, inner = 0.0, float(x[element])
    terms: float | Expression = inner
    if frozen.centers:
        opens = {"x": source} if source else {}
        listing = Listing("", {"element": range(len(x)), "x": x}, ("x",), element, opens=opens)
        mean = listing.sums["x"] / len(x)
        steps = [listing, equals(mean, "mean =", quotient(listing.sums["x"], len(x)))]
        terms = Call("", written(inner, *plus(-mean)))
    statistic = address_of(f"{norm.path}.{norm.statistics[-1]}", position)
    note = f"times {address_of(f'{norm.path}.weight', element)} over the divisor that {statistic} gives"
    operands = {"x": source.replace(":", str(element))} if source else {}
    value, after = (inner - mean) * multiplier, frozen(torch.from_numpy(x)).numpy()
    after[element] = value
    return [*steps, equals(value, "y =", terms, "·", factor(multiplier), note=note, operands=operands)], after


def explain_written(numbers: Contributions, index: tuple[int, ...]) -> Explained:
    """An element of what a head wrote, w · z; of any other part, a recorded number or a weight."""
    position, part, element = index
    name, leaf = numbers.names[part], numbers.stream.trail(numbers.names[part])[0]
    stored = float(numbers.written(position, part)[element])
    if isinstance(leaf, Part):
        return stored, unchanged(address_of(name, position, element), stored)
    if not isinstance(leaf, HeadOutputs) or name.endswith(".bias"):
        return stored, unchanged(address_of(name, element), stored)
    head = head_of(leaf, name)
    z, E = numbers.recording.array(leaf.core)[head, position], numbers.recording.config.head_width
    first = head * E
    if not isinstance(leaf.projection, nn.Linear | QuantizedLinear):
        source = address_of(leaf.core, element // E, position, element % E)
        note = "" if element // E == head else "; this head adds nothing to its element"
        return stored, unchanged(f"{source}{note}", stored)
    path = f"{leaf.path}.weight"
    w = numbers.recording.weight(path, element)[first : first + E]
    operands = {"w": f"{path}[{element},{first}:{first + E}]", "z": address_of(leaf.core, head, position, ":")}
    products = multiply_out(operands, {"w": w, "z": z})
    total = products.sums["w · z"]
    return stored, Working([products, equals(total, "w · z")], total, scale_of(products))


def head_of(leaf: HeadOutputs, name: str) -> int:
    """The head that a part is the output of."""
    return int(name.removeprefix(f"{leaf.core}[").removesuffix("]"))


def added_up(columns: Mapping[str, Column], opens: str, count: int | None = None) -> Working:
    """The sum of a column of contributions, whose numbers open; or their mean."""
    listing = Listing("", columns, ("contribution",), opens={"contribution": opens})
    value, scale = listing.sums["contribution"], 8 * scale_of(listing)  # the addends are sums, too
    if count is None:
        return Working([listing, equals(value, "sum")], value, scale)
    equation = equals(value / count, "mean =", quotient(value, count))
    return Working([listing, equation], equation.value, scale)
