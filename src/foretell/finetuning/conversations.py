"""Conversations from files: JSON lists, JSON Lines and tables in the usual forms of published chat data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from foretell.data.learned import (
    NOT_LEARNED,
    ROW_FIELDS,
    SPAN_FIELDS,
    TURN_FIELDS,
    is_empty,
    is_learned,
    learned_flags,
)
from foretell.data.questions import CHAT_FIELDS
from foretell.data.table import Row, describe_type, list_names, open_table
from foretell.errors import DataError, counted, did_you_mean
from foretell.text.chat_template import Message, Role

WRITTEN: dict[Role, tuple[str, ...]] = {  # our roles, and their names in published data
    "system": ("system", "developer"),
    "user": ("user", "human"),
    "assistant": ("assistant", "gpt", "chatgpt", "bot", "model"),
}
ROLES = {name: role for role, names in WRITTEN.items() for name in names}
MOST_UNREAD = 8  # fields that a note names
SHAPES = (
    "messages (role, content); conversations (from, value); instruction, input, output; prompt, completion; prompt, "
    "chosen, rejected"
)
QUESTION_FIELDS, ANSWER_FIELDS = ("instruction", "prompt"), ("output", "completion", "response")
CONTENT_FIELDS = ("role", "from", "content", "value")
CHOSEN = "of preference rows the answer 'chosen' is taken, and 'rejected' is not used"
LEADING = "answers before the first question are left out"
TRAILING = "turns after the last learned answer are left out"
ONLY_READ = "answers that are marked as not to be learned are only read"
ONLY_ANSWERS = "questions that are marked to be learned are only read"


@dataclass(frozen=True)
class Conversation:
    """Turns that end with a learned answer, and their file and row."""

    messages: tuple[Message, ...]
    where: str


@dataclass
class ConversationReader:
    """Reads files and counts omissions; `notes` returns a line for each kind."""

    counts: Counter[str] = field(default_factory=Counter)
    unread: Counter[str] = field(default_factory=Counter)  # fields without a meaning here

    def read(self, paths: Sequence[str | Path]) -> list[Conversation]:
        """The conversations of files, in order.

        Raises DataError, with the row, for unknown roles, empty turns, missing fields and marks that contradict each
        other, and for files without any conversation to learn.
        """
        rows = [row for path in paths for row in open_table(path)]
        conversations = [each for row in rows if (each := self._conversation(row)) is not None]
        if not rows:
            raise DataError(f"{', '.join(map(str, paths))}: holds no conversation; rows have {SHAPES}")
        if not conversations:
            raise DataError(f"{', '.join(map(str, paths))}: every answer is marked as not to be learned")
        return conversations

    @property
    def notes(self) -> list[str]:
        notes = [f"{what} ({counted(count, 'row')})" for what, count in self.counts.items()]
        names = ", ".join(f"{name!r} ({count:,})" for name, count in self.unread.most_common(MOST_UNREAD))
        more = len(self.unread) - MOST_UNREAD
        return [*notes, *([f"fields that are not read: {names}" + f" and {more} more" * (more > 0)] if names else [])]

    def _conversation(self, row: Row) -> Conversation | None:
        """The conversation of a row; None if no answer is to be learned."""
        flags = learned_flags(row.cells, ROW_FIELDS)
        messages, used = self._turns(row.cells, row.where)
        if not is_empty(row.cells.get("system")):
            messages.insert(0, Message("system", text_field(row.cells, "system", row.where)))
        self._count_unread(row.cells, {*used, "system", *flags})
        kept = self._trimmed(messages, row.where) if is_learned(flags, row.where) else []
        self.counts.update([] if kept else [NOT_LEARNED])
        return Conversation(tuple(kept), row.where) if kept else None

    def _turns(self, row: Mapping[str, Any], where: str) -> tuple[list[Message], set[str]]:
        """The turns of a row, and the names of the fields that hold them."""
        asked = next((name for name in (*CHAT_FIELDS, *QUESTION_FIELDS) if name in row), None)
        answered = next((name for name in ("chosen", *ANSWER_FIELDS) if name in row), None)
        if asked in CHAT_FIELDS and answered != "chosen":
            return self._turns_of(row[asked], where), {asked}
        if answered is None or (asked is None and not are_turns(row[answered])):
            missing = "a question" if asked is None else "an answer"
            raise DataError(f"{where}: no field with {missing} among {list_names(list(row))}; a row has {SHAPES}")
        self.counts.update([CHOSEN] if answered == "chosen" else [])
        answers = self._part(row, answered, "assistant", where)
        used = {answered, *(["rejected", *ANSWER_FIELDS] if answered == "chosen" else [])}
        if asked is None:
            return answers, used
        before = [*self._history(row.get("history"), where), *self._part(row, asked, "user", where)]
        if extra := row.get("input"):
            before[-1] = replace(before[-1], content=f"{before[-1].content}\n\n{text_in(extra, f'{where}, input')}")
        turns = answers if answers[: len(before)] == before else [*before, *answers]
        return turns, {*used, asked, "history", "input"}

    def _part(self, row: Mapping[str, Any], name: str, role: Role, where: str) -> list[Message]:
        """A field's turns, or its text as one turn."""
        value = row[name]
        if name in CHAT_FIELDS or are_turns(value):
            return self._turns_of([value] if isinstance(value, dict) else value, where)
        return [Message(role, text_field(row, name, where))]

    def _history(self, pairs: Any, where: str) -> list[Message]:
        """Alpaca's earlier turns: pairs of an instruction and its answer."""
        pairs = [] if is_empty(pairs) else pairs
        if not isinstance(pairs, list) or not all(isinstance(pair, list) and len(pair) == 2 for pair in pairs):
            raise DataError(f"{where}: 'history' is not a list of pairs [instruction, output]")
        roles: tuple[Role, Role] = ("user", "assistant")
        turns = [(role, text) for pair in pairs for role, text in zip(roles, pair, strict=True)]
        return [Message(role, text_field({"history": text}, "history", where)) for role, text in turns]

    def _trimmed(self, messages: list[Message], where: str) -> list[Message]:
        """The turns from the first question to the last learned answer, with system messages; empty without one."""
        first = next((index for index, turn in enumerate(messages) if turn.role == "user"), len(messages))
        kept = [*(turn for turn in messages[:first] if turn.role == "system"), *messages[first:]]
        if all(turn.role != "assistant" for turn in kept):
            raise DataError(f"{where}: no question with an answer; nothing can be learned from it")
        last = max((index for index, turn in enumerate(kept) if turn.role == "assistant" and turn.learned), default=-1)
        if last >= 0:
            self.counts.update([LEADING] if len(kept) < len(messages) else [])
            self.counts.update([TRAILING] if last + 1 < len(kept) else [])
            self.counts.update([] if all(turn.learned for turn in kept[: last + 1]) else [ONLY_READ])
        return kept[: last + 1]

    def _turns_of(self, turns: Any, where: str) -> list[Message]:
        if not isinstance(turns, list) or not turns:
            raise DataError(
                f"{where}: the turns are {describe_type(turns)}; give a list of objects with role and content"
            )
        return [self._turn(turn, f"{where}, turn {number}") for number, turn in enumerate(turns, start=1)]

    def _turn(self, turn: Any, where: str) -> Message:
        """One message, with role and content, or with from and value."""
        if not isinstance(turn, dict):
            raise DataError(f"{where}: {describe_type(turn)}; give an object with role and content, or from and value")
        role = next((turn[name] for name in ("role", "from") if name in turn), None)
        name = next((name for name in ("content", "value") if name in turn), "content")
        if not isinstance(role, str):
            raise DataError(f"{where}: the role is {describe_type(role)}; known: {', '.join(ROLES)}")
        if role not in ROLES:
            near = did_you_mean(role, ROLES)
            raise DataError(f"{where}: the role {list_names([role])} is not known{near}; known: {', '.join(ROLES)}")
        flags = turn_flags(turn, where)
        learned = is_learned(flags, where)
        self._count_unread(turn, {*CONTENT_FIELDS, *flags}, " of turns")
        if ROLES[role] != "assistant":
            self.counts.update([ONLY_ANSWERS] if flags and learned else [])
            learned = True
        return Message(ROLES[role], text_field(turn, name, where), learned)

    def _count_unread(self, fields: Mapping[str, Any], used: set[str], of: str = "") -> None:
        self.unread.update(
            f"{name[:40]}{of}" for name, value in fields.items() if name not in used and not is_empty(value)
        )


