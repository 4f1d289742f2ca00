"""The demo's display of a training: held-out bits per byte compared with gzip's, and samples."""

from __future__ import annotations

import logging
from typing import Any, Self

from rich.console import Console
from rich.text import Text

from foretell.pretraining.task import TextTask
from foretell.session.display import DisplayHandler, LiveReporter
from foretell.session.task import Task
from foretell.text import Tokenizer
from foretell.typesetting.text import shorten

BAR_WIDTH = 12  # so that a row with five-digit steps and a loss above ten fits in 80 columns
TOKEN_STYLES = ("black on cyan", "black on white")
FACTS = ("model", "machine", "steps", "untrained")  # lines of the log to show; text and tokens are already shown


def title(console: Console, head: str, text: str) -> None:
    console.print()
    console.print(Text(head, style="bold cyan").append(f"  {text}", style="not bold default"))


class DemoReporter(LiveReporter):
    """The display of the demo: a live bar on terminals, some lines of the log, and all warnings."""

    def __init__(self, console: Console, gzip_bits: float, sentence: str):
        super().__init__(console)
        self.gzip_bits, self.sentence = gzip_bits, sentence
        self.largest = gzip_bits

    def __enter__(self) -> Self:
        logger = logging.getLogger("foretell")
        self.other_handlers = logger.handlers
        handler = DisplayHandler(self.console)
        handler.addFilter(lambda record: record.getMessage().startswith(FACTS) or record.levelno >= logging.WARNING)
        logger.handlers = [handler]
        return super().__enter__()

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        logging.getLogger("foretell").handlers = self.other_handlers

    def ready(self, task: Task) -> None:
        """The tokens of a sentence, then the headline of the training."""
        assert isinstance(task, TextTask), "the demo pretrains"
        self.bits_per_byte = task.bits_per_byte
        train_tokens = task.text.store.splits["train"].tokens
        title(self.console, "2 the tokens", f"the model sees numbers, {train_tokens:,} of them to learn from")
        self.show_tokens(task.text.tokenizer)
        title(
            self.console,
            "3 learning",
            f"to guess the next token; gzip packs held-out text at {self.gzip_bits:.2f} bits",
        )

    def show_tokens(self, tokenizer: Tokenizer) -> None:
        """Show the tokens of the sentence, with their ids below."""
        pieces, ids = Text("  "), Text("  ", style="dim")
        for index, token in enumerate(tokenizer.encode(self.sentence)):
            piece = tokenizer.text_of(token)
            width = max(len(piece), len(str(token)) + 1)
            pieces.append(piece.ljust(width), style=TOKEN_STYLES[index % 2])
            ids.append(str(token).rjust(len(str(token)) + piece.startswith(" ")).ljust(width))
        self.console.print(pieces)
        self.console.print(ids)

    def metrics(self, metrics: dict[str, Any], steps: int) -> None:
        """Show a row for every evaluation, and the bar in between."""
        left = self.clock.update(metrics["step"], steps)
        if metrics["validation_loss"] is not None:
            self.console.print(self.row(metrics, steps))
        self.show_progress(metrics, steps, left)

    def row(self, metrics: dict[str, Any], steps: int) -> Text:
        """Step, loss, and held-out bits per byte as a bar with gzip marked."""
        bits = self.bits_per_byte(metrics["validation_loss"])
        self.largest = max(self.largest, bits)
        style = "green" if bits < self.gzip_bits else "yellow"
        filled, mark = (round(BAR_WIDTH * value / self.largest) for value in (bits, self.gzip_bits))
        line = Text(f"step {metrics['step']:>{len(str(steps))}}/{steps}  loss {metrics['loss']:.2f}  ")
        line.append(f"held out {bits:.2f} bits per byte  ", style=style)
        for cell in range(1, BAR_WIDTH + 1):
            line.append("│" if cell == mark else "█" if cell <= filled else " ", style="" if cell == mark else style)
        return line.append("  │ gzip", style="dim")

    def sample(self, step: int, prompt: str, continuation: str) -> None:
        """A sample, on one or two lines."""
        text = Text("  it writes: ", style="dim").append(shorten(prompt, 24, from_end=True), style="not dim cyan")
        self.console.print(text.append(shorten(continuation, 110), style="not dim default"))
