"""What `foretell explain` can be asked: one function for each way of asking."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from foretell.cli.terminal import note
from foretell.errors import UsageError

if TYPE_CHECKING:
    from foretell.language_model import LanguageModel

Options = Mapping[str, Any]


@dataclass(frozen=True)
class Mode:
    """A way of asking.

    answer: from the model, the text and the options that were given, what is printed (`str` and `to_json`).
    options: which ones mean something to it, the one that chooses it included where that has a value.
    fault: what is wrong where the answer is one that must fail.
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
    """A number that does not follow from its operands."""
    if answer.agrees:
        return None
    return f"{answer.address} does not follow from its operands: they give {answer.recomputed:.9g}"


def check(loaded: LanguageModel, text: str, options: Options) -> Any:
    """Textbook and model."""
    from foretell.insight.explain.textbook_check import check as compare

    return compare(loaded, text)


def check_fault(answer: Any) -> str | None:
    """A difference over its bound."""
    return None if answer.holds else answer.verdict


def lens(loaded: LanguageModel, text: str, options: Options) -> Any:
    """The stream, read after every block."""
    from foretell.insight.attribution.logit_lens import logit_lens

    return logit_lens(loaded, text, **options)


def contributions(loaded: LanguageModel, text: str, options: Options) -> Any:
    """What each part brought to a logit."""
    from foretell.insight.attribution.direct_logit_attribution import direct_logit_attribution

    return direct_logit_attribution(loaded, text, **options)


def heads(loaded: LanguageModel, text: str, options: Options) -> Any:
    """Where the heads look: numbers for all, or the patterns of one layer."""
    from foretell.insight.attribution.head_patterns import head_patterns

    patterns = head_patterns(loaded, text)
    return patterns.layer(options["layer"]) if options else patterns


def ablate(loaded: LanguageModel, text: str, options: Options) -> Any:
    """What the prediction is without a part."""
    from foretell.insight.attribution.ablation import ablate as ablate_parts

    named = {"fill" if name == "with" else name: value for name, value in options.items() if name != "ablate"}
    return ablate_parts(loaded, text, options["ablate"], **named)


def html(loaded: LanguageModel, text: str, options: Options) -> Any:
    """The pass as a page to look at; what it had no room for is said on stderr."""
    from foretell.insight.page.write_page import write_page

    report = write_page(loaded, text, options["html"])
    for sentence in report.cut:
        note(sentence)
    return report


MODES: dict[str, Mode] = {
    "value": Mode(value, ("value",), value_fault),
    "check": Mode(check, (), check_fault),
    "html": Mode(html, ("html",)),
    "lens": Mode(lens, ("at",)),
    "contributions": Mode(contributions, ("token", "against", "at")),
    "heads": Mode(heads, ("layer",)),
    "ablate": Mode(ablate, ("ablate", "with", "token", "at")),
}
WALK = Mode(walk)


def choose_mode(asked: Mapping[str, Any], options: Mapping[str, Any]) -> tuple[Mode, dict[str, Any]]:
    """The way that was asked for, or the walk, and the options that were given; others' options are a `UsageError`."""
    chosen = [name for name, value in asked.items() if value]
    if len(chosen) > 1:
        raise UsageError(f"{' and '.join(f'--{name}' for name in chosen)} exclude each other; give one of them")
    mode = MODES[chosen[0]] if chosen else WALK
    given = {name: value for name, value in options.items() if value is not None}
    for name in given:
        if name not in mode.options:
            goes_with = ", ".join(f"--{other}" for other in MODES if name in MODES[other].options)
            raise UsageError(f"--{name} goes with {goes_with}, and means nothing here; leave it out")
    return mode, given
