"""`foretell explain MODEL TEXT`: a pass layer by layer, any number of it, and what produced the prediction."""

from __future__ import annotations

from typing import Annotated, Literal

from cyclopts import Parameter

from foretell.cli.arguments import (
    AsTask,
    Device,
    Dtype,
    FileOption,
    Flag,
    Ids,
    Json,
    ModelArgument,
    Pair,
    Quantize,
    TextArgument,
    Verify,
    read_text,
    task_input,
)
from foretell.cli.explain_questions import ASK, MORE, NO_QUESTION, Asked, choose_mode
from foretell.cli.terminal import open_model


def explain(
    model: ModelArgument,
    text: TextArgument = None,
    /,
    *,
    file: FileOption = None,
    questions: Asked = NO_QUESTION,
    prediction: Annotated[
        bool, Flag, Parameter(help="Of a tuned model: which tokens and parts moved its label.", group=ASK)
    ] = False,
    check: Annotated[bool, Flag, Parameter(help="Compare the textbook's results with the model's.", group=ASK)] = False,
    against: Annotated[
        str | None,
        Parameter(
            help="With --contributions or --prediction: compare with this token or label.",
            allow_leading_hyphen=True,
            group=MORE,
            show_default=False,
        ),
    ] = None,
    with_: Annotated[
        Literal["zero", "mean"] | None,
        Parameter(
            name="--with",
            help="With --ablate: replace the part by zero (default) or by its mean over positions.",
            group=MORE,
            show_default=False,
            show_choices=False,
        ),
    ] = None,
    label: Annotated[
        str | None,
        Parameter(
            help="With --prediction: the label to ask about (default: the predicted).", group=MORE, show_default=False
        ),
    ] = None,
    as_task: AsTask = False,
    pair: Pair = None,
    ids: Ids = False,
    json: Json = False,
    device: Device = "auto",
    dtype: Dtype = "auto",
    quantize: Quantize = None,
    verify: Verify = False,
) -> None:
    """A pass over a text, layer by layer; any number of it; and what produced the prediction.

    Numbers are named as in `foretell trace MODEL --list`. There are also
    logits[t,v], probabilities[t,v] and loss[t], where v may be a token's text:
    --value "probabilities[-1,' the']".
    """
    asked = [name for name, is_asked in {"check": check, "prediction": prediction}.items() if is_asked]
    details = {"against": against, "with": with_, "label": label}
    given = questions.given() | {name: value for name, value in details.items() if value is not None}
    mode = choose_mode([*asked, *questions.asked()], given)
    text = read_text(text, file)
    questions.check_page()
    loaded = open_model(model, device, dtype, ids, verify=verify, quantize=quantize)
    if as_task or prediction or pair:
        loaded = task_input(loaded, pair)
    mode.show(loaded, text, given, json)
