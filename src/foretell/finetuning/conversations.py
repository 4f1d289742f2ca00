"""Conversations from files: JSON lists, JSON Lines and tables in the usual forms of published chat data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

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
SHAPES = (
    "messages (role, content); conversations (from, value); instruction, input, output; prompt, completion; prompt, "
    "chosen, rejected"
)
QUESTION_FIELDS, ANSWER_FIELDS = ("instruction", "prompt"), ("output", "completion", "response")
CHOSEN = "of preference rows the answer 'chosen' is taken, and 'rejected' is not used"
LEADING = "answers before the first question are left out"
TRAILING = "questions after the last answer are left out"


@dataclass(frozen=True)
class Conversation:
    """Turns that end with an answer, and their file and row."""

    messages: tuple[Message, ...]
    where: str


@dataclass
class ConversationReader:
    """Reads files and counts omissions; `notes` returns a line for each kind."""

    counts: Counter[str] = field(default_factory=Counter)

    def read(self, paths: Sequence[str | Path]) -> list[Conversation]:
        """The conversations of files, in order.

        Raises DataError, with the row, for unknown roles, empty turns and missing fields, and for files without any.
        """
        conversations = [self._conversation(row) for path in paths for row in open_table(path)]
        if not conversations:
            raise DataError(f"{', '.join(map(str, paths))}: holds no conversation; rows have {SHAPES}")
        return conversations

    @property
    def notes(self) -> list[str]:
        return [f"{what} ({counted(count, 'row')})" for what, count in self.counts.items()]

    def _conversation(self, row: Row) -> Conversation:
        system = [Message("system", text_field(row.cells, "system", row.where))] if row.cells.get("system") else []
        messages = [*system, *self._turns(row.cells, row.where)]
        return Conversation(tuple(self._trimmed(messages, row.where)), row.where)

    def _turns(self, row: Mapping[str, Any], where: str) -> list[Message]:
        name = next((name for name in CHAT_FIELDS if name in row), None)
        if name is not None:
            return turns_of(row[name], where)
        if isinstance(row.get("chosen"), list):
            self.counts[CHOSEN] += 1
            asked = row.get("prompt")
            before = turns_of(asked, where) if isinstance(asked, list) else []
            chosen = turns_of(row["chosen"], where)
            return chosen if chosen[: len(before)] == before else [*before, *chosen]
        return self._question_and_answer(row, where)

    def _question_and_answer(self, row: Mapping[str, Any], where: str) -> list[Message]:
        asked = next((name for name in QUESTION_FIELDS if name in row), None)
        answered = "chosen" if "chosen" in row else next((name for name in ANSWER_FIELDS if name in row), None)
        if asked is None or answered is None:
            missing = "a question" if asked is None else "an answer"
            raise DataError(f"{where}: no field with {missing} among {list_names(list(row))}; a row has {SHAPES}")
        if answered == "chosen":
            self.counts[CHOSEN] += 1
        question = text_field(row, asked, where)
        if extra := row.get("input"):
            question = f"{question}\n\n{text_of(extra, f'{where}, input')}"
        return [Message("user", question), Message("assistant", text_field(row, answered, where))]

    def _trimmed(self, messages: list[Message], where: str) -> list[Message]:
        """The turns from the first question to the last answer, with system messages."""
        first = next((index for index, turn in enumerate(messages) if turn.role == "user"), len(messages))
        kept = [*(turn for turn in messages[:first] if turn.role == "system"), *messages[first:]]
        self.counts.update([LEADING] if len(kept) < len(messages) else [])
        last = max((index for index, turn in enumerate(kept) if turn.role == "assistant"), default=-1)
        if last < 0:
            raise DataError(f"{where}: no question with an answer; nothing can be learned from it")
        self.counts.update([TRAILING] if last + 1 < len(kept) else [])
        return kept[: last + 1]


def turns_of(turns: Any, where: str) -> list[Message]:
    if not isinstance(turns, list) or not turns:
        raise DataError(f"{where}: the turns are {describe_type(turns)}; give a list of objects with role and content")
    return [turn_of(turn, f"{where}, turn {number}") for number, turn in enumerate(turns, start=1)]


def turn_of(turn: Any, where: str) -> Message:
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
    return Message(ROLES[role], text_field(turn, name, where))


def text_field(row: Mapping[str, Any], name: str, where: str) -> str:
    """A field's text; a DataError if it is missing or empty."""
    if name not in row:
        raise DataError(f"{where}: no field {name!r} among {list_names(list(row))}")
    text = text_of(row[name], f"{where}, {name}")
    if not text.strip():
        raise DataError(f"{where}: {name!r} is empty; give a text, or remove the row")
    return text


def text_of(value: Any, where: str) -> str:
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
