"""`foretell embed MODEL TEXT|FILE`: the embedding of a text, or of each line of a file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from foretell.cli.arguments import Device, Dtype, Json, ModelArgument, read_text
from foretell.cli.terminal import note, open_model, print_json
from foretell.errors import DataError


def embed(
    model: ModelArgument,
    text: Annotated[str, Parameter(help="A text, a file with one text per line, or -.")],
    /,
    *,
    pool: Annotated[Literal["last", "mean"], Parameter(help="The last token's vector, or the mean.")] = "last",
    json: Json = False,
    device: Device = "auto",
    dtype: Dtype = "auto",
) -> None:
    """The embedding vector of a text.

    It is the stream after the last norm. A file or standard input gives one vector per line.
    """
    texts = read_texts(text)
    loaded = open_model(model, device, dtype)
    from foretell.inference.query import embed as embed_text

    for line in texts:
        vector = embed_text(loaded, line, pool)
        if json:
            print_json({"text": line, "embedding": vector})
        else:
            print(" ".join(f"{value:.6g}" for value in vector))


def read_texts(argument: str) -> list[str]:
    """The text itself, or the non-empty lines of a file or of standard input."""
    path = Path(argument)
    if is_file(path):
        note(f"one vector per line of {argument}")
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except UnicodeDecodeError as error:
            raise DataError(
                f"{argument} is not UTF-8: byte {error.start} is {error.object[error.start]:#04x}"
            ) from None
    else:
        text = read_text(argument)
        lines = [argument] if text == argument else text.splitlines()
    lines = [line for line in lines if line.strip()]
    if not lines:
        raise DataError("there is no text to embed; give at least one line that is not empty")
    return lines


def is_file(path: Path) -> bool:
    """True for an existing file; a text too long for a file name is not one."""
    try:
        return path.is_file()
    except OSError:
        return False
