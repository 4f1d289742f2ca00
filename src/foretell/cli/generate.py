"""`foretell generate MODEL [PROMPT]`: continue a prompt."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from foretell.cli.arguments import (
    STANDARD_INPUT,
    AllowSpecial,
    FileOption,
    Flag,
    Ids,
    Json,
    ModelArgument,
    Whole,
    read_text,
)
from foretell.cli.options import MODEL_DEFAULTS, SAMPLING_DEFAULTS, Options, Sampling
from foretell.cli.prompt_batch import Items, Timings, read_prompts, write_completions
from foretell.cli.terminal import ProgressLine, note, open_model, print_json, write
from foretell.errors import UsageError

if TYPE_CHECKING:
    from foretell.inference.completion import Completer, Completion


def generate(
    model: ModelArgument,
    prompts: Annotated[
        list[str] | None, Parameter(help="One or more texts to continue; - reads one from standard input.")
    ] = None,
    /,
    *,
    file: FileOption = None,
    prompt_file: Annotated[Path | None, Parameter(help="Continue every line of a file.")] = None,
    out: Annotated[
        Path | None, Parameter(help="Write the completions to a file, as JSON Lines, each when it has ended.")
    ] = None,
    max_tokens: Annotated[
        int | None,
        Whole,
        Parameter(help="How many tokens at most; default: 200, or what still fits.", show_default=False),
    ] = None,
    n: Annotated[
        int, Whole, Parameter(name="--n", help="Continue each prompt in this many ways.", show_default=False)
    ] = 1,
    sampling: Sampling = SAMPLING_DEFAULTS,
    stop: Annotated[
        list[str] | None,
        Parameter(
            negative="",
            consume_multiple=False,
            allow_leading_hyphen=True,
            help="End before this string; may be repeated.",
        ),
    ] = None,
    context_shift: Annotated[
        bool, Flag, Parameter(name="--slide", help="When the context is full, continue from its last half.")
    ] = False,
    receipt: Annotated[bool, Flag, Parameter(help="Then show how each token was sampled.")] = False,
    speculate: Annotated[
        int | None, Whole, Parameter(help="Guess this many tokens from earlier text, and check them in one pass.")
    ] = None,
    draft: Annotated[str | None, Parameter(help="Have the tokens guessed by this smaller MODEL.")] = None,
    timings: Annotated[bool, Flag, Parameter(help="Then show the tokens per second.")] = False,
    progress: Annotated[bool, Flag, Parameter(help="Show how many prompts are done.")] = False,
    allow_special: AllowSpecial = False,
    ids: Ids = False,
    json: Json = False,
    options: Options = MODEL_DEFAULTS,
) -> None:
    """Continue a prompt.

    The prompt and its continuation appear on stdout while they are generated.
    """
    sampling.check()
    texts = read_all_prompts(prompts, file, prompt_file)
    if len(prompts or []) > 1 and not any(character.isspace() for text in texts for character in text):
        note(f"{len(texts)} prompts, each continued by itself; quote a prompt of several words")
    loaded = options.open(model, ids, allow_special=allow_special)
    drafting = None if draft is None else open_model(draft, options.device, options.dtype, ids)
    from foretell.inference.completion import make_completer, repeated
    from foretell.inference.generation_options import make_proposer, make_sampling

    stops = ["-" if text == STANDARD_INPUT else text for text in (stop or [])]
    texts = repeated(texts, n)
    completer = make_completer(loaded, texts, make_sampling(sampling.given(), loaded.tokenizer), stops, receipt)
    if context_shift:
        note(f"beyond {loaded.decoder.config.context_length} tokens the model sees only the tail of the text")
    watch = Timings(completer)
    proposer = make_proposer(loaded, speculate, drafting)
    items = watch.watch(completer.advance(max_tokens, context_shift=context_shift, proposer=proposer))
    if out is not None or prompt_file is not None:
        write_completions(completer, items, out, progress)
    elif json or len(texts) > 1:
        for completion in completed(completer, items, progress):
            print_json(completion.to_json()) if json else write(completion.prompt + completion.text + "\n")
    else:
        write_pieces(texts[0], items)
    if receipt and not (json or out or prompt_file):
        show_receipts(completer.completions())
    if timings:
        watch.show()


def read_all_prompts(prompts: list[str] | None, file: Path | None, prompt_file: Path | None) -> list[str]:
    """The prompts: arguments, the text of a file, or the lines of one."""
    if sum(source is not None and source != [] for source in (prompts, file, prompt_file)) > 1:
        raise UsageError("PROMPT, --file and --prompt-file exclude each other")
    if prompt_file is not None:
        return read_prompts(prompt_file)
    return [read_text(None, file)] if file else [read_text(prompt) for prompt in (prompts or [""])]


def completed(completer: Completer, items: Items, progress: bool) -> list[Completion]:
    """All completions in the order of the prompts."""
    with ProgressLine("prompts") if progress else nullcontext() as show:
        for done, _ in enumerate((index for index, _, has_ended in items if has_ended), start=1):
            if show is not None:
                show(done, len(completer.sequences))
    return completer.completions()


def write_pieces(prompt: str, items: Items) -> None:
    """Write a prompt, then its continuation piece by piece."""
    write(prompt, end="")
    for _, piece, _ in items:
        if piece:
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
