"""Continue text: prompts in, pieces of text out as soon as they are certain."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from html import escape
from typing import Any, TypedDict, Unpack, overload

from foretell.config import SamplingConfig
from foretell.errors import ContextLengthError, UsageError
from foretell.generation.engine import generate as generate_ids
from foretell.generation.sampling import Sampler
from foretell.generation.sequence import FinishReason, Sequence
from foretell.insight.receipt import Receipt, RecordingSampler
from foretell.language_model import LanguageModel, check_model
from foretell.text import StopStrings
from foretell.typesetting.notebook import ShownList

Prompt = str | list[int]
DEFAULT_TOKENS = 200
REPR_CHARACTERS = 40  # of the prompt and of the text in a completion's repr


@dataclass(frozen=True, repr=False)
class Completion:
    """A prompt and its continuation. `str` gives both; `text` is the continuation alone.

    The stop string and the end token are left out of `text` and `token_ids`. `receipts`, if asked for, has one receipt
    for each sampled token, including those that were left out.
    """

    prompt: str
    text: str
    token_ids: list[int]
    finish_reason: FinishReason
    receipts: ShownList[Receipt] | None = None

    def __str__(self) -> str:
        return self.prompt + self.text

    def __repr__(self) -> str:
        prompt, text = (
            repr(value if len(value) <= REPR_CHARACTERS else value[:REPR_CHARACTERS] + "…")
            for value in (self.prompt, self.text)
        )
        count = f"{len(self.token_ids)} token{'' if len(self.token_ids) == 1 else 's'}"
        return f"Completion({prompt}, {text}, {count}, finish_reason={self.finish_reason!r})"

    def _repr_html_(self) -> str:
        prompt, text = escape(self.prompt), escape(self.text)
        return f'<p style="white-space:pre-wrap"><span style="opacity:0.6">{prompt}</span>{text}</p>'

    def to_json(self) -> dict[str, Any]:
        names = ("prompt", "text", "token_ids", "finish_reason")
        values = {name: getattr(self, name) for name in names}
        return values if self.receipts is None else {**values, "receipts": [item.to_json() for item in self.receipts]}


class SamplingOptions(TypedDict, total=False):
    """The fields of `SamplingConfig` as keywords; its defaults hold for those left out."""

    repetition_penalty: float
    temperature: float
    top_k: int | None
    top_p: float
    min_p: float
    seed: int


@overload
def generate(
    model: LanguageModel,
    prompts: str,
    max_tokens: int | None = None,
    *,
    stop: str | list[str] | None = None,
    context_shift: bool = False,
    receipts: bool = False,
    **sampling: Unpack[SamplingOptions],
) -> Completion: ...


@overload
def generate(
    model: LanguageModel,
    prompts: list[str],
    max_tokens: int | None = None,
    *,
    stop: str | list[str] | None = None,
    context_shift: bool = False,
    receipts: bool = False,
    **sampling: Unpack[SamplingOptions],
) -> ShownList[Completion]: ...


def generate(
    model: LanguageModel,
    prompts: str | list[str],
    max_tokens: int | None = None,
    *,
    stop: str | list[str] | None = None,
    context_shift: bool = False,
    receipts: bool = False,
    **sampling: Unpack[SamplingOptions],
) -> Completion | ShownList[Completion]:
    """Continue a prompt, or a list of prompts together; a list is returned for a list.

    max_tokens: None is 200, or what fits the context after the longest prompt. stop: end before any of these strings.
    context_shift: when the context is full, continue from its last half. receipts: keep what decided each token.
    Other keywords are the fields of `SamplingConfig`. The continuation of a prompt does not depend on the other
    prompts; one that is given n times is continued in n ways, the first as alone. Raises ContextLengthError, UsageError
    or ConfigError before anything is generated, CheckpointError for logits that are not finite.
    """
    texts = [prompts] if isinstance(prompts, str) else prompts
    completer = make_completer(model, texts, SamplingConfig(**sampling), stop, receipts)
    for _ in completer.stream(max_tokens, context_shift=context_shift):
        pass
    completions = completer.completions()
    return completions[0] if isinstance(prompts, str) else completions


def stream(
    model: LanguageModel,
    prompt: str,
    max_tokens: int | None = None,
    *,
    stop: str | list[str] | None = None,
    context_shift: bool = False,
    **sampling: Unpack[SamplingOptions],
) -> Iterator[str]:
    """Pieces of the continuation of one prompt, as they are generated. Arguments and errors as in `generate`."""
    completer = make_completer(model, [prompt], SamplingConfig(**sampling), stop)
    return (piece for _, piece in completer.stream(max_tokens, context_shift=context_shift))


class Completer:
    """Continues prompts and yields their text while it grows.

    A prompt is a text, or the ids to continue. stop_ids: tokens that end a continuation; the end tokens do so anyway.
    samples: the index of each prompt's random stream; by default 0, and 1, 2, ... for further copies of a prompt.
    """

    def __init__(
        self,
        model: LanguageModel,
        prompts: Iterable[Prompt],
        sampling: SamplingConfig,
        stop: list[str],
        samples: list[int] | None = None,
        allow_special: bool = False,
        stop_ids: Collection[int] = (),
    ):
        self.model, prompts = model, list(prompts)
        self.prompts = [prompt if isinstance(prompt, str) else model.decode(prompt) for prompt in prompts]
        self.stop_ids = frozenset([*model.tokenizer.end_ids, *stop_ids])
        self.sampler = self._make_sampler(sampling)
        if any(not text for text in stop):
            raise UsageError("a stop string is empty; give at least one character")
        self.sequences = [
            Sequence(self._encode(prompt, allow_special), sample)
            for prompt, sample in zip(prompts, samples or number_copies(prompts), strict=True)
        ]
        self.decoders = [model.tokenizer.stream(before=sequence.prompt) for sequence in self.sequences]
        self.stops = [StopStrings(stop) for _ in prompts]
        self.texts = [""] * len(prompts)

    def stream(self, max_tokens: int | None = None, *, context_shift: bool = False) -> Iterator[tuple[int, str]]:
        """(prompt index, new text) until every continuation has ended; what does not fit is refused at once."""
        limit = self._default_length(context_shift) if max_tokens is None else max_tokens
        return self._read(
            generate_ids(self.model.decoder, self.sequences, self.sampler, limit, context_shift=context_shift)
        )

    def completions(self) -> ShownList[Completion]:
        """The results, once the stream has ended."""
        return ShownList(
            Completion(prompt, text, self._kept_ids(sequence, text), sequence.finish_reason or "length")
            for prompt, text, sequence in zip(self.prompts, self.texts, self.sequences, strict=True)
        )

    def _make_sampler(self, sampling: SamplingConfig) -> Sampler:
        return Sampler(sampling, self.model.tokenizer.vocab_size)

    def _encode(self, prompt: Prompt, allow_special: bool) -> list[int]:
        if not isinstance(prompt, str):
            return list(prompt)
        ids, end_id = self.model.encode(prompt, allow_special), self.model.tokenizer.end_id
        if not ids and end_id is not None:  # nothing to continue: what follows the end of a document
            return [end_id]
        return ids

    def _default_length(self, context_shift: bool) -> int:
        """DEFAULT_TOKENS, or what fits after the longest prompt."""
        if context_shift:
            return DEFAULT_TOKENS
        longest = max((len(sequence.prompt) for sequence in self.sequences), default=0)
        context_length = self.model.config.context_length
        if longest == context_length:
            raise ContextLengthError(
                f"the prompt fills the model's context of {context_length}; shorten it, use --slide, or ask for one "
                "token with --max-tokens 1"
            )
        return min(DEFAULT_TOKENS, max(0, context_length - longest))

    def _read(self, tokens: Iterator[tuple[Sequence, int]]) -> Iterator[tuple[int, str]]:
        indices = {id(sequence): index for index, sequence in enumerate(self.sequences)}
        for sequence, token in tokens:
            if token in self.stop_ids:
                sequence.finish_reason = "end"
                continue
            index = indices[id(sequence)]
            yield from self._grow(index, self.stops[index].push(self.decoders[index].push(token)))
            if self.stops[index].stopped:
                sequence.finish_reason = "stop"
        for index in range(len(self.prompts)):
            yield from self._grow(index, self._flush(index))

    def _grow(self, index: int, text: str) -> Iterator[tuple[int, str]]:
        if text:
            self.texts[index] += text
            yield index, text

    def _flush(self, index: int) -> str:
        stops = self.stops[index]
        if stops.stopped:
            return ""
        text = stops.push(self.decoders[index].finish())
        if stops.stopped:  # completed by the last bytes
            self.sequences[index].finish_reason = "stop"
            return text
        return text + stops.finish()

    def _kept_ids(self, sequence: Sequence, text: str) -> list[int]:
        """The generated ids without the end token, and without those that the stop string removed."""
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
        decoder = self.model.tokenizer.stream(before=sequence.prompt)
        return "".join([*map(decoder.push, sequence.generated[:count]), decoder.finish()])


def number_copies(prompts: list[Prompt]) -> list[int]:
    """How often each prompt occurs before: 0, 0, 1 for a, b, a. So a prompt's draws do not depend on the others."""
    return [prompts[:index].count(prompt) for index, prompt in enumerate(prompts)]


class RecordingCompleter(Completer):
    """A completer that keeps a receipt of every sampled token."""

    def completions(self) -> ShownList[Completion]:
        pairs = zip(super().completions(), self.sequences, strict=True)
        return ShownList(
            replace(completion, receipts=ShownList(self.recorder.receipts_of(sequence)))
            for completion, sequence in pairs
        )

    def _make_sampler(self, sampling: SamplingConfig) -> RecordingSampler:
        self.recorder = RecordingSampler(sampling, self.model.tokenizer)
        return self.recorder


def make_completer(
    model: LanguageModel,
    prompts: Iterable[Prompt],
    sampling: SamplingConfig,
    stop: str | list[str] | None = None,
    receipts: bool = False,
    stop_ids: Collection[int] = (),
) -> Completer:
    """A completer, one that keeps receipts where they are asked for."""
    check_model(model)
    if not isinstance(prompts, list | tuple) or not all(isinstance(prompt, str | list) for prompt in prompts):
        raise UsageError("prompts must be a string or a list of strings")
    completer = RecordingCompleter if receipts else Completer
    return completer(model, prompts, sampling, [stop] if isinstance(stop, str) else stop or [], stop_ids=stop_ids)
