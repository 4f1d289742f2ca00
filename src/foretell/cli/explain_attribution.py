"""What made a prediction, for `foretell explain`: one function for each way of asking."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from foretell.errors import UsageError

if TYPE_CHECKING:
    from foretell.runs.saved_model import LanguageModel


class Answer(Protocol):
    """What is printed: as text, or with --json as an object."""

    def to_json(self) -> dict[str, Any]: ...


@dataclass(frozen=True)
class Mode:
    """A way of asking, and the further options that mean something to it."""

    options: tuple[str, ...]
    answer: Callable[[LanguageModel, str, Mapping[str, Any]], Answer]


def lens(loaded: LanguageModel, text: str, options: Mapping[str, Any]) -> Answer:
    """The stream, read after every block."""
    from foretell.insight.attribution.lens import logit_lens

    return logit_lens(loaded, text, **options)


def contributions(loaded: LanguageModel, text: str, options: Mapping[str, Any]) -> Answer:
    """What each part brought to a logit."""
    from foretell.insight.attribution.contributions import contributions as contributions_to

    return contributions_to(loaded, text, **options)


def heads(loaded: LanguageModel, text: str, options: Mapping[str, Any]) -> Answer:
    """Where the heads look: numbers for all, or the patterns of one layer."""
    from foretell.insight.attribution.heads import head_patterns

    patterns = head_patterns(loaded, text)
    return patterns.layer(options["layer"]) if options else patterns


def ablate(loaded: LanguageModel, text: str, options: Mapping[str, Any]) -> Answer:
    """What the prediction is without a part."""
    from foretell.insight.attribution.ablation import ablate as ablate_parts

    named = {"fill" if name == "with" else name: value for name, value in options.items() if name != "ablate"}
    return ablate_parts(loaded, text, options["ablate"], **named)


MODES: dict[str, Mode] = {
    "lens": Mode(("at",), lens),
    "contributions": Mode(("token", "against", "at"), contributions),
    "heads": Mode(("layer",), heads),
    "ablate": Mode(("ablate", "with", "token", "at"), ablate),
}


def choose_mode(asked: Mapping[str, Any], options: Mapping[str, Any]) -> tuple[Mode, dict[str, Any]]:
    """The one way that was asked for, and the options that were given; options of another way are a `UsageError`."""
    chosen = [name for name, value in asked.items() if value]
    if len(chosen) != 1:
        names = ", ".join(f"--{name}" for name in asked)
        raise UsageError(f"give one of {names}" + (f", not {' and '.join(f'--{n}' for n in chosen)}" if chosen else ""))
    mode = MODES[chosen[0]]
    given = {name: value for name, value in options.items() if value is not None}
    for name in given:
        if name not in mode.options:
            raise UsageError(f"--{name} means nothing to --{chosen[0]}; leave it out")
    return mode, given
