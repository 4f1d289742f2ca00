"""`foretell generate MODEL [PROMPT]`: continue a prompt."""

from __future__ import annotations

import json as json_module
import time
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from foretell.cli import arguments
from foretell.cli.sampling import SAMPLING_DEFAULTS, Sampling
from foretell.cli.terminal import ProgressLine, messages, note, notes_after, open_model, print_json, show_tokens, write
from foretell.errors import ForetellError, OutputError, UsageError, check_count, counted

if TYPE_CHECKING:
    from foretell.inference.completion import Completer, Completion

Items = Iterator[tuple[int, str, bool]]  # from `Completer.advance`


def generate(
    model: arguments.Model,
    prompts: Annotated[
        list[str] | None, Parameter(help="One or more texts to continue; - reads one from standard input.")
    ] = None,
    /,
    *,
    file: arguments.File = None,
    prompt_file: Annotated[Path | None, Parameter(help="Continue every line of this UTF-8 file.")] = None,
    out: Annotated[
        arguments.TextOutput,
        Parameter(help="Write the completions to a file, or -, as JSON Lines, each when it has ended."),
    ] = None,
    overwrite: arguments.Overwrite = False,
    max_tokens: Annotated[
        int | None,
        arguments.whole(
            "The largest number of new tokens (default: 200, or what still fits).", validator=arguments.at_least_zero
        ),
    ] = None,
    n: Annotated[int, arguments.whole("Number of continuations per prompt.", name="--n", show_default=False)] = 1,
    sampling: Sampling = SAMPLING_DEFAULTS,
    stop: Annotated[
        list[str] | None,
        Parameter(consume_multiple=False, allow_leading_hyphen=True, help="End before this string; may be repeated."),
    ] = None,
    slide: Annotated[bool, Parameter(help="When the context is full, continue from its last half.")] = False,
    receipt: Annotated[bool, Parameter(help="Show how each token was sampled, after the text.")] = False,
    speculate: Annotated[
        int | None, arguments.whole("Guess this many tokens from earlier text, and check them in one pass.")
    ] = None,
    draft: Annotated[str | None, Parameter(help="Guess tokens with this smaller MODEL.")] = None,
    timings: Annotated[bool, Parameter(help="Show the tokens per second, after the text.")] = False,
    progress: Annotated[bool, Parameter(help="Show how many prompts are done.")] = False,
    allow_special: arguments.AllowSpecial = False,
    ids: arguments.Ids = False,
    json: arguments.Json = False,
    options: arguments.Options = arguments.MODEL_DEFAULTS,
) -> None:
    """Continue a prompt.

    The prompt and its continuation appear on stdout while they are generated.
    """
    from foretell.files import check_target
    from foretell.text.streaming import StopStrings

    check_count("n", n)
    sampling.check()
    is_file = out is not None and out != arguments.STANDARD_OUTPUT
    if is_file:
        check_target(out, overwrite=overwrite)
    stops = ["-" if text == arguments.STANDARD_INPUT else text for text in (stop or [])]
    StopStrings(stops)  # refuses an empty one
    numbered = read_all_prompts(prompts, file, prompt_file)
    texts = [*numbered.values()]
    if len(prompts or []) > 1 and not any(character.isspace() for text in texts for character in text):
        note(f"{len(texts)} prompts, each continued by itself; quote a prompt of several words")
    shown = texts[0] if len(texts) == 1 and not (json or out or prompt_file) else None
    if progress and n == 1 and shown is not None:
        raise UsageError("--progress counts prompts; one prompt is shown while it is continued")
    if shown is not None and not ids:
        show_tokens(model, shown, allow_special)
    loaded = open_model(model, ids=ids, allow_special=allow_special, texts=texts, **options.keywords())
    drafting = None if draft is None else open_model(draft, device=options.device, dtype=options.dtype, ids=ids)
    from foretell.generation.sequence import NoRoomError
    from foretell.inference.completion import make_completer, make_proposer, make_sampling, repeated

    texts = repeated(texts, n)
    completer = make_completer(loaded, texts, make_sampling(sampling.given(), loaded.tokenizer), stops, receipt)
    if slide:
        note(f"beyond {loaded.decoder.config.context_length} tokens the model sees only the tail of the text")
    watch = Timings(completer)
    proposer = make_proposer(loaded, speculate, drafting)
    try:
        items = watch.watch(completer.advance(max_tokens, slide=slide, proposer=proposer))
    except NoRoomError as error:
        index = completer.lengths.index(error.prompt_tokens) // n
        raise error.at(f"line {[*numbered][index]}") if prompt_file else error from None
    if out is not None or prompt_file is not None:
        write_completions(completer, items, n, out if is_file else None, progress)
    elif json or len(texts) > 1:
        for _ in ended(completer, items, progress):
            pass
        for completion in completer.completions():
            print_json(completion.to_json()) if json else write(completion.prompt + completion.text + "\n")
    else:
        write_pieces(texts[0], items)
        if not completer.continuations[0].text:
            note(f"the continuation is empty; it ended with: {completer.completion(0).finish_reason}")
    if receipt and not (json or out or prompt_file):
        show_receipts(completer.completions())
    if timings:
        watch.show()


