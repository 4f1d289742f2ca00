"""`foretell tokenize MODEL TEXT`: the tokens of a text."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from foretell.cli.arguments import AllowSpecial, FileOption, Json, TextArgument, read_text
from foretell.cli.terminal import note, print_json, results


def tokenize(
    model: Annotated[str, Parameter(help="A model, or a tokenizer's file or folder.")],
    text: TextArgument = None,
    /,
    *,
    file: FileOption = None,
    allow_special: AllowSpecial = False,
    json: Json = False,
) -> None:
    """The tokens that a model reads for a text.

    The first is the tokenizer's start token, such as Llama's <s>, if it has one. Without --allow-special, text never
    becomes a special token.
    """
    text = read_text(text, file)
    from foretell.finding import find_tokenizer

    tokenizer = find_tokenizer(model)
    for line in tokenizer.notes:
        note(line)
    ids = tokenizer.encode_input(text, allow_special=allow_special)
    own = ids[len(tokenizer.start_ids) :]
    if (back := tokenizer.decode(own)) != text:
        note(f"these tokens decode to a different text: {back!r}")
    if json:
        print_json({"ids": ids, "pieces": tokenizer.pieces(ids)})
        return
    console = results()
    for position, (token, piece) in enumerate(zip(ids, tokenizer.pieces(ids), strict=True)):
        console.print(f"{position:>5}  {token:>6}  {piece:<20}  {tokenizer.text_of(token)!r}")
    size = len(text.encode())
    start = " after the start token" if tokenizer.start_ids else ""
    console.print(f"{len(own)} tokens for {size} bytes{start}, {size / max(1, len(own)):.2f} bytes each")
