"""`foretell tokenizer train DATA... --kind bpe --out DIR`: make a tokenizer from text."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from foretell.cli.arguments import DataArgument, Json, Special, Whole, describe_data, text_source
from foretell.cli.terminal import note, print_json, results
from foretell.errors import OutputError


def train(
    *data: DataArgument,
    kind: Annotated[Literal["characters", "words", "bytes", "bpe"], Parameter(help="What a token is.")] = "bpe",
    vocab_size: Annotated[
        int | None, Whole, Parameter(help="Number of entries, for bpe and words.", show_default=False)
    ] = None,
    split: Annotated[
        Literal["gpt2", "qwen2"] | None,
        Parameter(help="How bpe cuts text into words first; default: qwen2.", show_default=False),
    ] = None,
    text_field: Annotated[str | None, Parameter(help="The field or column with the text.", show_default=False)] = None,
    special: Special = None,
    start_token: Annotated[
        str | None, Parameter(help="Put this special token before every text.", show_default=False)
    ] = None,
    out: Annotated[Path, Parameter(help="The folder for tokenizer.json.")],
    json: Json = False,
) -> None:
    """Make a tokenizer from text.

    Without data, the text is the language reference inside Python.
    """
    note(f"reading {describe_data(data)}")
    from foretell.config import DataConfig, TokenizerConfig
    from foretell.pretraining.tokens import make_tokenizer

    target = out / "tokenizer.json"
    if target.exists():
        raise OutputError(f"{target} exists; give another --out")
    everything = DataConfig(text_field=text_field, validation_fraction=0.0, special=tuple(special or ()))
    config = TokenizerConfig(kind=kind, vocab_size=vocab_size, split=split, start_token=start_token)
    tokenizer = make_tokenizer(text_source(data, everything), config, everything)
    try:
        out.mkdir(parents=True, exist_ok=True)
        tokenizer.save(target)
    except OSError as error:
        raise OutputError(f"could not write {target}: {error.strerror}; give another --out") from None
    if json:
        print_json({"path": str(target), "kind": kind, "vocab_size": tokenizer.vocab_size})
    else:
        results().print(f"{target}: {tokenizer.vocab_size:,} tokens of kind {kind}")
