"""`foretell next MODEL TEXT`: the most likely next tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from foretell.cli.arguments import (
    AllowSpecial,
    FileOption,
    Flag,
    Ids,
    Json,
    ModelArgument,
    StartToken,
    TextArgument,
    Whole,
    read_text,
)
from foretell.cli.options import MODEL_DEFAULTS, Options
from foretell.cli.terminal import print_json, results, visible
from foretell.errors import UsageError

if TYPE_CHECKING:
    from rich.console import Console

    from foretell.inference.query import NextTokens

BAR_WIDTH = 30


def next_verb(
    model: ModelArgument,
    text: TextArgument = None,
    /,
    *,
    file: FileOption = None,
    top: Annotated[int, Whole, Parameter(help="How many tokens to show.")] = 5,
    at: Annotated[int | None, Whole, Parameter(help="After this token, 0 being the first.", show_default=False)] = None,
    every: Annotated[bool, Flag, Parameter(help="After each token of the text.")] = False,
    allow_special: AllowSpecial = False,
    start_token: StartToken = None,
    ids: Ids = False,
    json: Json = False,
    options: Options = MODEL_DEFAULTS,
) -> None:
    """The most likely next tokens with their probabilities.

    The printed context is the text that the distribution really follows.
    """
    if at is not None and every:
        raise UsageError("--at and --every exclude each other; give one of them")
    text = read_text(text, file)
    loaded = options.open(model, ids, allow_special=allow_special, start_token=start_token)
    from foretell.inference.query import next_tokens

    positions = list(range(len(loaded.encode_fitting(text)))) if every else [-1 if at is None else at]
    answers = next_tokens(loaded, text, top, positions)
    if json:
        print_json([answer.to_json() for answer in answers] if every else answers[0].to_json())
        return
    for answer in answers:
        show(answer, results())


def show(answer: NextTokens, console: Console) -> None:
    """Print a context and a bar for each token."""
    from rich.text import Text

    console.print(Text(tail(answer.context), style="bold"))
    largest = answer.tokens[0].probability
    for token in answer.tokens:
        bar = "█" * max(1, round(BAR_WIDTH * token.probability / largest))
        line = Text(f"  {percent(token.probability):>7}  ").append(f"{token.text!r:<22}", style="bold cyan")
        console.print(line.append(bar, style="cyan"))


def percent(probability: float) -> str:
    """A probability in percent with two digits after the point, or with two that are not 0 where it is smaller."""
    if probability >= 0.0001 or probability == 0:
        return f"{probability:.2%}"
    return f"{100 * probability:.1e}%"


def tail(context: str, width: int = 76) -> str:
    """The end of a context on one line."""
    line = visible(context.replace("\n", "⏎"))
    return line if len(line) <= width else "…" + line[-width + 1 :]
