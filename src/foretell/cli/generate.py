"""`foretell generate MODEL [PROMPT]`: continue a prompt."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from foretell.cli.arguments import (
    STANDARD_INPUT,
    AllowSpecial,
    Device,
    Dtype,
    FileOption,
    Flag,
    Ids,
    Json,
    ModelArgument,
    Verify,
    Whole,
    read_text,
)
from foretell.cli.terminal import note, open_model, print_json, write
from foretell.errors import UsageError

if TYPE_CHECKING:
    from foretell.inference.completion import Completion


def generate(
    model: ModelArgument,
    prompts: Annotated[
        list[str] | None, Parameter(help="One or more texts to continue; - reads one from standard input.")
    ] = None,
    /,
    *,
    file: FileOption = None,
    max_tokens: Annotated[
        int | None,
        Whole,
        Parameter(help="How many tokens at most; default: 200, or what still fits.", show_default=False),
    ] = None,
    temperature: Annotated[
        float | None, Parameter(help="0 always takes the most likely token; default: 0.8.", show_default=False)
    ] = None,
    top_k: Annotated[int | None, Whole, Parameter(help="Keep the k most likely tokens.", show_default=False)] = None,
    top_p: Annotated[
        float | None, Parameter(help="Keep this much probability; default: 0.95.", show_default=False)
    ] = None,
    min_p: Annotated[
        float | None,
        Parameter(help="Drop what is less likely than this share of the most likely; default: 0.", show_default=False),
    ] = None,
    repetition_penalty: Annotated[
        float | None,
        Parameter(help="Above 1, tokens that occurred become less likely; default: 1.", show_default=False),
    ] = None,
    stop: Annotated[
        list[str] | None,
        Parameter(
            negative="",
            consume_multiple=False,
            allow_leading_hyphen=True,
            help="End before this string; may be repeated.",
        ),
    ] = None,
    seed: Annotated[
        int | None,
        Whole,
        Parameter(help="The same seed and prompts give the same text; default: 1.", show_default=False),
    ] = None,
    context_shift: Annotated[
        bool, Flag, Parameter(name="--slide", help="When the context is full, continue from its last half.")
    ] = False,
    receipt: Annotated[bool, Flag, Parameter(help="Then show how each token was sampled.")] = False,
    allow_special: AllowSpecial = False,
    ids: Ids = False,
    json: Json = False,
    device: Device = "auto",
    dtype: Dtype = "auto",
    verify: Verify = False,
) -> None:
    """Continue a prompt.

    The prompt and its continuation appear on stdout while they are generated.
    """
    from foretell.config import SamplingConfig

    options = {
        "temperature": temperature,
        "top_k": top_k,
        "top_p": top_p,
        "min_p": min_p,
        "repetition_penalty": repetition_penalty,
        "seed": seed,
    }
    sampling = SamplingConfig(**{name: value for name, value in options.items() if value is not None})
    if prompts and file:
        raise UsageError("PROMPT and --file exclude each other")
    texts = [read_text(None, file)] if file else [read_text(prompt) for prompt in (prompts or [""])]
    if len(texts) > 1 and not any(character.isspace() for text in texts for character in text):
        note(f"{len(texts)} prompts, each continued by itself; quote a prompt of several words")
    loaded = open_model(model, device, dtype, ids, allow_special=allow_special, verify=verify)
    from foretell.inference.completion import make_completer

    stops = ["-" if text == STANDARD_INPUT else text for text in (stop or [])]
    completer = make_completer(loaded, texts, sampling, stops, receipt)
    if context_shift:
        note(f"beyond {loaded.decoder.config.context_length} tokens the model sees only the tail of the text")
    pieces = completer.stream(max_tokens, context_shift=context_shift)
    if json or len(texts) > 1:
        for _ in pieces:
            pass
        for completion in completer.completions():
            print_json(completion.to_json()) if json else write(completion.prompt + completion.text + "\n")
    else:
        write_pieces(texts[0], pieces)
    if receipt and not json:
        show_receipts(completer.completions())


def write_pieces(prompt: str, pieces: Iterator[tuple[int, str]]) -> None:
    """Write a prompt, then its continuation piece by piece."""
    write(prompt, end="")
    for _, piece in pieces:
        write(piece, end="")
    write("")


def show_receipts(completions: list[Completion]) -> None:
    """Replay each receipt and print how each token was sampled."""
    from foretell.insight.wording import ending
    from foretell.typesetting.document import DocumentSection
    from foretell.typesetting.text import document_text

    for completion in completions:
        receipts = completion.receipts or []
        for receipt in receipts:
            receipt.check()
        write("")
        count = f"{len(receipts)} token" + ("" if len(receipts) == 1 else "s")
        title = f"{count} after {ending(completion.prompt, 30)}, each replayed from its receipt"
        write(document_text(DocumentSection(title, [receipt.document() for receipt in receipts])))
