"""`foretell score MODEL TEXT`: the log-probability of a text, token by token."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from foretell.cli.arguments import (
    AllowSpecial,
    FileOption,
    Ids,
    Json,
    ModelArgument,
    StartToken,
    TextArgument,
    read_text,
)
from foretell.cli.options import MODEL_DEFAULTS, Options
from foretell.cli.terminal import print_json, results

if TYPE_CHECKING:
    from foretell.inference.query import Score, ScoredToken

# upper bound of a token's surprise in bits, and its style
SURPRISE = ((1, "black on green"), (4, "black on cyan"), (8, "black on yellow"), (math.inf, "white on red"))
LABELS = ("below 1", "below 4", "below 8", "more")


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
    loaded = options.open(model, ids, allow_special=allow_special, start_token=start_token)
    from foretell.inference.query import score as score_text

    result = score_text(loaded, text)
    start = "".join(loaded.tokenizer.pieces(loaded.tokenizer.start_ids))
    print_json(result.to_json()) if json else show(result, start)


def show(result: Score, start: str = "") -> None:
    """Print the surprise of each token, on its colour where there are colours, then the total; all in bits."""
    from rich.text import Text

    console = results()
    console.print("  bits  token")
    for token in result.tokens:
        bits = "" if token.logprob is None else f"{in_bits(token.logprob):.2f}"
        console.print(Text(f"{bits:>6}  ").append(repr(token.text), style=style_of(token)))
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


def in_bits(logprob: float) -> float:
    """The surprise in bits, from a log-probability in nats."""
    return abs(logprob / math.log(2))  # not -0.0


def style_of(token: ScoredToken) -> str:
    """The style of a token's surprise."""
    if token.logprob is None:
        return "dim"
    bits = in_bits(token.logprob)
    return next(style for limit, style in SURPRISE if bits < limit or limit == math.inf)
