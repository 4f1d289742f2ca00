"""Continue text: takes prompts and options from users, yields pieces of text as soon as they are final."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from html import escape
from typing import Any, Unpack, overload

from foretell.config.sampling import SamplingConfig
from foretell.config.sampling_options import SamplingOptions
from foretell.errors import UsageError, check_count, counted
from foretell.generation.batch_generation import make_scheduler, run
from foretell.generation.sampling import Sampler
from foretell.generation.scheduler import Scheduler
from foretell.generation.sequence import FinishReason, Rules, Sequence, check_length
from foretell.generation.speculation import DraftModel, PromptLookup, Proposer
from foretell.inference.continuation import Continuation
from foretell.insight.receipt import Receipt, RecordingSampler
from foretell.language_model import LanguageModel, check_model
from foretell.text import StopStrings, Tokenizer
from foretell.typesetting.html import ShownList

DRAFT_TOKENS = 4
ID = re.compile(r"#(\d+)")
WRITES_SPACES_INTO_WORDS = ("bpe", "unigram")  # kinds with other tokens for a word after a space


def make_sampling(options: Mapping[str, Any], tokenizer: Tokenizer) -> SamplingConfig:
    """The configuration from options, texts converted to ids. Raises UsageError, ConfigError or TokenizerError."""
    values = dict(options)
    if "logit_bias" in values:
        if not isinstance(values["logit_bias"], Mapping):
            raise UsageError("logit_bias maps tokens to numbers, such as logit_bias={' the': -3}")
        values["logit_bias"] = {token_id(token, tokenizer): bias for token, bias in values["logit_bias"].items()}
    if "ban" in values:
        if not isinstance(values["ban"], list | tuple) or any(isinstance(word, int) for word in values["ban"]):
            raise UsageError("ban takes a list of words, such as ban=['word']")
        values["ban"] = list(dict.fromkeys(ids for word in values["ban"] for ids in spellings(word, tokenizer)))
    return SamplingConfig(**values)


def token_id(token: str | int, tokenizer: Tokenizer) -> int:
    """The id of a token given as its id, as '#id', as the name of a special token, or as its text."""
    written = ID.fullmatch(token) if isinstance(token, str) else None
    return tokenizer.id_of(int(written[1]) if written else token)


def spellings(word: str | Iterable[int], tokenizer: Tokenizer) -> list[tuple[int, ...]]:
    """The ids of a word, alone and after a space."""
    if not isinstance(word, str):
        return [tuple(word)]
    if not word:
        raise UsageError("a banned word is empty; give at least one character")
    texts = [word]
    if tokenizer.kind in WRITES_SPACES_INTO_WORDS and not word.startswith(" "):
        texts.append(f" {word}")
    return [tuple(tokenizer.encode(text)) for text in texts]


def make_proposer(model: LanguageModel, speculate: int | None, draft: LanguageModel | None) -> Proposer | None:
    """The draft model if given, else prompt lookup with guesses of `speculate` tokens, else none.

    With a draft model, `speculate` is the length of its guesses. Raises UsageError for a draft model with another
    vocabulary and for a length below 1.
    """
    if speculate is not None and speculate < 1:
        raise UsageError(f"speculate must be 1 token or more, not {speculate}")
    if draft is None:
        return None if speculate is None else PromptLookup(speculate)
    size, other = model.tokenizer.vocab_size, draft.tokenizer.vocab_size
    if size != other or any(model.tokenizer.text_of(token) != draft.tokenizer.text_of(token) for token in range(size)):
        raise UsageError(
            f"the draft model {draft.name} has another tokenizer ({other:,} tokens) than {model.name} ({size:,}); its "
            "guesses would be other texts"
        )
    return DraftModel(draft.decoder, speculate or DRAFT_TOKENS)


Prompt = str | list[int]
DEFAULT_TOKENS = 200
MOST_CONTINUATIONS = 10_000  # for one prompt; each is a sequence that waits in memory
REPR_CHARACTERS = 40  # shown of the prompt and of the text in a completion's repr


@dataclass(frozen=True, repr=False)
class Completion:
    """A prompt and its continuation. `str` gives both; `text` is only the continuation.

    The stop string and the end token are left out of `text` and `token_ids`. `receipts`, if requested, has one receipt
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
        count = counted(len(self.token_ids), "token")
        return f"Completion({prompt}, {text}, {count}, finish_reason={self.finish_reason!r})"

    def _repr_html_(self) -> str:
        prompt, text = escape(self.prompt), escape(self.text)
        return f'<p style="white-space:pre-wrap"><span style="opacity:0.6">{prompt}</span>{text}</p>'

    def to_json(self) -> dict[str, Any]:
        names = ("prompt", "text", "token_ids", "finish_reason")
        values = {name: getattr(self, name) for name in names}
        return values if self.receipts is None else {**values, "receipts": [item.to_json() for item in self.receipts]}


