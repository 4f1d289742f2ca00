"""The demo's view of a training: held-out bits a byte beside gzip's, and the model's words as they get better."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rich.console import Console
from rich.text import Text

from foretell.cli.training_display import LiveReporter, shorten
from foretell.text import Tokenizer

BAR_WIDTH = 14  # a row with steps of five digits and a loss above ten just fits 80 columns
TOKEN_STYLES = ("black on cyan", "black on white")
FACTS = ("model", "machine", "steps", "untrained")  # of what a training notes; text and tokens have been shown


def title(console: Console, head: str, text: str) -> None:
    """A headline."""
    console.print()
    console.print(Text(head, style="bold cyan").append(f"  {text}", style="not bold default"))


class DemoReporter(LiveReporter):
    """Shows the same on a terminal and in a log; only the live bar needs a terminal."""

    def __init__(self, console: Console, gzip_bits: float, sentence: str):
        super().__init__(console)
        self.gzip_bits, self.sentence = gzip_bits, sentence
        self.largest = gzip_bits

    def note(self, text: str) -> None:
        if text.startswith(FACTS):
            self.console.print(Text(text, style="dim"))

    def ready(self, tokenizer: Tokenizer, train_tokens: int, bits_per_byte: Callable[[float], float]) -> None:
        """The tokens of a sentence, then the headline of the training."""
        self.bits_per_byte = bits_per_byte
        title(self.console, "2 the tokens", f"the model sees numbers, {train_tokens:,} of them to learn from")
        self.show_tokens(tokenizer)
        title(
            self.console,
            "3 learning",
            f"to guess the next token; gzip packs held-out text at {self.gzip_bits:.2f} bits",
        )

    def show_tokens(self, tokenizer: Tokenizer) -> None:
        """The sentence cut into tokens, with the id of each below."""
        pieces, numbers = Text("  "), Text("  ", style="dim")
        for place, token in enumerate(tokenizer.encode(self.sentence)):
            piece = tokenizer.text_of(token)
            width = max(len(piece), len(str(token)) + 1)
            pieces.append(piece.ljust(width), style=TOKEN_STYLES[place % 2])
            numbers.append(str(token).rjust(len(str(token)) + piece.startswith(" ")).ljust(width))
        self.console.print(pieces)
        self.console.print(numbers)

    def metrics(self, metrics: dict[str, Any], steps: int) -> None:
        """A row for every evaluation, the bar in between."""
        left = self.clock.update(metrics["step"], steps)
        if metrics["validation_loss"] is not None:
            self.console.print(self.row(metrics, steps))
        self.show_progress(metrics, steps, left)

    def row(self, metrics: dict[str, Any], steps: int) -> Text:
        """Step, loss, and held-out bits a byte as a bar in which gzip's place is marked."""
        bits = self.bits_per_byte(metrics["validation_loss"])
        self.largest = max(self.largest, bits)
        style = "green" if bits < self.gzip_bits else "yellow"
        filled, mark = (round(BAR_WIDTH * value / self.largest) for value in (bits, self.gzip_bits))
        line = Text(f"step {metrics['step']:>{len(str(steps))}}/{steps}  loss {metrics['loss']:.2f}  ")
        line.append(f"held out {bits:.2f} bits a byte  ", style=style)
        for place in range(1, BAR_WIDTH + 1):
            line.append("│" if place == mark else "█" if place <= filled else " ", style="" if place == mark else style)
        return line.append("  │ gzip", style="dim")

    def sample(self, step: int, prompt: str, continuation: str) -> None:
        """What it writes now, on one or two lines."""
        text = Text("  it writes: ", style="dim").append(shorten(prompt, 24, from_end=True), style="not dim cyan")
        self.console.print(text.append(shorten(continuation, 110), style="not dim default"))
