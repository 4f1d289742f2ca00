"""`foretell demo`: a model learns to write, in front of your eyes, in about two and a half minutes."""

from __future__ import annotations

import gzip
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

if TYPE_CHECKING:
    from rich.console import Console

    from foretell.pretraining.session import Session

PROMPT = "The return value of the function"
TRAINING_MINUTES = 2.1
SETTINGS: dict[str, dict[str, Any]] = {"tokenizer": {"vocab_size": 1024}, "training": {"evaluation_tokens": 16_384}}
EXCERPT_LINES = 5


def demo(
    *,
    minutes: Annotated[float, Parameter(help="How long to train; the rest takes half a minute.")] = TRAINING_MINUTES,
    out: Annotated[Path | None, Parameter(help="The run's folder; default: runs/demo.", show_default=False)] = None,
) -> None:
    """The first five minutes: train a small decoder, watch it learn, ask it.

    Nothing is downloaded: the text is the language reference that every Python carries.
    """
    from rich.console import Console

    from foretell.cli.demo_display import DemoReporter, title

    console = Console(highlight=False, emoji=False, markup=False)
    title(console, "foretell", "a small GPT learns to write, on this machine, from nothing")
    from foretell.cli.train import default_out
    from foretell.data.corpora import embedded_corpus
    from foretell.pretraining.pretrain import pretrain
    from foretell.pretraining.request import Request

    show_text(console)
    out = out or default_out(("demo",), resume=False)
    described = ["the language reference inside Python"]
    request = Request(embedded_corpus, described, out, size="tiny", minutes=minutes, overrides=SETTINGS)
    with DemoReporter(console, gzip_bits_per_byte(), PROMPT) as reporter:
        session = pretrain(request, reporter)
    show_result(console, session, reporter.gzip_bits)
    say_goodbye(console, session.run.directory)


def show_text(console: Console) -> None:
    """What it will learn from."""
    from foretell.cli.demo_display import title
    from foretell.data.corpora import describe_embedded_corpus, embedded_corpus

    where, _, sizes = describe_embedded_corpus().partition(": ")
    title(console, "1 the text", where)
    console.print(sizes, style="dim")
    lines = next(iter(embedded_corpus())).text.strip().splitlines()
    for line in lines[:EXCERPT_LINES]:
        console.print(f"  {line}", style="dim")


def gzip_bits_per_byte() -> float:
    """What gzip -9 needs for each byte of the text that the model does not learn from."""
    from foretell.data.corpora import embedded_corpus
    from foretell.data.split import split_documents

    held_out = [document.text for part, document in split_documents(embedded_corpus()) if part == "validation"]
    data = "".join(held_out).encode()
    return 8 * len(gzip.compress(data, compresslevel=9, mtime=0)) / len(data)


def show_result(console: Console, session: Session, gzip_bits: float) -> None:
    """What was learned, what it expects next, and what it writes."""
    from foretell.cli.demo_display import title
    from foretell.cli.next import show
    from foretell.inference.completion import generate
    from foretell.inference.query import next_tokens
    from foretell.loading import load

    bits = session.bits_per_byte(session.evaluate_held_out().loss)
    verdict = "it found more order there than gzip" if bits < gzip_bits else "gzip is still ahead"
    console.print()
    console.print(f"On text it has never seen: {bits:.2f} bits a byte, gzip {gzip_bits:.2f}; {verdict}.", style="bold")
    model = load(session.run.directory)
    title(console, "4 what comes next", "the five likeliest tokens, and how likely each is")
    show(next_tokens(model, PROMPT)[0], console)
    title(console, "5 in its own words", "one token at a time")
    console.print(PROMPT + generate(model, PROMPT, 60, temperature=0.7, top_k=50, top_p=1.0).text)


def say_goodbye(console: Console, directory: Path) -> None:
    """Where the run lies, and three commands to try."""
    from foretell.cli.demo_display import title

    title(console, "the run", f"is in {directory}: weights, metrics, samples, loss curve")
    console.print("three commands to try next:")
    run = shlex.quote(str(directory))
    for command in (
        f'foretell next {run} "If the object is"',
        f'foretell generate {run} "A class definition" --max-tokens 80',
        "foretell train my.txt        (a text of your own)",
    ):
        console.print(f"  {command}", style="bold")
