"""A conversation with a model: history, a template, streamed answers, and what to drop when the context is full."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Unpack

from torch import Tensor

from foretell.config.sampling import SamplingConfig
from foretell.config.sampling_options import SamplingOptions
from foretell.errors import ContextLengthError, UsageError, check_count, check_type, counted
from foretell.generation.filters import Prefixes
from foretell.generation.scheduler import Scheduler
from foretell.generation.sequence import FinishReason
from foretell.inference.completion import Completer, make_sampling
from foretell.insight.attribution.direct_logit_attribution import DirectLogitAttribution, direct_logit_attribution
from foretell.insight.receipt import Receipt, RecordingSampler
from foretell.language_model import LanguageModel, check_model
from foretell.model.decoder import Decoder
from foretell.model.paged_cache import POSITIONS_PER_BLOCK
from foretell.text.chat_template import ChatFormat, ChatTemplate, Message, find_template, own_template

FALLBACK_TEMPLATE = "plain"
ROOM_SHARE = 4  # at least 1 / ROOM_SHARE of the context is kept for the answer while older turns can be dropped
RECEIPTS_KEPT = 64

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Answer:
    """An answer. `str` gives its text.

    finish_reason: end (of the turn), stop (the next speaker's name follows), length, context (it is full), or
    interrupted. dropped: how many of the oldest messages the model did not see, because the context was full.
    """

    text: str
    token_ids: list[int]
    finish_reason: FinishReason | Literal["interrupted"]
    dropped: int

    def __str__(self) -> str:
        return self.text

    def to_json(self) -> dict[str, Any]:
        return vars(self)


class Chat:
    """A conversation with a model.

        chat = foretell.Chat(model, system="Answer in one sentence.")
        print(chat.say("What is a decoder?"))
        for piece in chat.stream("And an encoder?"):
            print(piece, end="")

    template: a built-in name, a file, or a `ChatTemplate`; by default the model's own, and `plain` for a model without
    one, which the log "foretell" reports. max_tokens: the limit of an answer; default: what fits the context. The
    other keywords are fields of `SamplingConfig`. `messages` is the history, with the system message; `answer` the last
    answer.
    Raises TokenizerError for a template that cannot be used, UsageError or ConfigError for wrong arguments.
    """

    def __init__(
        self,
        model: LanguageModel,
        system: str | None = None,
        *,
        template: str | ChatTemplate | None = None,
        max_tokens: int | None = None,
        **sampling: Unpack[SamplingOptions],
    ):
        check_model(model)
        if max_tokens is not None:
            check_count("max_tokens", max_tokens)
        self.model, self.max_tokens = model, max_tokens
        self.sampling = make_sampling(sampling, model.tokenizer)
        self.format = ChatFormat(choose_template(model, template), model.tokenizer)
        self.messages: list[Message] = []
        self.answer: Answer | None = None
        self._dropped = 0  # turns left out because the context is full
        self._sampler: NewestReceipts | None = None
        self._scheduler: tuple[list[int], Scheduler] | None = None  # with the model's state when it was made
        self.set_system(system)

    def __repr__(self) -> str:
        return f"Chat({self.model.name!r}, {counted(len(self.messages), 'message')})"

    def say(self, text: str) -> Answer:
        """The answer to a text; both are added to the history. Raises the errors of `stream`."""
        for _ in self.stream(text):
            pass
        assert self.answer is not None, "a stream that ended has an answer"
        return self.answer

    def stream(self, text: str) -> Generator[str]:
        """Pieces of the answer to a text, as they are generated.

        The question and the answer, even if interrupted or not read to its end, are added to the history.
        Raises UsageError for an empty text, ContextLengthError for one that leaves no room for an answer.
        """
        if not isinstance(text, str) or not text.strip():
            raise UsageError("the message must be a text that is not empty; write something")
        asked = [*self.messages, Message("user", text)]
        prompt, dropped = self._fitting_prompt(asked)
        limit = self.model.config.context_length + 1 - len(prompt)  # the last token is predicted, but not read
        stop_texts, stop_ids = self.format.stop_texts, self.format.stop_ids
        sampler = NewestReceipts(self.sampling, self.model)
        completer = Completer(self.model, [prompt], self.sampling, stop_texts, stop_ids, sampler)
        pieces = completer.stream(
            limit if self.max_tokens is None else min(limit, self.max_tokens), scheduler=self._current_scheduler()
        )
        return self._read(asked, dropped, sampler, completer, pieces)

    def _current_scheduler(self) -> Scheduler:
        """The scheduler whose cache holds the conversation so far; a new one after the model was changed."""
        decoder = self.model.decoder
        state = state_of(decoder)
        if self._scheduler is None or self._scheduler[0] != state:
            blocks = 2 * -(-decoder.config.context_length // POSITIONS_PER_BLOCK)
            self._scheduler = state, Scheduler(decoder, num_blocks=blocks)
        return self._scheduler[1]

    def _read(
        self,
        asked: list[Message],
        dropped: int,
        sampler: NewestReceipts,
        completer: Completer,
        pieces: Iterator[tuple[int, str]],
    ) -> Generator[str]:
        written, is_finished = "", False
        self._sampler = sampler
        try:
            for _, piece in pieces:
                shown = piece if written else piece.lstrip()
                written += shown
                if shown:
                    yield shown
            is_finished = True
        finally:
            self._finish(asked, dropped, completer, is_finished)

    def _finish(self, asked: list[Message], dropped: int, completer: Completer, is_finished: bool) -> None:
        """Add question and answer to the history, unless the answer is empty."""
        completion, sequence = completer.completions()[0], completer.sequences[0]
        reason = completion.finish_reason if is_finished else "interrupted"
        if reason == "length" and len(sequence.prompt) + len(sequence.generated) > self.model.config.context_length:
            reason = "context"
        self.answer = Answer(completion.text.strip(), completion.token_ids, reason, dropped)
        if self.answer.text:
            self.messages = [*asked, Message("assistant", self.answer.text)]
        elif is_finished:
            logger.warning("the answer is empty; the question is not kept")

    # ------------------------------------------------------------------ history

    @property
    def system(self) -> str | None:
        return self.messages[0].content if self.messages[:1] and self.messages[0].role == "system" else None

    def set_system(self, text: str | None) -> None:
        """Replace the system message, None or an empty text: remove it. The turns stay."""
        check_type("system", text, str | None, "a string")
        turns = [message for message in self.messages if message.role != "system"]
        self.messages = [Message("system", text), *turns] if text and text.strip() else turns

    def reset(self) -> None:
        """Forget all turns; the system message stays."""
        self.messages = [message for message in self.messages if message.role == "system"]
        self.answer, self._sampler, self._dropped = None, None, 0

    def to_json(self) -> dict[str, Any]:
        """The history in the shape that `finetune --task chat` reads."""
        return {"messages": [message.to_json() for message in self.messages]}

    def _fitting_prompt(self, messages: Sequence[Message]) -> tuple[list[int], int]:
        """The ids of a prompt that leaves room for an answer, and the number of the oldest turns left out.

        Turns are dropped in pairs, never the system message or the question.
        """
        system = [message for message in messages if message.role == "system"]
        turns = [message for message in messages if message.role != "system"]
        length = self.model.config.context_length
        room = max(1, min(self.max_tokens or length, length // ROOM_SHARE))
        dropped = min(self._dropped, len(turns) - 1)
        prompt = self.format.encode_prompt([*system, *turns[dropped:]])
        while len(prompt) + room > length + 1 and dropped + 2 < len(turns):
            dropped += 2
            prompt = self.format.encode_prompt([*system, *turns[dropped:]])
        if len(prompt) > length:
            raise ContextLengthError(
                f"the message takes {len(prompt):,} tokens with its template, but the model's context is {length:,}; "
                "shorten it"
            )
        self._dropped = dropped
        if dropped:
            logger.warning(f"context full: the model does not see the oldest {dropped} messages")
        return prompt, dropped

    # ------------------------------------------------------------------ what decided a token

    def receipt(self, back: int = 1) -> Receipt:
        """Explain how a token of the last answer was sampled, `back` tokens from its end.

        The last token usually ends the turn. Only the newest 64 are kept. Raises UsageError if there is none.
        """
        kept = [] if self._sampler is None else list(self._sampler.newest)
        if not 1 <= back <= len(kept):
            have = f"the last answer has {len(kept)}" if kept else "there is no answer yet"
            raise UsageError(f"no token {back} from the end: {have}")
        return kept[-back]

    def attribution(self, back: int = 1) -> DirectLogitAttribution:
        """The contribution of each part of the model to the logit of that token, in a new pass over the text before."""
        receipt = self.receipt(back)
        return direct_logit_attribution(self.model, list(receipt.ids), token=receipt.token)


class NewestReceipts(RecordingSampler):
    """A sampler that keeps only the newest tokens' receipts, because each holds a number for every vocabulary token."""

    def __init__(self, config: SamplingConfig, model: LanguageModel):
        super().__init__(config, model.tokenizer)
        self.newest: deque[Receipt] = deque(maxlen=RECEIPTS_KEPT)

    def __call__(self, logits: Tensor, prefixes: Prefixes, samples: list[int]) -> list[int]:
        tokens = super().__call__(logits, prefixes, samples)
        self.newest.extend(self._receipts.values())
        self._receipts.clear()
        return tokens


def state_of(decoder: Decoder) -> list[int]:
    """Numbers that change when a module is replaced or a weight is changed in place."""
    weights = [*decoder.parameters(), *decoder.buffers()]
    versions = [weight._version for weight in weights if not weight.is_inference()]
    return [*map(id, decoder.modules()), *map(id, weights), *versions]


def choose_template(model: LanguageModel, template: str | ChatTemplate | None) -> ChatTemplate:
    """The given template, else the model's own, else the plain one, with a note in the log."""
    if isinstance(template, ChatTemplate):
        return template
    if template is not None:
        return find_template(template)
    own = own_template(model.tokenizer, model.name)
    if own is None:
        logger.warning(
            f"{model.name} has no chat template and was probably not tuned to answer; messages are written as "
            f"'User: ...', 'Assistant: ...' (template {FALLBACK_TEMPLATE})"
        )
        return find_template(FALLBACK_TEMPLATE)
    return own