@overload
def generate(
    model: LanguageModel,
    prompts: str,
    max_tokens: int | None = None,
    *,
    n: None = None,
    stop: str | list[str] | None = None,
    slide: bool = False,
    receipts: bool = False,
    **sampling: Unpack[SamplingOptions],
) -> Completion: ...


@overload
def generate(
    model: LanguageModel,
    prompts: str | list[str],
    max_tokens: int | None = None,
    *,
    n: int | None = None,
    stop: str | list[str] | None = None,
    slide: bool = False,
    receipts: bool = False,
    **sampling: Unpack[SamplingOptions],
) -> ShownList[Completion]: ...


def generate(
    model: LanguageModel,
    prompts: str | list[str],
    max_tokens: int | None = None,
    *,
    n: int | None = None,
    stop: str | list[str] | None = None,
    slide: bool = False,
    receipts: bool = False,
    **sampling: Unpack[SamplingOptions],
) -> Completion | ShownList[Completion]:
    """Continue a prompt, or a list of prompts together; a list is returned for a list.

    n: continue each prompt in this many ways, at most 10,000, samples 0 to n - 1; the result is then always a list:
    the n completions of the first prompt, then of the second, and so on. max_tokens: None is 200, or what fits the
    context after the longest prompt. stop: end before any of these strings. slide: when the context is
    full, continue from its last half. receipts: record how each token was sampled. Other keywords are fields of
    `SamplingOptions`.
    The continuation of a prompt does not depend on the other prompts; a prompt given n times is continued in n ways,
    first as if it were alone. Raises ContextLengthError, UsageError or ConfigError before anything is generated,
    CheckpointError for logits that are not finite.
    """
    check_model(model)
    texts = repeated([prompts] if isinstance(prompts, str) else prompts, n)
    completer = make_completer(model, texts, make_sampling(sampling, model.tokenizer), stop, receipts)
    completions = completer.finished(max_tokens, slide=slide)
    return completions[0] if isinstance(prompts, str) and n is None else completions


def stream(
    model: LanguageModel,
    prompt: str,
    max_tokens: int | None = None,
    *,
    stop: str | list[str] | None = None,
    slide: bool = False,
    **sampling: Unpack[SamplingOptions],
) -> Iterator[str]:
    """Pieces of the continuation of one prompt, as they are generated. Arguments and errors as in `generate`."""
    check_model(model)
    if not isinstance(prompt, str):
        raise UsageError(f"stream continues one prompt, a string, not {type(prompt).__name__}; generate takes a list")
    completer = make_completer(model, [prompt], make_sampling(sampling, model.tokenizer), stop)
    return (piece for _, piece in completer.stream(max_tokens, slide=slide))


