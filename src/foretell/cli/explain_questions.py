"""The questions that `explain` answers about a pass: the options that ask them, and a `Mode` for each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Group, Parameter

from foretell.cli.arguments import Flag, Whole
from foretell.cli.terminal import note, print_json, results
from foretell.errors import ForetellError, UsageError

if TYPE_CHECKING:
    from foretell.language_model import LanguageModel

    Options = Mapping[str, Any]

ASK = Group("What to show instead of the layers", sort_key=1)
MORE = Group("Details", sort_key=2)


@dataclass(frozen=True)
class Questions:
    """The questions that any model answers, with their details. At most one of the first six is asked."""

    value: Annotated[
        str | None,
        Parameter(
            help="One number: a trace name and an index without the batch dimension, or loss[2].",
            group=ASK,
            show_default=False,
        ),
    ] = None
    html: Annotated[
        Path | None, Parameter(help="Write an HTML page: one file, no network.", group=ASK, show_default=False)
    ] = None
    lens: Annotated[bool, Flag, Parameter(help="The next token as read after each block.", group=ASK)] = False
    contributions: Annotated[
        bool, Flag, Parameter(help="What each head and feed-forward layer added to a token's logit.", group=ASK)
    ] = False
    heads: Annotated[bool, Flag, Parameter(help="Which tokens each head attends to.", group=ASK)] = False
    ablate: Annotated[
        str | None,
        Parameter(
            help="The prediction without a part: a name or glob; [0] or [*] after it selects heads.",
            group=ASK,
            show_default=False,
        ),
    ] = None
    token: Annotated[
        str | None,
        Parameter(
            help="The token to ask about (default: the most likely).",
            allow_leading_hyphen=True,
            group=MORE,
            show_default=False,
        ),
    ] = None
    at: Annotated[
        int | None,
        Whole,
        Parameter(
            help="After this token, 0 being the first (default: the last).",
            allow_leading_hyphen=True,
            group=MORE,
            show_default=False,
        ),
    ] = None
    layer: Annotated[
        int | None,
        Whole,
        Parameter(help="With --heads: the pattern of each head of this layer.", group=MORE, show_default=False),
    ] = None

    def asked(self) -> list[str]:
        """The names of the questions that were asked."""
        asked = {
            "value": self.value is not None,
            "html": self.html is not None,
            "lens": self.lens,
            "contributions": self.contributions,
            "heads": self.heads,
            "ablate": self.ablate is not None,
        }
        return [name for name, is_asked in asked.items() if is_asked]

    def given(self) -> dict[str, Any]:
        """The options with a value that were given."""
        names = ("value", "html", "ablate", "token", "at", "layer")
        return {name: getattr(self, name) for name in names if getattr(self, name) is not None}

    def check_page(self) -> None:
        """Refuse to write the HTML page over another file, before a model is loaded."""
        if self.html is not None:
            from foretell.files import HTML_MARK, check_target

            check_target(self.html, HTML_MARK)


Asked = Annotated[Questions, Parameter(name="*")]
NO_QUESTION = Questions()


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

    def show(self, loaded: LanguageModel, text: str, options: Options, json: bool) -> None:
        """Print the answer; raise a `ForetellError` for one that must fail the command."""
        answer = self.answer(loaded, text, options)
        print_json(answer.to_json()) if json else results().print(str(answer))
        if fault := self.fault(answer):
            raise ForetellError(fault)


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
    "prediction": Mode(prediction, ("label", "against", "html")),  # with --html, a page of the prediction
    "html": Mode(html, ("html",)),
    "lens": Mode(lens, ("at",)),
    "contributions": Mode(contributions, ("token", "against", "at")),
    "heads": Mode(heads, ("layer",)),
    "ablate": Mode(ablate, ("ablate", "with", "token", "at")),
}
WALK = Mode(walk)


def choose_mode(asked: Sequence[str], given: Mapping[str, Any]) -> Mode:
    """The mode of the question that is asked, or the walk; an option that it does not take is a `UsageError`."""
    chosen = [name for name in MODES if name in asked and not (name == "html" and "prediction" in asked)]
    if len(chosen) > 1:
        raise UsageError(f"{' and '.join(f'--{name}' for name in chosen)} exclude each other; give one of them")
    mode = MODES[chosen[0]] if chosen else WALK
    for name in given:
        if name not in mode.options:
            goes_with = ", ".join(f"--{other}" for other in MODES if name in MODES[other].options)
            raise UsageError(f"--{name} goes with {goes_with} and has no effect here; leave it out")
    return mode
