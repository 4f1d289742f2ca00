"""The demo's view of a training: held-out bits a byte beside gzip's, and the model's words as they get better."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.live import Live
from rich.text import Text

from foretell.cli.training_display import LiveReporter, PlainReporter, Remaining, shorten

if TYPE_CHECKING:
    from foretell.pretraining.session import Session

BAR_WIDTH = 24
TOKEN_STYLES = ("black on cyan", "black on white")


class DemoReporter(LiveReporter):
    """Shows the same on a terminal and in a log; only the live bar needs a terminal."""

    def __init__(self, console: Console, gzip_bits: float, sentence: str):
        PlainReporter.__init__(self, console)
        self.live = Live(console=console, refresh_per_second=8, transient=True, auto_refresh=console.is_terminal)
        self.gzip_bits, self.sentence = gzip_bits, sentence
        self.largest = 0.0
        self._clock = Remaining()

    def note(self, text: str) -> None:
        """Size and machine; the text and the tokens have been shown already."""
        if text.startswith(("model", "machine", "steps", "untrained")):
            self.console.print(f"  {text}", style="dim")

    def ready(self, session: Session) -> None:
        """The tokens of a sentence, then the headline of the training."""
        self.session = session
        tokenizer = session.text.tokenizer
        ids = tokenizer.encode(self.sentence)
        self.console.print()
        head = Text("2 the tokens", style="bold cyan")
        count = len(session.loader.stream)
        self.console.print(
            head.append(f"  the model sees numbers: {count:,} of them to learn from", style="not bold default")
        )
        words, numbers = Text("  "), Text("  ", style="dim")
        for place, token in enumerate(ids):
            piece = tokenizer.text_of(token)
            width = max(len(piece), len(str(token))) + 1
            words.append(piece.ljust(width), style=TOKEN_STYLES[place % 2])
            numbers.append(str(token).ljust(width))
        self.console.print(words)
        self.console.print(numbers)
        self.console.print()
        head = Text("3 learning", style="bold cyan")
        self.console.print(
            head.append("  to guess the next token; ", style="not bold default").append(
                f"gzip needs {self.gzip_bits:.2f} bits a byte for held-out text", style="not bold default"
            )
        )

    def metrics(self, metrics: dict[str, Any], steps: int) -> None:
        """A row for every evaluation, the bar in between."""
        if metrics["validation_loss"] is not None:
            self.console.print(self.row(metrics, steps))
        left = self._clock.update(metrics["step"], steps)
        if self.console.is_terminal:
            self.show_progress(metrics, steps, left)

    def row(self, metrics: dict[str, Any], steps: int) -> Text:
        """Step, loss, held-out bits a byte as a bar in which gzip's place is marked."""
        bits = self.session.bits_per_byte(metrics["validation_loss"])
        self.largest = max(self.largest, bits, self.gzip_bits)
        filled, mark = (round(BAR_WIDTH * value / self.largest) for value in (bits, self.gzip_bits))
        bar = "".join("┃" if place == mark else "█" if place < filled else " " for place in range(BAR_WIDTH + 1))
        line = Text(f"  step {metrics['step']:>{len(str(steps))}}/{steps}  loss {metrics['loss']:.2f}  ")
        line.append(f"held out {bits:.2f} bits/byte  ", style="green" if bits < self.gzip_bits else "yellow")
        return line.append(bar, style="green" if bits < self.gzip_bits else "yellow").append(" ┃ gzip", style="dim")

    def sample(self, step: int, prompt: str, continuation: str) -> None:
        """What it writes now, on one or two lines."""
        text = Text("  it writes: ", style="dim").append(shorten(prompt, 24, from_end=True), style="not dim cyan")
        self.console.print(text.append(shorten(continuation, 110), style="not dim"))