def read_all_prompts(prompts: list[str] | None, file: Path | None, prompt_file: Path | None) -> dict[int, str]:
    """The prompts by number: arguments, the text of a file, or the nonblank lines of a file."""
    if sum(source is not None and source != [] for source in (prompts, file, prompt_file)) > 1:
        raise UsageError("PROMPT, --file and --prompt-file exclude each other")
    if prompt_file is None:
        return dict(enumerate(arguments.read_text(None if file else prompt, file) for prompt in (prompts or [""])))
    return arguments.lines_of(
        arguments.read_named(prompt_file, "--prompt-file"),
        f"--prompt-file {prompt_file} has no prompt; write one per line",
    )


class Timings:
    """The duration of a generation: until the first token, and per token after that."""

    def __init__(self, completer: Completer):
        self.completer, self.started, self.first, self.written = completer, time.perf_counter(), 0.0, 0

    def watch(self, items: Items) -> Items:
        """Pass the items through, count their tokens, and record the time of the first one."""
        for item in items:
            self.first = self.first or time.perf_counter()
            self.written += bool(self.completer.continuation(item[0]).sequence.generated)
            yield item

    def show(self) -> None:
        now, read, written = time.perf_counter(), sum(self.completer.lengths), self.written
        line = f"{counted(read, 'prompt token')}; {counted(written, 'new token')} in {now - self.started:.2f} s"
        if self.first and written > 1:
            rate = (written - 1) / (now - self.first)
            line += f", the first after {self.first - self.started:.2f} s, then {rate:,.1f} tokens/s"
        messages().print(line, style="dim")


def ended(completer: Completer, items: Items, progress: bool) -> Iterator[int]:
    """Yield the index of each continuation when it ends."""
    from foretell.generation.sequence import rules_of

    count, done, tokens = len(completer.prompts), 0, 0
    with ProgressLine("texts") if progress else nullcontext() as show:
        for index, _, has_ended in items:
            sequence = completer.continuation(index).sequence
            limit = rules_of(sequence).max_tokens or 1
            tokens += 1
            if has_ended:
                yield index
                done, tokens = done + 1, tokens + limit - len(sequence.generated)
            if show is not None:
                show(done, count, tokens / (count * limit))


def write_completions(completer: Completer, items: Items, n: int, out: Path | None, progress: bool) -> None:
    """Write each completion as a line of JSON when it ends, to a file, which is checked before, or to stdout."""

    def made_lines() -> Iterator[dict[str, Any]]:
        for index in ended(completer, items, progress):
            yield {"index": index // n, "continuation": index % n, **completer.completion(index).to_json()}
            completer.forget(index)

    lines = made_lines()
    if out is None:
        for line in lines:
            print_json(line)
        return
    target = out.resolve()
    try:
        with target.open("w", encoding="utf-8") as file:
            for line in lines:
                print(json_module.dumps(line, ensure_ascii=False), file=file, flush=True)
    except OSError as error:
        if not target.stat().st_size:
            target.unlink()
        raise OutputError(f"could not write {out}: {error.strerror}") from None


def write_pieces(prompt: str, items: Items) -> None:
    """Write a prompt, then its continuation piece by piece."""
    with notes_after():
        write(prompt, end="")
        try:
            for _, piece, _ in items:
                if piece:
                    write(piece, end="")
        except ForetellError:
            write("")  # the error has its own line
            raise
        write("")


def show_receipts(completions: list[Completion]) -> None:
    """Replay each receipt and print how each token was sampled."""
    from foretell.typesetting.document import DocumentSection, ending
    from foretell.typesetting.text import document_text

    for completion in completions:
        receipts = completion.receipts or []
        for receipt in receipts:
            receipt.check()
        write("")
        count = counted(len(receipts), "token")
        title = f"{count} after {ending(completion.prompt, 30)}, each replayed from its receipt"
        write(document_text(DocumentSection(title, [receipt.document() for receipt in receipts])))
