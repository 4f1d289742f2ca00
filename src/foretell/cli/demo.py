"""`foretell demo`: train a small model in about two and a half minutes, and use it."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from foretell.cli import arguments
from foretell.cli.example_files import write_examples
from foretell.cli.terminal import write
from foretell.errors import UsageError, shell_words

if TYPE_CHECKING:
    from rich.console import Console

    from foretell.pretraining.task import TextTask
    from foretell.session.session import Session

PROMPT = "The return value of the function"
TRAINING_MINUTES = 2.1
SETTINGS: dict[str, dict[str, Any]] = {"tokenizer": {"vocab_size": 1024}, "training": {"evaluation_tokens": 16_384}}
EXCERPT_LINES = 5


def demo(
    *,
    minutes: Annotated[
        float | None,
        Parameter(help=f"Minutes of training (default: {TRAINING_MINUTES}); the rest takes half a minute."),
    ] = None,
    out: Annotated[arguments.Output, Parameter(help="The run's folder (default: runs/demo).")] = None,
    files: Annotated[bool, Parameter(help="Write the files of the README's examples here, without training.")] = False,
) -> None:
    """The first five minutes: train a small decoder, watch it learn, ask it.

    Nothing is downloaded: the text is the language reference that every Python carries.
    """
    from foretell.config.training import check_minutes

    if files:
        if minutes is not None or out is not None:
            raise UsageError("--files trains nothing, so --minutes and --out have no effect; leave them out")
        return write("\n".join(write_examples(Path())))
    minutes = TRAINING_MINUTES if minutes is None else minutes
    check_minutes(minutes)
    from rich.console import Console

    from foretell.cli.demo_display import DemoReporter, title

    console = Console(highlight=False, emoji=False, markup=False)
    title(console, "foretell", "a small GPT learns to write, on this machine, from nothing")
    from foretell.cli.training_verbs import default_out
    from foretell.data.documents import EMBEDDED_CORPUS, embedded_corpus
    from foretell.generation.batch_generation import continue_prompt
    from foretell.pretraining.pretrain import TextTraining
    from foretell.pretraining.request import TextRequest
    from foretell.session.protocol import run_training

    show_text(console)
    out = out or default_out(("demo",), resume=False)
    request = TextRequest(
        source=embedded_corpus,
        names=[EMBEDDED_CORPUS],
        out=out,
        size="tiny",
        minutes=minutes,
        fewest_steps=0,
        overrides=SETTINGS,
    )
    with DemoReporter(console, gzip_bits_per_byte(), PROMPT) as reporter:
        session = run_training(TextTraining(request, continue_prompt), reporter)
    show_result(console, session, reporter.gzip_bits)
    return say_goodbye(console, session.run.directory)


def show_text(console: Console) -> None:
    """Show the source and the first lines of the training text."""
    from foretell.cli.demo_display import title
    from foretell.data.documents import describe_embedded_corpus, embedded_corpus

    where, _, sizes = describe_embedded_corpus().partition(": ")
    title(console, "1 the text", where)
    console.print(sizes, style="dim")
    lines = next(iter(embedded_corpus())).text.strip().splitlines()
    for line in lines[:EXCERPT_LINES]:
        console.print(f"  {line}", style="dim")


def gzip_bits_per_byte() -> float:
    """Bits per byte of the held-out text under gzip -9."""
    from foretell.data.documents import embedded_corpus
    from foretell.data.split import split_documents

    held_out = [document.text for part, document in split_documents(embedded_corpus()) if part == "validation"]
    data = "".join(held_out).encode()
    return 8 * len(gzip.compress(data, compresslevel=9, mtime=0)) / len(data)


def show_result(console: Console, session: Session[TextTask], gzip_bits: float) -> None:
    """Show the loss on held-out text, the most likely next tokens, and a continuation."""
    from foretell.cli.demo_display import title
    from foretell.cli.info import describe_kernels
    from foretell.inference.completion import generate
    from foretell.inference.query import next_tokens
    from foretell.loading import load

    task = session.task
    bits = task.bits_per_byte(task.evaluate_held_out(session.dtype).loss)
    verdict = "fewer than gzip" if bits < gzip_bits else "gzip is still ahead"
    console.print()
    console.print(
        f"On text it has never seen: {bits:.2f} bits per byte, gzip {gzip_bits:.2f}; {verdict}.", style="bold"
    )
    model = load(session.run.directory)
    describe_kernels(model.decoder)  # compiles them now, so that the next command has them
    title(console, "4 what comes next", "the five most likely tokens, and their probabilities")
    console.print(str(next_tokens(model, PROMPT)))
    title(console, "5 in its own words", "one token at a time")
    console.print(PROMPT + generate(model, PROMPT, 60, temperature=0.7, top_k=50, top_p=1.0).text)


def say_goodbye(console: Console, directory: Path) -> None:
    """Show the folder of the run, and commands to try."""
    from foretell.cli.demo_display import title
    from foretell.session.commands import command_name

    title(console, "the run", f"is in {directory}: weights, metrics, samples, loss curve")
    console.print("commands to try next:")
    run, program = shell_words(directory), command_name()
    for command in (
        f'{program} next {run} "If the object is"',
        f'{program} generate {run} "A class definition" --max-tokens 80',
        f"{program} serve {run} --open",
        f"{program} demo --files        # the files of the README's examples",
        f"{program} train my.txt        # a text of your own",
    ):
        console.print(f"  {command}", style="bold")
