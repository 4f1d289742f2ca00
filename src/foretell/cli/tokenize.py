"""`foretell tokenize MODEL TEXT`: the tokens of a text. `foretell tokenizer train`: a tokenizer from text."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from foretell.cli import arguments
from foretell.cli.terminal import note, print_json, results
from foretell.config.options import help_of
from foretell.errors import OutputError, counted
from foretell.pretraining.options import TextOptions


def tokenize(
    model: Annotated[str, Parameter(help="A model, or a tokenizer's file or folder.")],
    text: arguments.Text = None,
    /,
    *,
    file: arguments.File = None,
    allow_special: arguments.AllowSpecial = False,
    json: arguments.Json = False,
) -> None:
    """The tokens that a model reads for a text.

    The first is the tokenizer's start token, such as Llama's <s>, if it has one. Without --allow-special, text never
    becomes a special token.
    """
    text = arguments.read_text(text, file)
    from foretell.finding import find_tokenizer
    from foretell.text.tokenizer import ALLOW_SPECIAL

    tokenizer = find_tokenizer(model)
    for line in tokenizer.notes:
        note(line)
    if not allow_special:
        tokenizer.note_spelled([text], ALLOW_SPECIAL)
    own = tokenizer.encode(text, allow_special=allow_special)
    ids = tokenizer.with_start_ids(own)
    if (back := tokenizer.decode(own)) != text:
        note(f"these tokens decode to a different text: {back!r}")
    if json:
        print_json({"ids": ids, "pieces": tokenizer.pieces(ids)})
        return
    size = len(text.encode())
    start = " after the start token" if len(ids) > len(own) else ""
    total = f"{counted(len(own), 'token')} for {counted(size, 'byte')}{start}, {size / max(1, len(own)):.2f} bytes each"
    rows = (
        f"{position:>5}  {token:>6}  {piece:<20}  {tokenizer.text_of(token)!r}"
        for position, (token, piece) in enumerate(zip(ids, tokenizer.pieces(ids), strict=True))
    )
    results().print("\n".join([*rows, total]))  # in one call, because each call of rich takes long


def train_tokenizer(
    *data: arguments.Data,
    kind: Annotated[Literal["characters", "words", "bytes", "bpe"], Parameter(help="What a token is.")] = "bpe",
    vocab_size: Annotated[int | None, Parameter(help="Number of entries, for bpe and words.")] = None,
    split: Annotated[
        Literal["gpt2", "qwen2"] | None, Parameter(help="How bpe cuts text into words first (default: qwen2).")
    ] = None,
    text_field: Annotated[str | None, Parameter(help=help_of(TextOptions, "text_field"))] = None,
    special: Annotated[list[str] | None, Parameter(help=help_of(TextOptions, "special"))] = None,
    start_token: Annotated[str | None, Parameter(help="Put this special token before every text.")] = None,
    out: Annotated[Path, arguments.OUTPUT, Parameter(help="The folder for tokenizer.json.")],
    json: arguments.Json = False,
) -> None:
    """Make a tokenizer from text.

    Without data, the text is the language reference inside Python.
    """
    note(f"reading {', '.join(arguments.names_of_data(data))}")
    from foretell.config.training import DataConfig, TokenizerConfig
    from foretell.pretraining.sources import make_source
    from foretell.pretraining.tokens import make_tokenizer

    target = out / "tokenizer.json"
    if target.exists():
        raise OutputError(f"{target} exists; give another --out")
    everything = DataConfig(text_field=text_field, validation_fraction=0.0, special=tuple(special or ()))
    config = TokenizerConfig(kind=kind, vocab_size=vocab_size, split=split, start_token=start_token)
    tokenizer = make_tokenizer(make_source(arguments.paths_of(data), everything), config, everything)
    try:
        out.mkdir(parents=True, exist_ok=True)
        tokenizer.save(target)
    except OSError as error:
        raise OutputError(f"could not write {target}: {error.strerror}; give another --out") from None
    facts = {"path": str(target), "kind": kind, "vocab_size": tokenizer.vocab_size}
    print_json(facts) if json else results().print(f"{target}: {tokenizer.vocab_size:,} tokens of kind {kind}")
