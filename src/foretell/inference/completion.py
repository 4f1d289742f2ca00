"""Continue text: prompts in, pieces of text out as they become certain."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from foretell.config import SamplingConfig, make_section
from foretell.errors import ContextLengthError, UsageError
from foretell.generation.engine import generate as generate_ids
from foretell.generation.sampling import Sampler
from foretell.generation.sequence import FinishReason, Sequence
from foretell.insight.receipt import Receipt, RecordingSampler
from foretell.language_model import LanguageModel
from foretell.text import StopStrings

DEFAULT_TOKENS = 200


@dataclass(frozen=True)
class Completion:
    """A prompt and its continuation alone; the stop string and the end token are left out of text and ids.

    receipts: where they were asked for, one for every token that was drawn, those left out of the text too.
    """

    prompt: str
    text: str
    token_ids: list[int]
    finish_reason: FinishReason
    receipts: list[Receipt] | None = None

    def to_json(self) -> dict[str, Any]:
        names = ("prompt", "text", "token_ids", "finish_reason")
        values = {name: getattr(self, name) for name in names}
        return values if self.receipts is None else {**values, "receipts": [one.to_json() for one in self.receipts]}


def generate(
    model: LanguageModel,
    prompts: str | list[str],
    max_tokens: int | None = 100,
    *,
    stop: list[str] | None = None,
    context_shift: bool = False,
    receipts: bool = False,
    **sampling: Any,
) -> list[Completion]:
    """Continue one prompt or several together; the keywords are the fields of `SamplingConfig`.

    Prompt i is sample i, and is continued the same way whatever stands beside it. receipts: each completion says what
    decided each of its tokens, which are the same without.
    """
    prompts = [prompts] if isinstance(prompts, str) else prompts
    completer = COMPLETERS[receipts](model, prompts, make_section(SamplingConfig, sampling), stop or [])
    for _ in completer.stream(max_tokens, context_shift=context_shift):
        pass
    return completer.completions()


class Completer:
    """Continues prompts and hands out their text while it grows. `samples` names each prompt's random stream."""

    def __init__(
        self,
        model: LanguageModel,
        prompts: list[str],
        sampling: SamplingConfig,
        stop: list[str],
        samples: list[int] | None = None,
        allow_special: bool = False,
    ):
        self.model, self.prompts = model, prompts
        self.sampler: Sampler = Sampler(sampling, model.tokenizer.vocab_size)
        if any(not text for text in stop):
            raise UsageError("a stop string is empty; give at least one character")
        self.sequences = [
            Sequence(self._encode(prompt, allow_special), sample)
            for prompt, sample in zip(prompts, samples or range(len(prompts)), strict=True)
        ]
        self.decoders = [model.tokenizer.stream(before=sequence.prompt) for sequence in self.sequences]
        self.stops = [StopStrings(stop) for _ in prompts]
        self.texts = [""] * len(prompts)

    def stream(self, max_tokens: int | None, *, context_shift: bool = False) -> Iterator[tuple[int, str]]:
        """(prompt number, new text) until every continuation has ended; what does not fit is refused at once."""
        return self._read(
            generate_ids(self.model.decoder, self.sequences, self.sampler, max_tokens, context_shift=context_shift)
        )

    def _read(self, tokens: Iterator[tuple[Sequence, int]]) -> Iterator[tuple[int, str]]:
        numbers = {id(sequence): number for number, sequence in enumerate(self.sequences)}
        for sequence, token in tokens:
            if token in self.model.tokenizer.end_ids:
                sequence.finish_reason = "end"
                continue
            number = numbers[id(sequence)]
            yield from self._grow(number, self.stops[number].push(self.decoders[number].push(token)))
            if self.stops[number].stopped:
                sequence.finish_reason = "stop"
        for number in range(len(self.prompts)):
            yield from self._grow(number, self._flush(number))

    def default_length(self, context_shift: bool) -> int:
        """How many tokens to write where nobody said: DEFAULT_TOKENS, or what fits after the longest prompt."""
        if context_shift:
            return DEFAULT_TOKENS
        longest = max(len(sequence.prompt) for sequence in self.sequences)
        context_length = self.model.decoder.config.context_length
        if longest == context_length:
            raise ContextLengthError(
                f"the prompt fills the model's context of {context_length}; shorten it, or use --slide"
            )
        return min(DEFAULT_TOKENS, max(0, context_length - longest))

    def completions(self) -> list[Completion]:
        """The results, once the stream has ended."""
        return [
            Completion(prompt, text, self._kept_ids(sequence, text), sequence.finish_reason or "length")
            for prompt, text, sequence in zip(self.prompts, self.texts, self.sequences, strict=True)
        ]

    def _encode(self, prompt: str, allow_special: bool) -> list[int]:
        tokenizer = self.model.tokenizer
        ids = tokenizer.encode_input(prompt, allow_special)
        if not ids and tokenizer.end_id is not None:  # nothing to continue: what follows the end of a document
            return [tokenizer.end_id]
        return ids

    def _grow(self, number: int, text: str) -> Iterator[tuple[int, str]]:
        if text:
            self.texts[number] += text
            yield number, text

    def _flush(self, number: int) -> str:
        stops = self.stops[number]
        if stops.stopped:
            return ""
        text = stops.push(self.decoders[number].finish())
        if stops.stopped:  # completed by the last bytes
            self.sequences[number].finish_reason = "stop"
            return text
        return text + stops.finish()

    def _kept_ids(self, sequence: Sequence, text: str) -> list[int]:
        """The generated ids without the end token, and without those that the stop string took away."""
        if sequence.finish_reason == "end":
            return sequence.generated[:-1]
        if sequence.finish_reason != "stop":
            return sequence.generated
        kept = len(sequence.generated)
        while kept and len(self._text_of(sequence, kept - 1)) >= len(text):
            kept -= 1
        return sequence.generated[:kept]

    def _text_of(self, sequence: Sequence, count: int) -> str:
        """The text of the first `count` generated tokens, as it reads after the prompt."""
        stream = self.model.tokenizer.stream(before=sequence.prompt)
        return "".join([*map(stream.push, sequence.generated[:count]), stream.finish()])


class RecordingCompleter(Completer):
    """A completer that keeps a receipt of every token drawn."""

    def __init__(
        self,
        model: LanguageModel,
        prompts: list[str],
        sampling: SamplingConfig,
        stop: list[str],
        samples: list[int] | None = None,
        allow_special: bool = False,
    ):
        super().__init__(model, prompts, sampling, stop, samples, allow_special)
        self.recorder = RecordingSampler(sampling, model.tokenizer)
        self.sampler = self.recorder

    def completions(self) -> list[Completion]:
        found = zip(super().completions(), self.sequences, strict=True)
        return [replace(completion, receipts=self.recorder.receipts_of(sequence)) for completion, sequence in found]


COMPLETERS: dict[bool, type[Completer]] = {False: Completer, True: RecordingCompleter}  # by: are receipts wanted?