class Completer:
    """Continues prompts and yields their text while it grows.

    A prompt is a text, or the ids to continue. A text is encoded when it joins the scheduler, since 100,000 waiting
    sequences take 0.4 GB. stop_ids: tokens that end a continuation, besides the end tokens.
    Copies of a prompt draw from random streams 0, 1, 2, ...
    sampler: one that keeps receipts; default: a plain one.
    """

    def __init__(
        self,
        model: LanguageModel,
        prompts: Iterable[Prompt],
        sampling: SamplingConfig,
        stop: list[str],
        stop_ids: Collection[int] = (),
        sampler: Sampler | None = None,
    ):
        tokenizer = model.tokenizer
        self.model, prompts = model, list(prompts)
        self.prompts = [prompt if isinstance(prompt, str) else model.decode(prompt) for prompt in prompts]
        self.stop_ids = frozenset([*tokenizer.end_ids, *stop_ids])
        self.sampler = sampler or Sampler(sampling, tokenizer.vocab_size, tokenizer.token_bytes)
        self.min_tokens, self.stop = sampling.min_tokens, stop
        StopStrings(stop)  # refuses an empty one
        self.given, self.samples = prompts, number_copies(prompts)
        self.rules: Rules | None = None
        self.continuations: dict[int, Continuation] = {}  # of the prompts that have joined

    @property
    def sequences(self) -> list[Sequence]:
        return [self.continuation(index).sequence for index in range(len(self.given))]

    def continuation(self, index: int) -> Continuation:
        if index not in self.continuations:
            sequence = Sequence(self._encode(self.given[index]), self.samples[index], rules=self.rules)
            self.continuations[index] = Continuation(self.model.tokenizer, sequence, StopStrings(self.stop))
        return self.continuations[index]

    def forget(self, index: int) -> None:
        """Release the memory of a continuation that is no longer needed."""
        del self.continuations[index]

    @cached_property
    def lengths(self) -> list[int]:
        """The number of tokens of each prompt."""
        return [len(self._encode(prompt)) for prompt in self.given]

    def stream(
        self, max_tokens: int | None = None, *, slide: bool = False, scheduler: Scheduler | None = None
    ) -> Iterator[tuple[int, str]]:
        """(prompt index, new text) until every continuation has ended; arguments and errors as in `advance`."""
        items = self.advance(max_tokens, slide=slide, scheduler=scheduler)
        return ((index, text) for index, text, _ in items if text)

    def advance(
        self,
        max_tokens: int | None = None,
        *,
        slide: bool = False,
        scheduler: Scheduler | None = None,
        proposer: Proposer | None = None,
    ) -> Iterator[tuple[int, str, bool]]:
        """(prompt index, new text, has it ended) for every token; prompts that do not fit are refused at once.

        scheduler: one for the same model, whose cache may hold the beginnings of the prompts; default: a new one that
        uses the proposer, if there is one.
        """
        limit = self._default_length(slide) if max_tokens is None else max_tokens
        rules = Rules(self.sampler, limit, self.stop_ids, slide)
        by_length = {length: Sequence([0] * length, rules=rules) for length in self.lengths}
        for sequence in by_length.values():
            check_length(sequence, self.model.config.context_length)
        if self.min_tokens > limit:
            raise UsageError(f"min_tokens {self.min_tokens} is above the {limit} tokens to generate")
        self.rules = rules
        for continuation in self.continuations.values():
            continuation.sequence.rules = rules
        like_these = [by_length[length] for length in self.lengths]
        return self._read(scheduler or make_scheduler(self.model.decoder, like_these, proposer), limit)

    def finished(self, max_tokens: int | None = None, *, slide: bool = False) -> ShownList[Completion]:
        """Generate everything and return the results; arguments and errors as in `advance`."""
        for _ in self.advance(max_tokens, slide=slide):
            pass
        return self.completions()

    def completions(self) -> ShownList[Completion]:
        """The results, once all have ended."""
        return ShownList(map(self.completion, range(len(self.given))))

    def completion(self, index: int) -> Completion:
        """The result of one prompt, once it has ended."""
        continuation = self.continuation(index)
        reason = continuation.sequence.finish_reason or "length"
        return Completion(self.prompts[index], continuation.text, continuation.kept_ids(), reason)

    def _encode(self, prompt: Prompt) -> list[int]:
        if not isinstance(prompt, str):
            return list(prompt)
        ids, end_id = self.model.encode(prompt), self.model.tokenizer.end_id
        if not ids and end_id is not None:  # an empty prompt: begin a new document
            return [end_id]
        return ids

    def _default_length(self, slide: bool) -> int:
        """DEFAULT_TOKENS, or fewer if only fewer fit after the longest prompt."""
        if slide:
            return DEFAULT_TOKENS
        longest = max(self.lengths, default=0)
        room = self.model.config.context_length + 1 - longest  # the last token is predicted, but not read
        return min(DEFAULT_TOKENS, max(1, room))  # `check_length` refuses a longer prompt

    def _read(self, scheduler: Scheduler, limit: int) -> Iterator[tuple[int, str, bool]]:
        indices, num_read = dict[Sequence, int](), Counter[Sequence]()

        def joining() -> Iterator[Sequence]:
            for index in range(len(self.given)):
                sequence = self.continuation(index).sequence
                indices[sequence] = index
                yield sequence

        for sequence, *_ in run(scheduler, joining()):
            num_read[sequence] += 1  # a pass with guesses has several tokens, of which only the last ends a sequence
            has_ended = sequence.finish_reason is not None and num_read[sequence] == len(sequence.generated)
            index = indices[sequence]
            yield index, self.continuations[index].new_text(), has_ended
            if has_ended:
                del indices[sequence], num_read[sequence]
        if limit == 0:  # nothing was generated
            yield from ((index, "", True) for index in range(len(self.given)))