def turn_flags(turn: Mapping[str, Any], where: str) -> dict[str, bool]:
    """The marks of a turn. Raises DataError for a mark that is not a flag, and for marks of parts of an answer."""
    flags = learned_flags(turn, TURN_FIELDS)
    for name in TURN_FIELDS:
        if name not in flags and not is_empty(turn.get(name)):
            raise DataError(f"{where}: {name!r} must be 0 or 1, or true or false: an answer is learned or only read")
    if spans := [name for name in SPAN_FIELDS if not is_empty(turn.get(name))]:
        raise DataError(f"{where}: {spans[0]!r} marks parts of an answer, which is learned as a whole; remove it")
    return flags


def are_turns(value: Any) -> bool:
    """True for a turn or a list of turns, False for a text or its parts."""
    first = value[0] if isinstance(value, list) and value else value
    return isinstance(first, dict) and not {"role", "from"}.isdisjoint(first)


def text_field(row: Mapping[str, Any], name: str, where: str) -> str:
    """A field's text; a DataError if it is missing or empty."""
    if name not in row:
        raise DataError(f"{where}: no field {name!r} among {list_names(list(row))}")
    text = text_in(row[name], f"{where}, {name}")
    if not text.strip():
        raise DataError(f"{where}: {name!r} is empty; give a text, or remove the row")
    return text


def text_in(value: Any, where: str) -> str:
    """A text, or the joined texts of a list of parts of type text."""
    if isinstance(value, list) and value and all(isinstance(part, dict) for part in value):
        texts = [part["text"] for part in value if isinstance(part.get("text"), str)]
        if len(texts) < len(value):
            other = next(part.get("type") for part in value if not isinstance(part.get("text"), str))
            shown = f"of the type {list_names([other])}" if isinstance(other, str) else "without a text"
            raise DataError(f"{where}: a part {shown}; only texts can be read")
        return "".join(texts)
    if not isinstance(value, str):
        raise DataError(f"{where}: {describe_type(value)}; it must be a text")
    return value
