"""Questions: `{"query", "choices", "gold"}` (choice) or `{"context", "continuation"}` (ending) in JSON Lines.

Three benchmarks are read as they are published: HellaSwag (JSON Lines with ctx, endings, label), WinoGrande (JSON Lines
with sentence, option1, option2, answer) and MMLU (CSV without a header: question, four choices, the letter).
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

from foretell.errors import DataError, UsageError

T = TypeVar("T")
EvaluationTask = Literal["text", "choice", "ending"]

CHOICE_FIELDS, ENDING_FIELDS = ("query", "choices", "gold"), ("context", "continuation")
HELLASWAG_FIELDS, WINOGRANDE_FIELDS = ("ctx", "endings", "label"), ("sentence", "option1", "option2", "answer")
LETTERS = "ABCD"
FORMATS = (
    "questions have the fields query, choices, gold, or context, continuation, or those of HellaSwag or WinoGrande; "
    "texts have the field text, or the one that --text-field names"
)


@dataclass(frozen=True)
class Question:
    """A question, its possible answers, the index of the right one, and its file and line.

    `ending`: what follows a choice. If it is given, the likelihood of the ending after query and choice decides, not
    that of the choice (WinoGrande's "partial evaluation", Trinh and Le 2018).
    """

    query: str
    choices: tuple[str, ...]
    gold: int
    where: str
    ending: str | None = None


@dataclass(frozen=True)
class Ending:
    """A text, its true ending, and its file and line."""

    context: str
    ending: str
    where: str


def task_of(path: Path) -> EvaluationTask:
    """'choice', 'ending' or 'text', by the fields of a .jsonl file's first line, or by a .csv file's first row."""
    if not path.is_file():
        return "text"
    if path.suffix.lower() == ".csv":
        return "choice" if _is_mmlu(path) else "text"
    fields = first_fields(path)
    if "text" in fields:
        return "text"
    if any(fields.issuperset(names) for names in (CHOICE_FIELDS, HELLASWAG_FIELDS, WINOGRANDE_FIELDS)):
        return "choice"
    return "ending" if fields.issuperset(ENDING_FIELDS) else "text"


def first_fields(path: Path) -> set[str]:
    """The fields of a .jsonl file's first object; empty for anything else."""
    if path.suffix.lower() != ".jsonl" or not path.is_file():
        return set()
    try:
        with path.open(encoding="utf-8-sig") as file:
            first = json.loads(next((line for line in file if line.strip()), "null"))
    except (OSError, ValueError, RecursionError):  # read_documents reports what is wrong, and where
        return set()
    return set(first) if isinstance(first, dict) else set()


def _is_mmlu(path: Path) -> bool:
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            row = next(csv.reader(file), [])
    except (OSError, ValueError, csv.Error):
        return False
    return len(row) == 6 and row[5].strip() in LETTERS and bool(row[5].strip())


def read_questions(path: Path) -> list[Question]:
    """The questions of a file. Raises DataError for missing or malformed fields, with the line."""
    if path.suffix.lower() == ".csv":
        return _not_empty([_mmlu(row, where) for row, where in _iter_rows(path)], path)
    return _read(path, _any_question)


def read_endings(path: Path) -> list[Ending]:
    """The texts with their endings. Raises DataError for missing or malformed fields, with the line."""
    return _read(path, _ending)


def _read(path: Path, make: Callable[[dict[str, Any], str], T]) -> list[T]:
    return _not_empty([make(value, where) for value, where in _iter_objects(path)], path)


def _not_empty(questions: list[T], path: Path) -> list[T]:
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


def _iter_rows(path: Path) -> Iterator[tuple[list[str], str]]:
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = csv.reader(file, strict=True)
            for row in rows:
                yield row, f"{path}, line {rows.line_num}"
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from error
    except (ValueError, csv.Error) as error:
        raise DataError(f"{path}: not a CSV file in UTF-8 ({error}); repair it") from None


def _mmlu(row: list[str], where: str) -> Question:
    """Hendrycks et al. 2021: the choices are in the question, and the answer is a letter."""
    if len(row) != len(LETTERS) + 2 or row[-1].strip() not in tuple(LETTERS):
        raise DataError(f"{where}: a row of MMLU has a question, four choices and one of the letters {LETTERS}")
    choices = "\n".join(f"{letter}. {choice.strip()}" for letter, choice in zip(LETTERS, row[1:], strict=False))
    query = f"{row[0].strip()}\n{choices}\nAnswer:"
    return Question(query, tuple(LETTERS), LETTERS.index(row[-1].strip()), where)


def _any_question(value: dict[str, Any], where: str) -> Question:
    fields = value.keys()
    if "query" not in fields and fields >= set(HELLASWAG_FIELDS):
        return _hellaswag(value, where)
    if "query" not in fields and fields >= set(WINOGRANDE_FIELDS):
        return _winogrande(value, where)
    return _question(value, where)


def _hellaswag(value: dict[str, Any], where: str) -> Question:
    """Zellers et al. 2019, prepared as the usual harnesses do: the activity before the context, no [header] marks."""
    label = str(value["label"])
    if not label.isdigit():
        raise DataError(f"{where}: 'label' is {label[:40]!r}, not the index of the right ending; the test set has none")
    context = _string(value, "ctx", where)
    if isinstance(value.get("ctx_a"), str) and isinstance(value.get("ctx_b"), str):
        context = f"{value['ctx_a']} {value['ctx_b'].capitalize()}"
    activity = value.get("activity_label")
    query = f"{activity}: {context}" if isinstance(activity, str) else context
    endings = value["endings"]
    if isinstance(endings, list):
        endings = [_without_marks(ending) if isinstance(ending, str) else ending for ending in endings]
    return _question({"query": _without_marks(query), "choices": endings, "gold": int(label)}, where)


def _without_marks(text: str) -> str:
    """WikiHow's texts have marks such as [title] and [step]."""
    return re.sub(r"\[.*?\]", "", text.strip().replace(" [title]", ". ")).replace("  ", " ")


def _winogrande(value: dict[str, Any], where: str) -> Question:
    """Sakaguchi et al. 2020: one of two options fills the blank of a sentence."""
    before, blank, after = _string(value, "sentence", where).partition("_")
    if not blank or not after.strip() or str(value["answer"]) not in ("1", "2"):
        raise DataError(f"{where}: a question of WinoGrande has a sentence with _ and a right answer, 1 or 2")
    options = tuple(_string(value, name, where) for name in ("option1", "option2"))
    return Question(before, options, int(value["answer"]) - 1, where, ending=after.strip())


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


def choose_task(
    data: str | Path, task: EvaluationTask | None, stride: int | None, text_field: str | None, limit: int | None
) -> EvaluationTask:
    """The task of a file; options that contradict it are a UsageError. No model is needed."""
    if limit is not None and limit < 1:
        raise UsageError(f"--limit must be at least 1, not {limit}")
    fields = first_fields(Path(data)) if task is None and text_field is None else set()
    chosen = task or task_of(Path(data))
    if chosen == "text" and fields and "text" not in fields:
        raise DataError(f"{data} has the fields {', '.join(sorted(fields))[:200]}; {FORMATS}")
    if chosen != "text" and not (stride is None and text_field is None):
        raise UsageError(f"--stride and --text-field are for texts, and {data} is read as questions (--task {chosen})")
    if chosen != "text" and str(data) == "-":
        raise UsageError("questions are read from a file; give its name")
    return chosen
