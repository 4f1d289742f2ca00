"""`Continuation`: a growing sequence of ids and its text; a stop string ends both."""

from __future__ import annotations

from dataclasses import dataclass, field

from foretell.generation.sequence import Sequence
from foretell.text import StopStrings, Tokenizer


@dataclass(eq=False)
class Continuation:
    """The text of one sequence while it grows.

    text: the final text so far, without the stop string. starts: for each token, the length of the text before it; a
    character of several tokens belongs to the last of them.
    """

    tokenizer: Tokenizer
    sequence: Sequence
    stops: StopStrings
    text: str = ""
    starts: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.sequence.stop = self._take
        self._decoder = self.tokenizer.stream(before=self.sequence.prompt)
        self._decoded = 0  # number of characters, including those that may become a stop string
        self._new = ""

    def _take(self, token: int) -> bool:
        """Add the text of a new token; True if a stop string is complete."""
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
        """The text that was held back because it could have become a stop string or a character."""
        if self.stops.stopped:
            return ""
        text = self.stops.push(self._decoder.finish())
        if self.stops.stopped:  # the last bytes completed a stop string
            self.sequence.finish_reason = "stop"
            return text
        return text + self.stops.finish()

    def kept_ids(self) -> list[int]:
        """The generated ids without the end token and without the ids that the stop string removed."""
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
        """The text of the first `count` generated tokens, decoded after the prompt."""
        decoder = self.tokenizer.stream(before=self.sequence.prompt)
        return "".join([*map(decoder.push, self.sequence.generated[:count]), decoder.finish()])
