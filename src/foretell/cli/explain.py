"""`foretell explain MODEL TEXT`: what made a prediction."""

from __future__ import annotations

from typing import Annotated, Literal

from cyclopts import Parameter

from foretell.cli.arguments import Device, Dtype, Flag, Json, ModelArgument, TextArgument, read_text
from foretell.cli.explain_attribution import choose_mode
from foretell.cli.terminal import open_model, print_json, results


def explain(
    model: ModelArgument,
    text: TextArgument,
    /,
    *,
    lens: Annotated[bool, Flag, Parameter(help="What the model would say if it stopped after each block.")] = False,
    contributions: Annotated[
        bool, Flag, Parameter(help="What each head and feed-forward layer brought to a token's logit.")
    ] = False,
    heads: Annotated[bool, Flag, Parameter(help="Where each head looks.")] = False,
    ablate: Annotated[
        str | None,
        Parameter(help="What is different without a part: a name or glob, [0] or [*] behind it for heads."),
    ] = None,
    token: Annotated[
        str | None, Parameter(help="The token that is asked about (default: the likeliest).", allow_leading_hyphen=True)
    ] = None,
    against: Annotated[
        str | None,
        Parameter(help="With --contributions: compare with this token.", allow_leading_hyphen=True),
    ] = None,
    with_: Annotated[
        Literal["zero", "mean"] | None,
        Parameter(name="--with", help="With --ablate: what to put there, zero (default) or the mean over positions."),
    ] = None,
    at: Annotated[
        int | None,
        Parameter(help="After this token, 0 being the first (default: the last).", allow_leading_hyphen=True),
    ] = None,
    layer: Annotated[int | None, Parameter(help="With --heads: the pattern of each head of this layer.")] = None,
    json: Json = False,
    device: Device = "auto",
    dtype: Dtype = "auto",
) -> None:
    """What made a prediction.

    Give one of --lens, --contributions, --heads and --ablate.
    """
    asked = {"lens": lens, "contributions": contributions, "heads": heads, "ablate": ablate is not None}
    options = {"ablate": ablate, "token": token, "against": against, "with": with_, "at": at, "layer": layer}
    mode, given = choose_mode(asked, options)
    text = read_text(text)
    loaded = open_model(model, device, dtype)
    answer = mode.answer(loaded, text, given)
    print_json(answer.to_json()) if json else results().print(str(answer))
