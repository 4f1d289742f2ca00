"""`foretell explain MODEL TEXT`: a pass layer by layer, any number of it, and what produced the prediction."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Group, Parameter

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
    Whole,
    read_text,
    task_input,
)
from foretell.cli.terminal import note, open_model, print_json, results
from foretell.errors import ForetellError, UsageError

if TYPE_CHECKING:
    from foretell.language_model import LanguageModel

    Options = Mapping[str, Any]

ASK = Group("What to show instead of the layers", sort_key=1)
MORE = Group("Details", sort_key=2)


def explain(
    model: ModelArgument,
    text: TextArgument = None,
    /,
    *,
    file: FileOption = None,
    value: Annotated[
        str | None,
        Parameter(
            help="One number: a trace name and an index without the batch dimension, or loss[2].",
            group=ASK,
            show_default=False,
        ),
    ] = None,
    html: Annotated[
        Path | None, Parameter(help="Write an HTML page: one file, no network.", group=ASK, show_default=False)
    ] = None,
    lens: Annotated[bool, Flag, Parameter(help="The next token as read after each block.", group=ASK)] = False,
    contributions: Annotated[
        bool, Flag, Parameter(help="What each head and feed-forward layer added to a token's logit.", group=ASK)
    ] = False,
    heads: Annotated[bool, Flag, Parameter(help="Which tokens each head attends to.", group=ASK)] = False,
    ablate: Annotated[
        str | None,
        Parameter(
            help="The prediction without a part: a name or glob; [0] or [*] after it selects heads.",
            group=ASK,
            show_default=False,
        ),
    ] = None,
    prediction: Annotated[
        bool, Flag, Parameter(help="Of a tuned model: which tokens and parts moved its label.", group=ASK)
    ] = False,
    check: Annotated[bool, Flag, Parameter(help="Compare the textbook's results with the model's.", group=ASK)] = False,
    token: Annotated[
        str | None,
        Parameter(
            help="The token to ask about (default: the most likely).",
            allow_leading_hyphen=True,
            group=MORE,
            show_default=False,
        ),
    ] = None,
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
    at: Annotated[
        int | None,
        Whole,
        Parameter(
            help="After this token, 0 being the first (default: the last).",
            allow_leading_hyphen=True,
            group=MORE,
            show_default=False,
        ),
    ] = None,
    layer: Annotated[
        int | None,
        Whole,
        Parameter(help="With --heads: the pattern of each head of this layer.", group=MORE, show_default=False),
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
    asked = {
        "value": value is not None,
        "check": check,
        "prediction": prediction,
        "html": html is not None and not prediction,
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
        "label": label,
    }
    mode, given = choose_mode(asked, options)
    text = read_text(text, file)
    if html is not None:
        from foretell.files import HTML_MARK, check_target

        check_target(html, HTML_MARK)
    loaded = open_model(model, device, dtype, ids, verify=verify, quantize=quantize)
    if as_task or prediction or pair:
        loaded = task_input(loaded, pair)
    answer = mode.answer(loaded, text, given)
    print_json(answer.to_json()) if json else results().print(str(answer))
    if fault := mode.fault(answer):
        raise ForetellError(fault)


@dataclass(frozen=True)
class Mode:
    """One kind of answer that `explain` gives.

    answer: makes what is printed (it has `str` and `to_json`) from the model, the text and the given options.
    options: the options that it takes, including the one that selects it if that has a value.
    fault: the error message for an answer that must fail the command, or None.
    """

    answer: Callable[[LanguageModel, str, Options], Any]
    options: tuple[str, ...] = ()
    fault: Callable[[Any], str | None] = lambda answer: None


def walk(loaded: LanguageModel, text: str, options: Options) -> Any:
    """The walk through the whole pass."""
    from foretell.insight.explain.walk import walk as walk_through

    return walk_through(loaded, text)


def value(loaded: LanguageModel, text: str, options: Options) -> Any:
    """One number with its operands."""
    from foretell.insight.explain.explanation import explain_value

    return explain_value(loaded, text, options["value"])


def value_fault(answer: Any) -> str | None:
    """The message for a number that does not follow from its operands."""
    if answer.agrees:
        return None
    return f"{answer.address} does not follow from its operands: they give {answer.recomputed:.9g}"


def check(loaded: LanguageModel, text: str, options: Options) -> Any:
    """The comparison of textbook and model."""
    from foretell.insight.explain.textbook_check import check as compare

    return compare(loaded, text)


def check_fault(answer: Any) -> str | None:
    """The message for a difference above its bound."""
    return None if answer.holds else answer.verdict


def lens(loaded: LanguageModel, text: str, options: Options) -> Any:
    """The next token as read after every block."""
    from foretell.insight.attribution.logit_lens import logit_lens

    return logit_lens(loaded, text, **options)


def contributions(loaded: LanguageModel, text: str, options: Options) -> Any:
    """What each part added to a logit."""
    from foretell.insight.attribution.direct_logit_attribution import direct_logit_attribution

    return direct_logit_attribution(loaded, text, **options)


def heads(loaded: LanguageModel, text: str, options: Options) -> Any:
    """Attention patterns: numbers for all heads, or the weights of one layer."""
    from foretell.insight.attribution.head_patterns import head_patterns

    patterns = head_patterns(loaded, text)
    return patterns.layer(options["layer"]) if options else patterns


def ablate(loaded: LanguageModel, text: str, options: Options) -> Any:
    """The prediction without a part."""
    from foretell.insight.attribution.ablation import ablate as ablate_parts

    named = {"fill" if name == "with" else name: value for name, value in options.items() if name != "ablate"}
    return ablate_parts(loaded, text, options["ablate"], **named)


def prediction(loaded: LanguageModel, text: str, options: Options) -> Any:
    """What moved the label of a tuned model; with `html`, also as a page."""
    from foretell.files import write_text
    from foretell.finetuning.label_attribution import attribute_label
    from foretell.finetuning.task_input import TaskInputModel
    from foretell.typesetting.html import page

    assert isinstance(loaded, TaskInputModel)
    answer = attribute_label(loaded, [text, *loaded.others], options.get("label"), options.get("against"))
    if "html" in options:
        write_text(options["html"], page(f"{loaded.name}: a prediction", answer.document()))
        note(f"{options['html']}: open it in a browser")
    return answer


def html(loaded: LanguageModel, text: str, options: Options) -> Any:
    """The pass as an HTML page; what did not fit is reported on stderr."""
    from foretell.insight.page.write_page import write_page

    report = write_page(loaded, text, options["html"])
    for sentence in report.cut:
        note(sentence)
    return report


MODES: dict[str, Mode] = {
    "value": Mode(value, ("value",), value_fault),
    "check": Mode(check, (), check_fault),
    "html": Mode(html, ("html",)),
    "prediction": Mode(prediction, ("label", "against", "html")),
    "lens": Mode(lens, ("at",)),
    "contributions": Mode(contributions, ("token", "against", "at")),
    "heads": Mode(heads, ("layer",)),
    "ablate": Mode(ablate, ("ablate", "with", "token", "at")),
}
WALK = Mode(walk)


def choose_mode(asked: Mapping[str, Any], options: Mapping[str, Any]) -> tuple[Mode, dict[str, Any]]:
    """The selected mode, or the walk, with the given options; an option that it does not take is a `UsageError`."""
    chosen = [name for name, value in asked.items() if value]
    if len(chosen) > 1:
        raise UsageError(f"{' and '.join(f'--{name}' for name in chosen)} exclude each other; give one of them")
    mode = MODES[chosen[0]] if chosen else WALK
    given = {name: value for name, value in options.items() if value is not None}
    for name in given:
        if name not in mode.options:
            goes_with = ", ".join(f"--{other}" for other in MODES if name in MODES[other].options)
            raise UsageError(f"--{name} goes with {goes_with} and has no effect here; leave it out")
    return mode, given