def number_copies(prompts: list[Prompt]) -> list[int]:
    """Count how often each prompt occurred before, such as 0, 0, 1 for a, b, a; this chooses its random stream."""
    counts: Counter[str | tuple[int, ...]] = Counter()
    numbers = []
    for prompt in prompts:
        key = prompt if isinstance(prompt, str) else tuple(prompt)
        numbers.append(counts[key])
        counts[key] += 1
    return numbers


def repeated(prompts: list[str], n: int | None) -> list[str]:
    """Each prompt n times in a row."""
    if n is not None:
        check_count("n", n)
        if n > MOST_CONTINUATIONS:
            raise UsageError(f"n must be {MOST_CONTINUATIONS:,} or less, not {n:,}; for more, use other seeds")
    if not isinstance(prompts, list | tuple) or not all(isinstance(prompt, str) for prompt in prompts):
        raise UsageError("prompts must be a string or a list of strings")
    return [prompt for prompt in prompts for _ in range(n or 1)]


class RecordingCompleter(Completer):
    """A completer that keeps a receipt of every sampled token."""

    def __init__(self, model: LanguageModel, *arguments: Any, recorder: RecordingSampler):
        super().__init__(model, *arguments, sampler=recorder)
        self.recorder = recorder

    def completion(self, index: int) -> Completion:
        receipts = ShownList(self.recorder.receipts_of(self.continuation(index).sequence))
        return replace(super().completion(index), receipts=receipts)


def make_completer(
    model: LanguageModel,
    prompts: Iterable[Prompt],
    sampling: SamplingConfig,
    stop: str | list[str] | None = None,
    receipts: bool = False,
    stop_ids: Collection[int] = (),
) -> Completer:
    """A completer; one that keeps receipts if they are requested."""
    stops = [stop] if isinstance(stop, str) else [] if stop is None else stop
    if not receipts:
        return Completer(model, prompts, sampling, stops, stop_ids)
    recorder = RecordingSampler(sampling, model.tokenizer)
    return RecordingCompleter(model, prompts, sampling, stops, stop_ids, recorder=recorder)
