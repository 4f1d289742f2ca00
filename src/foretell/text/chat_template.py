"""Conversations as text (by a Jinja template) and as token ids, with the spans and end tokens of the answers.

A conversation is cut where answers begin and end, and each piece is encoded separately. The ids differ from the ids of
the whole text if the tokenizer would merge the end of a prompt and the beginning of an answer into one token. But
training and generation see the same ids after a prompt, and no token is half prompt, half answer.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal

from foretell.errors import TokenizerError, UsageError, as_path, did_you_mean
from foretell.storage.files import TEMPLATE_LIMIT, read_text
from foretell.text.template_sandbox import SandboxedTemplate
from foretell.text.tokenizer import Tokenizer
from foretell.text.tokenizer_json import END, with_ends

Role = Literal["system", "user", "assistant"]

PLAIN = """{{ bos_token }}{% for message in messages %}
{% if message.role == 'system' %}{{ message.content + '\n\n' }}
{%- elif message.role == 'user' %}{{ 'User: ' + message.content + '\n' }}
{%- else %}{{ 'Assistant: ' + message.content + eos_token + '\n' }}
{%- endif %}
{% endfor %}
{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}
"""
CHATML = """{{ bos_token }}{% for message in messages %}
{{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}
{%- endfor %}
{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}
"""
ALPACA = """{{ bos_token }}{% for message in messages %}
{% if message.role == 'system' %}{{ message.content + '\n\n' }}
{%- elif message.role == 'user' %}{{ '### Instruction:\n' + message.content + '\n\n' }}
{%- else %}{{ '### Response:\n' + message.content + eos_token + '\n\n' }}
{%- endif %}
{% endfor %}
{% if add_generation_prompt %}{{ '### Response:\n' }}{% endif %}
"""
LLAMA3 = """{{ bos_token }}{% for message in messages %}
{{- '<|start_header_id|>' + message.role + '<|end_header_id|>\n\n' + message.content + '<|eot_id|>' }}
{%- endfor %}
{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}
"""
BUILT_IN = {"plain": PLAIN, "chatml": CHATML, "alpaca": ALPACA, "llama3": LLAMA3}
SPECIAL_NAME = re.compile(r"<\|[^<>|\s]{1,40}\|>")  # the usual notation of special tokens


@dataclass(frozen=True)
class Message:
    """A turn. learned: False for an answer that is only read, because the data mark it so."""

    role: Role
    content: str
    learned: bool = True

    def to_json(self) -> dict[str, str]:
        return {"role": self.role, "content": self.content}


@dataclass(frozen=True)
class ChatTemplate:
    """A Jinja template for conversations. It is compiled at first use, which can raise TokenizerError."""

    name: str
    source: str

    @cached_property
    def _compiled(self) -> SandboxedTemplate:
        return SandboxedTemplate(self.source, f"the chat template of {self.name}")

    @property
    def special_names(self) -> list[str]:
        return list(dict.fromkeys(SPECIAL_NAME.findall(self.source)))

    def render(self, messages: Sequence[Message], tokenizer: Tokenizer, *, add_generation_prompt: bool = False) -> str:
        """The conversation as text; with `add_generation_prompt`, followed by the beginning of an answer.

        Raises TokenizerError if the template refuses the conversation, does not end or is unsafe.
        """
        starts, end_id = tokenizer.start_ids, tokenizer.end_id
        return self._compiled.render(
            messages=[message.to_json() for message in messages],
            add_generation_prompt=add_generation_prompt,
            bos_token=tokenizer.piece(starts[0]) if starts else "",
            eos_token="" if end_id is None else tokenizer.piece(end_id),
            tools=None,
            documents=None,
        )


def find_template(argument: str) -> ChatTemplate:
    """A built-in template by name, or a template from a file."""
    path = as_path("the template", argument)
    if argument in BUILT_IN:
        return ChatTemplate(argument, BUILT_IN[argument])
    if not (path.suffix or os.sep in argument):
        known = ", ".join(BUILT_IN)
        raise UsageError(
            f"no chat template '{argument}'{did_you_mean(argument, BUILT_IN)}; known: {known}, or the path of a file"
        )
    return ChatTemplate(path.name, read_text(path, TEMPLATE_LIMIT, TokenizerError))


def own_template(tokenizer: Tokenizer, name: str) -> ChatTemplate | None:
    """The template that came with a tokenizer, by its name if it is a built-in one; None if there is none."""
    source = tokenizer.chat_template
    built_in = (known for known, text in BUILT_IN.items() if text == source)
    return None if source is None else ChatTemplate(next(built_in, name), source)


def missing_names(template: ChatTemplate, tokenizer: Tokenizer) -> list[str]:
    """The special tokens in a template that a tokenizer does not have."""
    return [name for name in template.special_names if name not in tokenizer.special_tokens]


def check_template(template: ChatTemplate, tokenizer: Tokenizer) -> None:
    """Refuse a template whose text does not contain a question and its answer."""
    question, answer = Message("user", "question"), Message("assistant", "answer")
    text = template.render([question, answer], tokenizer)
    if not 0 <= text.find(question.content) < text.find(answer.content):
        raise TokenizerError(f"the chat template of {template.name} leaves out a question or its answer")


PRIVATE_USE = range(0xE000, 0xF900)  # private-use characters, which replace special names inside messages
QUESTION, ANSWER, NEXT = "question7f", "answer7f", "next7f"  # texts to find in a rendered conversation
SHORTEST_STOP = 3  # the shortest name of the next speaker, in characters, that stops an answer


@dataclass(frozen=True)
class ChatPiece:
    """A piece of a rendered conversation; an answer's piece includes its end marker."""

    text: str
    is_answer: bool
    learned: bool = False


@dataclass(frozen=True)
class ChatTokens:
    """A conversation's ids, and a mask of the ids in answers that a model learns."""

    ids: list[int] = field(default_factory=list)
    is_answer: list[bool] = field(default_factory=list)

    def add(self, ids: Sequence[int], is_answer: bool) -> None:
        self.ids.extend(ids)
        self.is_answer.extend([is_answer] * len(ids))

    def cut(self, length: int) -> ChatTokens:
        """The first `length` tokens."""
        return ChatTokens(self.ids[:length], self.is_answer[:length])

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def answer_tokens(self) -> int:
        return sum(self.is_answer)


class RenderedChat:
    """A conversation rendered by a template, and the spans of its answers.

    A message may contain the name of a special token. The name is replaced by a mark, a character that occurs in no
    message, so that it is not encoded as the token; `marks` maps marks to names.
    """

    def __init__(self, messages: Sequence[Message], template: ChatTemplate, tokenizer: Tokenizer):
        self.template, self.tokenizer = template, tokenizer
        content = "".join(message.content for message in messages)
        tokenizer.note_spelled([content])
        names = sorted((name for name in tokenizer.special_tokens if name in content), key=len, reverse=True)
        free = (chr(code) for code in PRIVATE_USE if chr(code) not in content) if names else iter(())
        self.marks = dict(zip(free, names, strict=False))
        self.messages = [replace(message, content=self._marked(message.content)) for message in messages]
        self._texts: dict[tuple[int, bool], str] = {}

    def _marked(self, text: str) -> str:
        for mark, name in self.marks.items():
            text = text.replace(name, mark)
        return text

    def text(self, count: int, *, add_generation_prompt: bool = False) -> str:
        key = count, add_generation_prompt
        if key not in self._texts:
            self._texts[key] = self.template.render(
                self.messages[:count], self.tokenizer, add_generation_prompt=add_generation_prompt
            )
        return self._texts[key]

    @property
    def answers(self) -> list[int]:
        return [index for index, message in enumerate(self.messages) if message.role == "assistant"]

    def answer_span(self, index: int, turn_end: str) -> tuple[int, int] | None:
        """The span of an answer, including its `turn_end`, in the text of the messages up to it.

        It begins at the end of the prompt's text. None if the text with the answer does not begin with the prompt.
        """
        closed, prompt = self.text(index + 1), self.text(index, add_generation_prompt=True)
        content = self.messages[index].content.strip()
        start = closed.find(content, len(prompt)) if closed.startswith(prompt) else -1
        if start < 0:
            return None
        end = closed.find(turn_end, start + len(content))
        return len(prompt), start + len(content) if end < 0 else end + len(turn_end)

    def pieces(self, turn_end: str, *, add_generation_prompt: bool = False) -> list[ChatPiece] | None:
        """The text cut at answers; None if the template changes an earlier turn when later turns follow."""
        whole = self.text(len(self.messages), add_generation_prompt=add_generation_prompt)
        pieces: list[ChatPiece] = []
        done = 0
        for index in self.answers:
            span = self.answer_span(index, turn_end)
            if span is None or not whole.startswith(self.text(index + 1)[: span[1]]):
                return None
            answer = ChatPiece(whole[span[0] : span[1]], True, self.messages[index].learned)
            pieces += [ChatPiece(whole[done : span[0]], False), answer]
            done = span[1]
        return [*pieces, ChatPiece(whole[done:], False)]

    def last_answer(self, index: int, turn_end: str) -> list[ChatPiece]:
        prompt, span = self.text(index, add_generation_prompt=True), self.answer_span(index, turn_end)
        answer = self.messages[index].content.strip() + turn_end if span is None else self.text(index + 1)[slice(*span)]
        return [ChatPiece(prompt, False), ChatPiece(answer, True, True)]


class ChatFormat:
    """A template with its tokenizer. Raises TokenizerError for a template that cannot be used.

    turn_end: the text that ends an answer; empty if the template has none, and then the tokenizer's end token is added.
    stop_ids, stop_texts: the tokens and texts that end a generated answer, such as the header of the next speaker.
    """

    def __init__(self, template: ChatTemplate, tokenizer: Tokenizer):
        self.template, self.tokenizer = template, tokenizer
        check_template(template, tokenizer)
        turns = [Message("user", QUESTION), Message("assistant", ANSWER), Message("user", NEXT)]
        chat = RenderedChat(turns, template, tokenizer)
        self.turn_end = chat.text(2).rpartition(ANSWER)[2].rstrip()
        following = chat.text(3).rpartition(ANSWER)[2].partition(NEXT)[0]
        header = following.removeprefix(self.turn_end).rstrip()
        marks = tokenizer.encode(self.turn_end.lstrip(), allow_special=True)[:1]
        is_token = not set(marks).isdisjoint(tokenizer.special_tokens.values())
        self.stop_ids = frozenset([*tokenizer.end_ids, *(marks if is_token else [])])
        # a plain word such as `user` is likely in an answer
        is_distinct = len(header.strip()) >= SHORTEST_STOP and not header.strip().isalnum()
        texts = [header if is_distinct else "", "" if is_token else self.turn_end.lstrip()]
        self.stop_texts = [text for text in texts if text]

    def encode(self, messages: Sequence[Message]) -> list[ChatTokens]:
        """A conversation for training: its ids up to the last answer, with the learned answers marked.

        Usually one ChatTokens. Some templates change a turn when later ones follow, for example to leave out earlier
        thoughts; then there is one ChatTokens per learned answer, with its prompt.
        """
        chat = RenderedChat(messages, self.template, self.tokenizer)
        pieces = chat.pieces(self.turn_end)
        if pieces is not None:
            return [self._tokens(pieces[:-1], chat)]
        learned = (index for index in chat.answers if chat.messages[index].learned)
        return [self._tokens(chat.last_answer(index, self.turn_end), chat) for index in learned]

    def encode_prompt(self, messages: Sequence[Message]) -> list[int]:
        """The ids before the next answer, encoded in the same pieces as in training."""
        chat = RenderedChat(messages, self.template, self.tokenizer)
        pieces = chat.pieces(self.turn_end, add_generation_prompt=True)
        if pieces is None:
            pieces = [ChatPiece(chat.text(len(messages), add_generation_prompt=True), False)]
        return self._tokens(pieces, chat).ids

    def _tokens(self, pieces: Sequence[ChatPiece], chat: RenderedChat) -> ChatTokens:
        tokens = ChatTokens()
        for piece in pieces:
            tokens.add(self._encode(piece.text, chat.marks), piece.learned)
            if piece.is_answer and not self.turn_end and self.tokenizer.end_id is not None:
                tokens.add([self.tokenizer.end_id], piece.learned)
        return tokens

    def _encode(self, text: str, marks: Mapping[str, str]) -> list[int]:
        """The ids of a piece. Only the template's special tokens become tokens; names in messages stay text."""
        ids: list[int] = []
        for part in re.split(f"([{''.join(marks)}])", text) if marks else [text]:
            if part:
                is_name = part in marks
                ids += self.tokenizer.encode(marks[part] if is_name else part, allow_special=not is_name)
        return ids


def prepare_tokenizer(tokenizer: Tokenizer, template: ChatTemplate, *, add_tokens: bool = True) -> Tokenizer:
    """The tokenizer with a template and the special tokens that it needs; a token that ends a turn also ends a text.

    The ids of new tokens begin at `vocab_size`. Without `add_tokens`, missing names stay ordinary text; only an end
    token is added, if the template needs one and there is none.
    """
    names = missing_names(template, tokenizer) if add_tokens else []
    if "eos_token" in template.source and tokenizer.end_id is None:
        names.append(END)
    ends = [tokenizer.piece(token_id) for token_id in tokenizer.end_ids]
    prepared = tokenizer.with_special_tokens(names) if names else tokenizer
    turn_ends = ChatFormat(template, prepared).stop_ids - set(prepared.end_ids)
    if turn_ends:
        ends = ends or [prepared.piece(token_id) for token_id in prepared.end_ids]
        ends += [prepared.piece(token_id) for token_id in sorted(turn_ends)]
        prepared = Tokenizer(with_ends(prepared.to_json(), ends))
    return prepared.with_chat_template(template.source, tokenizer.notes)
