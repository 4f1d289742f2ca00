"""`foretell explain MODEL TEXT`: the walk through a pass, any number of it, and what made the prediction."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Group, Parameter

from foretell.cli.arguments import Device, Dtype, Flag, Json, ModelArgument, TextArgument, read_text
from foretell.cli.explain_modes import choose_mode
from foretell.cli.terminal import open_model, print_json, results
from foretell.errors import ForetellError

ASK = Group("What to show, instead of the walk", sort_key=1)
MORE = Group("More exactly", sort_key=2)


def explain(
    model: ModelArgument,
    text: TextArgument,
    /,
    *,
    value: Annotated[
        str | None,
        Parameter(
            help="One number: a trace name and an index without the batch row, or loss[2].",
            group=ASK,
            show_default=False,
        ),
    ] = None,
    html: Annotated[
        Path | None, Parameter(help="Write a page to look at: one file, no network.", group=ASK, show_default=False)
    ] = None,
    lens: Annotated[
        bool, Flag, Parameter(help="What the model would say if it stopped after each block.", group=ASK)
    ] = False,
    contributions: Annotated[
        bool, Flag, Parameter(help="What each head and feed-forward layer brought to a token's logit.", group=ASK)
    ] = False,
    heads: Annotated[bool, Flag, Parameter(help="Where each head looks.", group=ASK)] = False,
    ablate: Annotated[
        str | None,
        Parameter(
            help="What is different without a part: a name or glob, [0] or [*] behind it for heads.",
            group=ASK,
            show_default=False,
        ),
    ] = None,
    check: Annotated[bool, Flag, Parameter(help="Textbook and model side by side.", group=ASK)] = False,
    token: Annotated[
        str | None,
        Parameter(
            help="The token that is asked about (default: the likeliest).",
            allow_leading_hyphen=True,
            group=MORE,
            show_default=False,
        ),
    ] = None,
    against: Annotated[
        str | None,
        Parameter(
            help="With --contributions: compare with this token.",
            allow_leading_hyphen=True,
            group=MORE,
            show_default=False,
        ),
    ] = None,
    with_: Annotated[
        Literal["zero", "mean"] | None,
        Parameter(
            name="--with",
            help="With --ablate: what to put there, zero (default) or the mean over positions.",
            group=MORE,
            show_default=False,
            show_choices=False,
        ),
    ] = None,
    at: Annotated[
        int | None,
        Parameter(
            help="After this token, 0 being the first (default: the last).",
            allow_leading_hyphen=True,
            group=MORE,
            show_default=False,
        ),
    ] = None,
    layer: Annotated[
        int | None,
        Parameter(help="With --heads: the pattern of each head of this layer.", group=MORE, show_default=False),
    ] = None,
    json: Json = False,
    device: Device = "auto",
    dtype: Dtype = "auto",
) -> None:
    """A pass over a text, layer by layer; any number of it; and what made the prediction.

    Numbers have the names of `foretell trace MODEL --list`. Besides there are
    logits[t,v], probabilities[t,v] and loss[t], where v may be a token's text:
    --value "probabilities[-1,' the']".
    """
    asked = {
        "value": value is not None,
        "check": check,
        "html": html is not None,
        "lens": lens,
        "contributions": contributions,
        "heads": heads,
        "ablate": ablate is not None,
    }
    options = {
        "value": value,
        "html": html,
        "ablate": ablate,
        "token": token,
        "against": against,
        "with": with_,
        "at": at,
        "layer": layer,
    }
    mode, given = choose_mode(asked, options)
    text = read_text(text)
    if html is not None:
        from foretell.files import check_target

        check_target(html)
    answer = mode.answer(open_model(model, device, dtype), text, given)
    print_json(answer.to_json()) if json else results().print(str(answer))
    if fault := mode.fault(answer):
        raise ForetellError(fault)
