"""`foretell embed MODEL TEXT`: the embedding of a text, or of each line of a file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from foretell.cli.arguments import (
    STANDARD_INPUT,
    Ids,
    Json,
    ModelArgument,
    read_text,
)
from foretell.cli.options import MODEL_DEFAULTS, Options
from foretell.cli.terminal import print_json
from foretell.errors import DataError


def embed(
    model: ModelArgument,
    text: Annotated[
        str | None, Parameter(help="A text; - reads one per line of standard input.", show_default=False)
    ] = None,
    /,
    *,
    file: Annotated[Path | None, Parameter(help="Read a text per line of this UTF-8 file.", show_default=False)] = None,
    pool: Annotated[Literal["last", "mean"], Parameter(help="The last token's vector, or the mean.")] = "last",
    ids: Ids = False,
    json: Json = False,
    options: Options = MODEL_DEFAULTS,
) -> None:
    """The embedding vector of a text.

    It is the stream after the last norm. --file and standard input give one vector per line.
    """
    texts = read_texts(text, file)
    loaded = options.open(model, ids)
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
