"""`foretell score MODEL TEXT`: the log-probability of a text, token by token."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from foretell.cli.arguments import Device, Dtype, FileOption, Json, ModelArgument, TextArgument, read_text
from foretell.cli.terminal import open_model, print_json, results

if TYPE_CHECKING:
    from rich.text import Text

    from foretell.inference.query import Score, ScoredToken

# upper bound of a token's surprise in bits, and its style
SURPRISE = ((1, "black on green"), (4, "black on cyan"), (8, "black on yellow"), (math.inf, "white on red"))


def score(
    model: ModelArgument,
    text: TextArgument = None,
    /,
    *,
    file: FileOption = None,
    json: Json = False,
    device: Device = "auto",
    dtype: Dtype = "auto",
) -> None:
    """The log-probability of a text, token by token.

    Colours show the surprise of each token in bits: below 1 green, below 4 cyan, below 8 yellow, above red.
    """
    text = read_text(text, file)
    loaded = open_model(model, device, dtype)
    from foretell.inference.query import score as score_text

    result = score_text(loaded, text)
    start = "".join(loaded.tokenizer.pieces(loaded.tokenizer.start_ids))
    print_json(result.to_json()) if json else show(result, start)


def show(result: Score, start: str = "") -> None:
    """Print the text coloured by surprise (without colours: a table), then its total."""
    from rich.text import Text

    console = results()
    if console.color_system and not console.no_color:  # NO_COLOR leaves a terminal its colour system
        console.print(Text.assemble(*(coloured(token) for token in result.tokens)))
        console.print(Text.assemble("surprise in bits: ", *legend()))
    else:
        for token in result.tokens:
            bits = "      " if token.logprob is None else f"{-token.logprob / math.log(2):6.2f}"
            console.print(f"{bits}  {token.text!r}")
    if result.perplexity is None:
        console.print("a single token has no probability: the model needs a token before it")
        return
    given = f"the start token {start!r}" if start else f"the first token {result.tokens[0].text!r}"
    console.print(f"log-probability {result.logprob:.3f} nats, perplexity {result.perplexity:.2f}, given {given}")


def coloured(token: ScoredToken) -> tuple[str, str]:
    """A token's text and its style."""
    if token.logprob is None:
        return token.text, "dim"
    bits = -token.logprob / math.log(2)
    return token.text, next(style for limit, style in SURPRISE if bits < limit or limit == math.inf)


def legend() -> list[tuple[str, str] | str | Text]:
    """The colours and their bounds."""
    labels = ("below 1", "below 4", "below 8", "more")
    pairs = [(f" {label} ", style) for label, (_, style) in zip(labels, SURPRISE, strict=True)]
    return [part for pair in pairs for part in (pair, " ")]
