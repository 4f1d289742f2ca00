"""`foretell generate MODEL [PROMPT]`: continue a prompt."""

from __future__ import annotations

import json
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
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


@dataclass(frozen=True)
class GenerateOptions:
    """The options of `foretell generate`, besides the model's."""

    file: arguments.File = None
    prompt_file: Annotated[Path | None, Parameter(help="Continue every line of this UTF-8 file.")] = None
    out: Annotated[
        arguments.TextOutput,
        Parameter(help="Write the completions to a file, or -, as JSON Lines, each when it has ended."),
    ] = None
    overwrite: arguments.Overwrite = False
    max_tokens: Annotated[
        int | None,
        Parameter(
            help="The largest number of new tokens (default: 200, or what still fits).",
            validator=arguments.at_least_zero,
        ),
    ] = None
    n: Annotated[int, Parameter(help="Number of continuations per prompt.", name="--n", show_default=False)] = 1
    sampling: Sampling = SAMPLING_DEFAULTS
    stop: Annotated[
        list[str] | None,
        Parameter(consume_multiple=False, allow_leading_hyphen=True, help="End before this string; may be repeated."),
    ] = None
    slide: Annotated[bool, Parameter(help="When the context is full, continue from its last half.")] = False
    receipt: Annotated[bool, Parameter(help="Show how each token was sampled, after the text.")] = False
    speculate: Annotated[
        int | None, Parameter(help="Guess this many tokens from earlier text, and check them in one pass.")
    ] = None
    draft: Annotated[str | None, Parameter(help="Guess tokens with this smaller MODEL.")] = None
    timings: Annotated[bool, Parameter(help="Show the tokens per second, after the text.")] = False
    progress: Annotated[bool, Parameter(help="Show how many prompts are done.")] = False
    allow_special: arguments.AllowSpecial = False
    ids: arguments.Ids = False
    json: arguments.Json = False

    @property
    def stops(self) -> list[str]:
        return ["-" if text == arguments.STANDARD_INPUT else text for text in self.stop or []]

    @property
    def is_text(self) -> bool:
        """True if the result is text to read, not JSON."""
        return not (self.json or self.out or self.prompt_file)

    def check(self) -> None:
        """Refuse what can be refused before texts are read and a model is loaded."""
        from foretell.storage.files import check_target
        from foretell.text.streaming import StopStrings

        check_count("n", self.n)
        self.sampling.check()
        if self.out is not None and self.out != arguments.STANDARD_OUTPUT:
            check_target(self.out, overwrite=self.overwrite)
        StopStrings(self.stops)  # refuses an empty one

    def read_prompts(self, given: list[str]) -> dict[int, str]:
        """The prompts by number: arguments, the text of a file, or the nonblank lines of a file."""
        if sum(map(bool, (given, self.file, self.prompt_file))) > 1:
            raise UsageError("PROMPT, --file and --prompt-file exclude each other")
        if self.prompt_file is not None:
            return arguments.lines_of(
                arguments.read_named(self.prompt_file, "--prompt-file"),
                f"--prompt-file {self.prompt_file} has no prompt; write one per line",
            )
        texts = [arguments.read_text(None if self.file else text, self.file) for text in given or [""]]
        if len(given) > 1 and not any(character.isspace() for text in texts for character in text):
            note(f"{len(texts)} prompts, each continued by itself; quote a prompt of several words")
        return dict(enumerate(texts))

    def writer(self, completer: Completer) -> Writer:
        """The form of the result."""
        if self.out is not None or self.prompt_file is not None:
            return JsonLines(completer, self)
        if self.json or len(completer.prompts) > 1:
            return WholeTexts(completer, self)
        return Pieces(completer, self)


GENERATE_DEFAULTS = GenerateOptions()


