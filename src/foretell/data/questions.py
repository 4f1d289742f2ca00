"""Questions in JSON Lines: `{"query", "choices", "gold"}` (choice) or `{"context", "continuation"}` (ending)."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from foretell.errors import DataError

T = TypeVar("T")

CHOICE_FIELDS, ENDING_FIELDS = ("query", "choices", "gold"), ("context", "continuation")


@dataclass(frozen=True)
class Question:
    """A question, its possible answers, the index of the right one, and its file and line."""

    query: str
    choices: tuple[str, ...]
    gold: int
    where: str


@dataclass(frozen=True)
class Ending:
    """A text, its true ending, and its file and line."""

    context: str
    ending: str
    where: str


def task_of(path: Path) -> str:
    """'choice', 'ending' or 'text', by the fields of a .jsonl file's first line."""
    if path.suffix.lower() != ".jsonl" or not path.is_file():
        return "text"
    try:
        with path.open(encoding="utf-8") as file:
            first = json.loads(next((line for line in file if line.strip()), "null"))
    except (OSError, ValueError, RecursionError):  # read_documents reports what is wrong, and where
        return "text"
    fields = set(first) if isinstance(first, dict) else set()
    if "text" in fields:
        return "text"
    return "choice" if fields.issuperset(CHOICE_FIELDS) else "ending" if fields.issuperset(ENDING_FIELDS) else "text"


def read_questions(path: Path) -> list[Question]:
    """The questions of a file. Raises DataError for missing or malformed fields, with the line."""
    return _read(path, _question)


def read_endings(path: Path) -> list[Ending]:
    """The texts with their endings. Raises DataError for missing or malformed fields, with the line."""
    return _read(path, _ending)


def _read(path: Path, make: Callable[[dict[str, Any], str], T]) -> list[T]:
    questions = [make(value, where) for value, where in _iter_objects(path)]
    if not questions:
        raise DataError(f"{path}: holds no question; give one JSON object per line")
    return questions


def _iter_objects(path: Path) -> Iterator[tuple[dict[str, Any], str]]:
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not UTF-8 (byte 0x{error.object[error.start]:02x} at {error.start})") from None
    for line_number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        where = f"{path}, line {line_number}"
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise DataError(f"{where}: not JSON ({error}); repair or remove it") from None
        if not isinstance(value, dict):
            raise DataError(f"{where}: not an object; write one with the fields {', '.join(CHOICE_FIELDS)}")
        yield value, where


def _question(value: dict[str, Any], where: str) -> Question:
    query, gold = _string(value, "query", where), value.get("gold")
    choices = value.get("choices")
    if (
        not isinstance(choices, list)
        or len(choices) < 2
        or not all(isinstance(choice, str) and choice for choice in choices)
    ):
        raise DataError(f"{where}: 'choices' must be a list of two or more texts that are not empty")
    if type(gold) is not int or not 0 <= gold < len(choices):
        raise DataError(f"{where}: 'gold' must be the index of the right choice, 0 to {len(choices) - 1}, not {gold!r}")
    return Question(query, tuple(choices), gold, where)


def _ending(value: dict[str, Any], where: str) -> Ending:
    context, ending = (_string(value, name, where) for name in ENDING_FIELDS)
    if not ending.strip():
        raise DataError(f"{where}: 'continuation' is empty; give the text that follows")
    return Ending(context, ending, where)


def _string(value: dict[str, Any], name: str, where: str) -> str:
    if not isinstance(value.get(name), str):
        raise DataError(
            f"{where}: it needs the field {name!r} with a text; it has {', '.join(map(repr, value)) or 'none'}"
        )
    return value[name]
