"""`foretell demo`: a model learns to write, in front of your eyes, in about two and a half minutes."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from foretell.cli.terminal import messages, note, results

if TYPE_CHECKING:
    from rich.console import Console

    from foretell.inference.distribution import NextTokens
    from foretell.pretraining.session import Session
    from foretell.runs.saved_model import LanguageModel

PROMPT = "The return value of the function"
TRAINING_MINUTES = 1.7
SETTINGS: dict[str, dict[str, Any]] = {
    "tokenizer": {"vocab_size": 1024},
    "training": {"evaluation_tokens": 16_384},
}
EXCERPT_LINES = 6


def demo(
    *,
    minutes: Annotated[
        float, Parameter(help="How long to train; the rest takes about half a minute.")
    ] = TRAINING_MINUTES,
    out: Annotated[Path | None, Parameter(help="The run's folder; default: runs/demo.", show_default=False)] = None,
) -> None:
    """The first five minutes: train a small decoder, watch it learn, ask it.

    Nothing is downloaded: the text is the language reference that every Python carries.
    """
    console = messages()
    title(console, "foretell", "a small GPT learns to write, on this machine, from nothing")
    from foretell.cli.demo_display import DemoReporter
    from foretell.cli.train import default_out
    from foretell.data.corpora import describe_embedded_corpus, embedded_corpus
    from foretell.pretraining.pretrain import pretrain
    from foretell.pretraining.request import Request

    show_text(console, describe_embedded_corpus(), next(iter(embedded_corpus())).text)
    out = out or default_out(("demo",), resume=False)
    request = Request(
        embedded_corpus, ["the language reference inside Python"], out, size="tiny", minutes=minutes, overrides=SETTINGS
    )
    with DemoReporter(console, gzip_bits_per_byte(), PROMPT) as reporter:
        session = pretrain(request, reporter)
    show_result(console, session, reporter)


def title(console: Console, head: str, text: str) -> None:
    """A headline."""
    from rich.text import Text

    console.print()
    console.print(Text(head, style="bold cyan").append(f"  {text}", style="not bold default"))


def show_text(console: Console, described: str, text: str) -> None:
    """What it will learn from."""
    title(console, "1 the text", described)
    for line in text.strip().splitlines()[:EXCERPT_LINES]:
        console.print(f"  {line}", style="dim")


def held_out_text() -> str:
    """The part of the corpus that the model does not learn from."""
    from foretell.data.corpora import embedded_corpus
    from foretell.data.split import split_documents

    return "".join(document.text for part, document in split_documents(embedded_corpus()) if part == "validation")


def gzip_bits_per_byte() -> float:
    """What gzip -9 needs for each byte of the held-out text."""
    data = held_out_text().encode()
    return 8 * len(gzip.compress(data, compresslevel=9, mtime=0)) / len(data)


def show_result(console: Console, session: Session, reporter: Any) -> None:
    """What was learned, what it expects next, what it writes, and where to go from here."""
    from foretell.convert.load import load
    from foretell.inference.completion import generate
    from foretell.inference.distribution import next_tokens

    loss = session.evaluate_held_out().loss
    bits = session.bits_per_byte(loss)
    verdict = "it found more order in it than gzip" if bits < reporter.gzip_bits else "gzip is still ahead"
    console.print(
        f"\n  on text it has never seen: {bits:.2f} bits a byte, gzip {reporter.gzip_bits:.2f}; {verdict}", style="bold"
    )
    model = load(session.run.directory, "cpu", "float32")
    title(console, "4 what comes next", "the five likeliest tokens, and how likely")
    show_next(next_tokens(model, PROMPT)[0])
    title(console, "5 its own words", f"after {PROMPT!r}")
    results().print(PROMPT + generate(model, PROMPT, 60, temperature=0.7, top_k=50)[0].text)
    say_goodbye(console, session, model)


def show_next(following: NextTokens) -> None:
    """The distribution, as `foretell next` shows it."""
    from foretell.cli.next import show

    show(following)


def say_goodbye(console: Console, session: Session, model: LanguageModel) -> None:
    """Where the run lies, and three commands to try."""
    run = session.run.directory
    title(console, "the run", f"lies in {run}: weights, metrics, samples, loss curve")
    note("  three commands to try next:")
    for command in (
        f'foretell next {run} "If the object is"',
        f'foretell generate {run} "A class definition" --max-tokens 80',
        "foretell train my.txt    # on a text of your own",
    ):
        console.print(f"    {command}", style="bold")
    console.print()