def generate(
    model: arguments.Model,
    prompts: Annotated[
        list[str] | None, Parameter(help="One or more texts to continue; - reads one from standard input.")
    ] = None,
    /,
    *,
    generation: Annotated[GenerateOptions, Parameter(name="*")] = GENERATE_DEFAULTS,
    options: arguments.Options = arguments.MODEL_DEFAULTS,
) -> None:
    """Continue a prompt.

    The prompt and its continuation appear on stdout while they are generated.
    """
    generation.check()
    numbered = generation.read_prompts(prompts or [])
    texts = [*numbered.values()]
    if len(texts) == 1 and generation.is_text:
        if generation.progress and generation.n == 1:
            raise UsageError("--progress counts prompts; one prompt is shown while it is continued")
        if not generation.ids:
            show_tokens(model, texts[0], generation.allow_special)
    loaded = open_model(model, ids=generation.ids, allow_special=generation.allow_special, texts=texts, **vars(options))
    drafting = None
    if generation.draft is not None:
        drafting = open_model(generation.draft, device=options.device, dtype=options.dtype, ids=generation.ids)
    from foretell.generation.sequence import NoRoomError
    from foretell.inference.completion import make_completer, make_proposer, make_sampling, repeated

    sampling = make_sampling(generation.sampling.given(), loaded.tokenizer)
    completer = make_completer(loaded, repeated(texts, generation.n), sampling, generation.stops, generation.receipt)
    if generation.slide:
        note(f"beyond {loaded.decoder.config.context_length} tokens the model sees only the tail of the text")
    watch, proposer = Timings(completer), make_proposer(loaded, generation.speculate, drafting)
    try:
        items = watch.watch(completer.advance(generation.max_tokens, slide=generation.slide, proposer=proposer))
    except NoRoomError as error:
        index = completer.lengths.index(error.prompt_tokens) // generation.n
        raise error.at(f"line {[*numbered][index]}") if generation.prompt_file else error from None
    generation.writer(completer).write(items)
    if generation.receipt and generation.is_text:
        show_receipts(completer.completions())
    if generation.timings:
        watch.show()


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


class Writer(ABC):
    """Writes the completions of a completer."""

    def __init__(self, completer: Completer, options: GenerateOptions):
        self.completer, self.options = completer, options

    @abstractmethod
    def write(self, items: Items) -> None:
        """Generate the completions, and write them."""

    def ended(self, items: Items) -> Iterator[int]:
        """Yield the index of each continuation when it ends."""
        from foretell.generation.sequence import rules_of

        count, done, tokens = len(self.completer.prompts), 0, 0
        with ProgressLine("texts") if self.options.progress else nullcontext() as show:
            for index, _, has_ended in items:
                sequence = self.completer.continuation(index).sequence
                limit = rules_of(sequence).max_tokens or 1
                tokens += 1
                if has_ended:
                    yield index
                    done, tokens = done + 1, tokens + limit - len(sequence.generated)
                if show is not None:
                    show(done, count, tokens / (count * limit))


class JsonLines(Writer):
    """Each completion as a line of JSON when it ends, in a file, which was checked before, or on stdout."""

    def write(self, items: Items) -> None:
        out = self.options.out
        if out is None or out == arguments.STANDARD_OUTPUT:
            for line in self.lines(items):
                print_json(line)
            return
        target = out.resolve()
        try:
            with target.open("w", encoding="utf-8") as file:
                for line in self.lines(items):
                    print(json.dumps(line, ensure_ascii=False), file=file, flush=True)
        except OSError as error:
            if not target.stat().st_size:
                target.unlink()
            raise OutputError(f"could not write {out}: {error.strerror}") from None

    def lines(self, items: Items) -> Iterator[dict[str, Any]]:
        n = self.options.n
        for index in self.ended(items):
            yield {"index": index // n, "continuation": index % n, **self.completer.completion(index).to_json()}
            self.completer.forget(index)


class WholeTexts(Writer):
    """All completions in the order of the prompts, when the last one has ended."""

    def write(self, items: Items) -> None:
        for _ in self.ended(items):
            pass
        for completion in self.completer.completions():
            if self.options.json:
                print_json(completion.to_json())
            else:
                write(completion.prompt + completion.text + "\n")


class Pieces(Writer):
    """One prompt, then its continuation piece by piece."""

    def write(self, items: Items) -> None:
        with notes_after():
            write(self.completer.prompts[0], end="")
            try:
                for _, piece, _ in items:
                    if piece:
                        write(piece, end="")
            except ForetellError:
                write("")  # the error has its own line
                raise
            write("")
        if not self.completer.continuations[0].text:
            note(f"the continuation is empty; it ended with: {self.completer.completion(0).finish_reason}")


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
