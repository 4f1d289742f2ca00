"""`foretell next`, `score` and `embed MODEL TEXT`: questions about one text."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from foretell.cli.arguments import (
    MODEL_DEFAULTS,
    STANDARD_INPUT,
    AllowSpecial,
    FileOption,
    Flag,
    Ids,
    Json,
    ModelArgument,
    Options,
    StartToken,
    TextArgument,
    Whole,
    read_text,
)
from foretell.cli.terminal import ProgressLine, print_json, report, results, visible
from foretell.errors import DataError, UsageError

if TYPE_CHECKING:
    from rich.console import Console

    from foretell.inference.query import NextTokens, Score

BAR_WIDTH = 30
# upper bound of a token's surprise in bits, and its style
SURPRISE = ((1, "black on green"), (4, "black on cyan"), (8, "black on yellow"), (math.inf, "white on red"))
LABELS = ("below 1", "below 4", "below 8", "more")


# --- next ------------------------------------------------------------------------------------------------------------


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
    loaded = options.open(model, ids, allow_special=allow_special, start_token=start_token, texts=[text])
    from foretell.inference.query import next_tokens

    positions = list(range(len(loaded.encode_fitting(text)))) if every else [-1 if at is None else at]
    answers = next_tokens(loaded, text, top, positions)
    if json:
        print_json([answer.to_json() for answer in answers] if every else answers[0].to_json())
        return
    for answer in answers:
        show_next(answer, results())


def show_next(answer: NextTokens, console: Console) -> None:
    """Print a context and a bar for each token."""
    from rich.text import Text

    console.print(Text(tail(answer.context), style="bold"))
    largest = answer.tokens[0].probability
    width = max(7, *(len(percent(token.probability)) for token in answer.tokens))
    for token in answer.tokens:
        bar = "█" * max(1, round(BAR_WIDTH * token.probability / largest))
        line = Text(f"  {percent(token.probability):>{width}}  ").append(f"{token.text!r:<22}", style="bold cyan")
        console.print(line.append(bar, style="cyan"))


def percent(probability: float) -> str:
    """A probability in percent with two decimals; a small one in scientific notation."""
    if probability >= 0.0001 or probability == 0:
        return f"{probability:.2%}"
    return f"{100 * probability:.1e}%"


def tail(context: str, width: int = 76) -> str:
    """The end of a context on one line."""
    line = visible(context.replace("\n", "⏎"))
    return line if len(line) <= width else "…" + line[-width + 1 :]


# --- score -----------------------------------------------------------------------------------------------------------


def score(
    model: ModelArgument,
    text: TextArgument = None,
    /,
    *,
    file: FileOption = None,
    allow_special: AllowSpecial = False,
    start_token: StartToken = None,
    ids: Ids = False,
    json: Json = False,
    options: Options = MODEL_DEFAULTS,
) -> None:
    """The log-probability of a text, token by token.

    Shown is the surprise of each token in bits, -log2 of its probability; with --json `logprob`, in nats.
    Colours: below 1 bit green, below 4 cyan, below 8 yellow, above red.
    """
    text = read_text(text, file)
    loaded = options.open(model, ids, allow_special=allow_special, start_token=start_token, texts=[text])
    from foretell.inference.query import score as score_text

    result = score_text(loaded, text)
    start = "".join(loaded.tokenizer.pieces(loaded.tokenizer.start_ids))
    print_json(result.to_json()) if json else show_score(result, start)


def show_score(result: Score, start: str = "") -> None:
    """Print the surprise of each token, on its colour if there are colours, then the total; all in bits."""
    from rich.text import Text

    console = results()
    console.print("  bits  token")
    for token in result.tokens:
        bits = "" if token.logprob is None else f"{in_bits(token.logprob):.2f}"
        console.print(Text(f"{bits:>6}  ").append(repr(token.text), style=surprise_style(token.logprob)))
    if result.perplexity is None:
        console.print("a single token has no probability: the model needs a token before it")
        return
    if console.color_system and not console.no_color:  # NO_COLOR leaves a terminal its colour system
        pairs = zip(LABELS, SURPRISE, strict=True)
        console.print(Text.assemble("colours, in bits:", *((f" {label} ", style) for label, (_, style) in pairs)))
    predicted = sum(token.logprob is not None for token in result.tokens)
    total = in_bits(result.logprob)
    given = f"the start token {start!r}" if start else f"the first token {result.tokens[0].text!r}"
    console.print(
        f"{total:.2f} bits, {total / predicted:.3f} bits per token, perplexity {result.perplexity:.2f}, given {given}"
    )


def in_bits(nats: float) -> float:
    """A surprise in bits, from a loss or log-probability in nats."""
    return abs(nats / math.log(2))  # not -0.0


def surprise_style(nats: float | None) -> str:
    """The style of a token with this loss or log-probability."""
    if nats is None:
        return "dim"
    return next(style for limit, style in SURPRISE if in_bits(nats) < limit or limit == math.inf)


# --- embed -----------------------------------------------------------------------------------------------------------


def embed(
    model: ModelArgument,
    text: Annotated[
        str | None, Parameter(help="A text; - reads one per line of standard input.", show_default=False)
    ] = None,
    /,
    *,
    file: Annotated[Path | None, Parameter(help="Read a text per line of this UTF-8 file.", show_default=False)] = None,
    pool: Annotated[Literal["last", "mean"], Parameter(help="The last token's vector, or the mean.")] = "last",
    allow_special: AllowSpecial = False,
    ids: Ids = False,
    json: Json = False,
    options: Options = MODEL_DEFAULTS,
) -> None:
    """The embedding vector of a text.

    It is the stream after the last norm. --file and standard input give one vector per line.
    """
    texts = read_texts(text, file)
    loaded = options.open(model, ids, allow_special=allow_special, texts=texts)
    from foretell.inference.query import embed as embed_text

    for line in texts:
        vector = embed_text(loaded, line, pool)
        if json:
            print_json({"text": line, "embedding": vector})
        else:
            print(" ".join(f"{value:.6g}" for value in vector))


def read_texts(argument: str | None, file: Path | None = None) -> list[str]:
    """The text itself, or the non-empty lines of a file or of standard input."""
    text = read_text(argument, file)
    in_lines = file is not None or argument == STANDARD_INPUT
    lines = [line for line in (text.splitlines() if in_lines else [text]) if line.strip()]
    if not lines:
        raise DataError("there is no text to embed; give at least one line that is not empty")
    return lines


Task = Literal["text", "choice", "ending"]


def evaluate(
    model: ModelArgument,
    file: Annotated[str, Parameter(help="Texts (.txt, .jsonl, .csv, a folder, -) or questions (.jsonl, .csv).")],
    /,
    *,
    task: Annotated[
        Task | None, Parameter(help="text, choice or ending; default: by the file's fields.", show_choices=False)
    ] = None,
    stride: Annotated[
        int | None, Whole, Parameter(help="Tokens from one window to the next; default: half the context.")
    ] = None,
    text_field: Annotated[str | None, Parameter(help="The field or column with the text.")] = None,
    limit: Annotated[int | None, Parameter(help="Only the first so many texts or questions.")] = None,
    json: Json = False,
    options: Options = MODEL_DEFAULTS,
) -> None:
    """Loss, perplexity and bits per byte of texts, or accuracy at questions.

    Questions are JSON lines with query, choices and gold (choice), or context and continuation (ending); HellaSwag,
    WinoGrande and MMLU (CSV) as they are published.
    """
    from foretell.data.questions import choose_task
    from foretell.inference.query import evaluate as evaluate_file

    path = "-" if file == STANDARD_INPUT else file
    chosen = choose_task(path, task, stride, text_field, limit)  # refuses before the model is loaded
    loaded = options.open(model)
    with ProgressLine("tokens" if chosen == "text" else "texts") as progress:
        result = evaluate_file(
            loaded, path, task=chosen, stride=stride, text_field=text_field, limit=limit, progress=progress
        )
    report(result, json)
