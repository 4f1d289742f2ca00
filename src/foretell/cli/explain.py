"""`foretell explain MODEL TEXT`: the walk through a pass, one number of it, or the textbook beside it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from foretell.cli.arguments import Device, Dtype, Flag, Json, ModelArgument, TextArgument, read_text
from foretell.cli.terminal import open_model, print_json
from foretell.errors import ForetellError, UsageError

if TYPE_CHECKING:
    from foretell.runs.saved_model import LanguageModel


def explain(
    model: ModelArgument,
    text: TextArgument,
    /,
    *,
    value: Annotated[
        str | None,
        Parameter(help="One number: a trace name and an index without the batch row, or loss[2].", show_default=False),
    ] = None,
    check: Annotated[bool, Flag, Parameter(help="Textbook and model side by side.")] = False,
    json: Json = False,
    device: Device = "auto",
    dtype: Dtype = "auto",
) -> None:
    """A pass over a text, layer by layer; or one number of it with everything that it came from.

    Numbers have the names of `foretell trace MODEL --list`, and besides there are logits[t,v], probabilities[t,v] and
    loss[t], where v may be a token's text: --value "probabilities[-1,' the']".
    """
    if value is not None and check:
        raise UsageError("--value and --check exclude each other; give one of them")
    text = read_text(text)
    loaded = open_model(model, device, dtype)
    if value is not None:
        show_value(loaded, text, value, json)
    elif check:
        show_check(loaded, text, json)
    else:
        show_walk(loaded, text, json)


def show_walk(loaded: LanguageModel, text: str, json: bool) -> None:
    """The walk through the whole pass."""
    from foretell.insight.explain.walk import walk

    found = walk(loaded, text)
    print_json(found.to_json()) if json else print(found)


def show_value(loaded: LanguageModel, text: str, address: str, json: bool) -> None:
    """One number; one that does not follow from its operands is a failure."""
    from foretell.insight.explain.explanation import explain_value

    found = explain_value(loaded, text, address)
    print_json(found.to_json()) if json else print(found)
    if not found.agrees:
        raise ForetellError(f"{found.address} does not follow from its operands: they give {found.recomputed:.9g}")


def show_check(loaded: LanguageModel, text: str, json: bool) -> None:
    """Textbook and model; a difference over its bound is a failure."""
    from foretell.insight.explain.check import check

    found = check(loaded, text)
    print_json(found.to_json()) if json else print(found)
    if not found.holds:
        raise ForetellError(f"{loaded.name}: {found.verdict}")
