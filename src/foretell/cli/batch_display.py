"""The display of a batch: every token with its loss below it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from foretell.cli.query import surprise_style
from foretell.cli.terminal import open_model, print_json, results
from foretell.device import DeviceName, DtypeName
from foretell.errors import UsageError
from foretell.pretraining.training_data import Replay, replay
from foretell.runs.run import find_run, is_run
from foretell.session.task import ReplayedRow, ReplayedToken

WIDTH = 80
NO_LOSS = "-"


def show_step(step: int, out: Path | None, device: DeviceName, dtype: DtypeName, json: bool) -> None:
    """The batch of a step, with the losses of the run's best checkpoint or of the one named."""
    if out is None:
        raise UsageError("--show-batch needs the run: --out runs/x, or --out runs/x@last for another than the best")
    name, at, _ = str(out).rpartition("@")
    run = find_run(str(out) if not at or is_run(out) else name)
    model = open_model(str(out), device, dtype)
    replayed = replay(run, step, model)
    print_json(replayed.to_json()) if json else show_batch(replayed)


def show_batch(replayed: Replay) -> None:
    """All rows; losses in nats, coloured by surprise as in `foretell score`."""
    console = results()
    for index, row in enumerate(replayed.rows):
        last = row.start + len(row.tokens) - 1
        mean = "no targets" if row.loss is None else f"loss {row.loss:.3f}"
        console.print(f"row {index}: tokens {row.start:,} to {last:,} of the training text, {mean}", style="bold")
        show_row(console, row)
        console.print()
    logged = "" if replayed.logged_loss is None else f"; {replayed.logged_loss:.3f} in training, with its weights"
    console.print(f"step {replayed.step:,}: loss {replayed.loss:.3f}{logged}")


def show_row(console: Console, row: ReplayedRow) -> None:
    """The tokens in pairs of lines: their texts, and their losses."""
    document = row.tokens[0].document
    for line in lines_of(row.tokens):
        if line[0].document != document:
            document = line[0].document
            console.print("-- another document, which does not see the text before it", style="dim")
        above, below = Text(), Text()
        for token in line:
            width = cell_width(token)
            shown = visible(token.text)
            above.append(shown, style=surprise_style(token.loss)).append(" " * (width - cell_len(shown)))
            below.append(f"{format_loss(token):<{width}}", style="dim")
        above.rstrip()
        below.rstrip()
        console.print(above)
        console.print(below)


def lines_of(tokens: list[ReplayedToken]) -> Iterator[list[ReplayedToken]]:
    """Lines of as many tokens as fit; a document begins a new line."""
    line: list[ReplayedToken] = []
    for token in tokens:
        is_full = sum(map(cell_width, line)) + cell_width(token) > WIDTH
        if line and (is_full or token.document != line[-1].document):
            yield line
            line = []
        line.append(token)
    yield line


def visible(text: str) -> str:
    """A token on one line, with visible spaces and line ends."""
    shown = text.replace("\n", "⏎").replace(" ", "·")
    return "".join(letter if letter.isprintable() else "�" for letter in shown)[: WIDTH - 1]


def format_loss(token: ReplayedToken) -> str:
    """The loss in nats, or a dash without one."""
    return NO_LOSS if token.loss is None else f"{token.loss:.2f}"


def cell_width(token: ReplayedToken) -> int:
    """Columns for a token and its loss, with one between neighbours."""
    return max(cell_len(visible(token.text)), len(format_loss(token))) + 1
