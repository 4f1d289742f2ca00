"""`Continuation`: a sequence of ids and the text that it grows into; a stop string ends both."""

from __future__ import annotations

from dataclasses import dataclass, field

from foretell.generation.sequence import Sequence
from foretell.text import StopStrings, Tokenizer


@dataclass(eq=False)
class Continuation:
    """The text of one sequence while it grows.

    text: what is final so far, without the stop string. starts: for each token, the length of the text before it; a
    character of several tokens counts from its last one.
    """

    tokenizer: Tokenizer
    sequence: Sequence
    stops: StopStrings
    text: str = ""
    starts: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.sequence.stop = self._take
        self._decoder = self.tokenizer.stream(before=self.sequence.prompt)
        self._decoded = 0  # characters, with those that may become a stop string
        self._new = ""

    def _take(self, token: int) -> bool:
        """Note the text of a new token; true if a stop string ends there."""
        text = self._decoder.push(token)
        self.starts.append(self._decoded)
        self._decoded += len(text)
        self._new += self.stops.push(text)
        return self.stops.stopped

    def new_text(self) -> str:
        """The text that became final since the last call; after the end of the sequence, all that was held back."""
        text, self._new = self._new + (self._flush() if self.sequence.finish_reason is not None else ""), ""
        self.text += text
        return text

    def _flush(self) -> str:
        """The text that was held back, since it could have become a stop string or a character."""
        if self.stops.stopped:
            return ""
        text = self.stops.push(self._decoder.finish())
        if self.stops.stopped:  # completed by the last bytes
            self.sequence.finish_reason = "stop"
            return text
        return text + self.stops.finish()

    def kept_ids(self) -> list[int]:
        """The generated ids without the end token, and without those that the stop string removed."""
        sequence = self.sequence
        if sequence.finish_reason == "end":
            return sequence.generated[:-1]
        if sequence.finish_reason != "stop":
            return sequence.generated
        kept = len(sequence.generated)
        while kept and len(self._text_of(kept - 1)) >= len(self.text):
            kept -= 1
        return sequence.generated[:kept]

    def _text_of(self, count: int) -> str:
        """The text of the first `count` generated tokens, as it reads after the prompt."""
        decoder = self.tokenizer.stream(before=self.sequence.prompt)
        return "".join([*map(decoder.push, self.sequence.generated[:count]), decoder.finish()])
