"""Questions: records with `query`, `choices`, `gold` (task choice) or `context`, `continuation` (task ending).

Three benchmarks are read in their published form: HellaSwag (ctx, endings, label), WinoGrande (sentence, option1,
option2, answer) and MMLU (CSV without a header: question, four choices, the letter). llm-foundry's form of WinoGrande
and similar tasks is also read: several beginnings with one ending (context_options, continuation, gold).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

from foretell.config.section import check_known, make_section
from foretell.config.training import DataConfig
from foretell.data.table import Delimited, JsonLines, list_names, open_table
from foretell.errors import DataError, UsageError, as_path, check_count

T = TypeVar("T")
EvaluationTask = Literal["text", "choice", "ending"]

CHOICE_FIELDS, ENDING_FIELDS = ("query", "choices", "gold"), ("context", "continuation")
HELLASWAG_FIELDS, WINOGRANDE_FIELDS = ("ctx", "endings", "label"), ("sentence", "option1", "option2", "answer")
CHAT_FIELDS = ("messages", "conversations", "conversation")
SCHEMA_FIELDS = ("context_options", "continuation", "gold")
LETTERS = "ABCD"
FORMATS = (
    "questions have the fields query, choices, gold, or context, continuation, or the fields of HellaSwag or "
    "WinoGrande; texts have the field text, or the one that --text-field names; prompts with answers have the fields "
    "that --prompt-field and --answer-field name; conversations need --task chat"
)


@dataclass(frozen=True)
class Question:
    """A question, its possible answers, the index of the right one, and its file and line.

    separator: between question and answer. ending: the text after a choice. If it is given, the likelihood of the
    ending after query and choice decides, not the likelihood of the choice (WinoGrande's "partial evaluation", Trinh
    and Le 2018).
    """

    query: str
    choices: tuple[str, ...]
    gold: int
    where: str
    ending: str | None = None
    separator: str = ""


@dataclass(frozen=True)
class Ending:
    """A text, its true ending, its file and line, and what is between text and ending."""

    context: str
    ending: str
    where: str
    separator: str = ""


def task_of(path: Path, fields: set[str]) -> EvaluationTask:
    """'choice', 'ending' or 'text', by `first_fields`, or by the first row of a table without names."""
    if _is_mmlu(path):
        return "choice"
    if "text" in fields:
        return "text"
    if any(fields.issuperset(names) for names in (CHOICE_FIELDS, HELLASWAG_FIELDS, WINOGRANDE_FIELDS, SCHEMA_FIELDS)):
        return "choice"
    return "ending" if fields.issuperset(ENDING_FIELDS) else "text"


def first_fields(path: Path) -> set[str]:
    """The fields of the first record; empty if there are no fields, one column of texts, or an error."""
    try:
        table = replace(open_table(path), note=lambda *_: None)  # it is read again
        row = next(iter(table), None)
    except DataError:  # read_documents reports the error
        return set()
    if row is None or not row.has_columns or (table.format.has_header and [*map(type, row.cells.values())] == [str]):
        return set()
    return set(row.cells)


def has_conversations(path: Path) -> bool:
    """True for a file whose first record has a conversation as a list of turns."""
    fields = first_fields(path)
    return "text" not in fields and not fields.isdisjoint(CHAT_FIELDS)


def _is_mmlu(path: Path) -> bool:
    try:
        table = replace(open_table(path), note=lambda *_: None)  # it is read again
        if not isinstance(table.format, Delimited):
            return False
        _, row = next(table.cells(), ("", []))
    except DataError:
        return False
    return len(row) == len(LETTERS) + 2 and row[-1].strip() in tuple(LETTERS)


def read_questions(path: Path, separator: str | None = None) -> list[Question]:
    """The questions of a file. separator: between question and answer, if not the one of the file's form.

    Raises DataError for missing or malformed fields, with the line.
    """
    if _is_mmlu(path):
        questions = [_mmlu(row, where) for where, row in open_table(path).cells()]
    else:
        questions = _read(path, _any_question)
    return questions if separator is None else [replace(question, separator=separator) for question in questions]


def read_endings(path: Path, separator: str | None = None) -> list[Ending]:
    """The texts with their endings. Raises DataError for missing or malformed fields, with the line."""
    return [replace(ending, separator=separator or "") for ending in _read(path, _ending)]


def _read(path: Path, make: Callable[[dict[str, Any], str], T]) -> list[T]:
    table = open_table(path, otherwise=JsonLines())
    questions = [make(row.cells, row.where) for row in table]
    if not questions:
        raise DataError(f"{path}: holds no question; give one JSON object per line")
    return questions


def _mmlu(row: list[str], where: str) -> Question:
    """Hendrycks et al. 2021: the choices are in the question, and the answer is a letter."""
    if len(row) != len(LETTERS) + 2 or row[-1].strip() not in tuple(LETTERS):
        raise DataError(f"{where}: a row of MMLU has a question, four choices and one of the letters {LETTERS}")
    choices = "\n".join(f"{letter}. {choice.strip()}" for letter, choice in zip(LETTERS, row[1:], strict=False))
    query = f"{row[0].strip()}\n{choices}\nAnswer:"
    return Question(query, tuple(LETTERS), LETTERS.index(row[-1].strip()), where, separator=" ")


def _any_question(value: dict[str, Any], where: str) -> Question:
    fields = value.keys()
    if "query" not in fields and fields >= set(HELLASWAG_FIELDS):
        return _hellaswag(value, where)
    if "query" not in fields and fields >= set(WINOGRANDE_FIELDS):
        return _winogrande(value, where)
    if "query" not in fields and fields >= set(SCHEMA_FIELDS):
        text = _string(value, "continuation", where).strip()
        ending = _ending({"context": "", "continuation": text}, where).ending
        question = _question({**value, "query": "", "choices": value["context_options"]}, where)
        return replace(question, ending=ending, separator=" ")
    return _question(value, where)


def _hellaswag(value: dict[str, Any], where: str) -> Question:
    """Zellers et al. 2019, prepared as in the usual harnesses: activity before context, without [header] marks."""
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
    question = _question({"query": _without_marks(query), "choices": endings, "gold": int(label)}, where)
    return replace(question, separator=" ")


def _without_marks(text: str) -> str:
    """Remove marks such as [title] and [step], which WikiHow's texts have."""
    return re.sub(r"\[.*?\]", "", text.strip().replace(" [title]", ". ")).replace("  ", " ")


def _winogrande(value: dict[str, Any], where: str) -> Question:
    """Sakaguchi et al. 2020: one of two options fills the blank of a sentence."""
    before, blank, after = _string(value, "sentence", where).partition("_")
    if not blank or not after.strip() or str(value["answer"]) not in ("1", "2"):
        raise DataError(f"{where}: a WinoGrande question needs a sentence with _ and the right answer, 1 or 2")
    options = tuple(_string(value, name, where) for name in ("option1", "option2"))
    return Question(before, options, int(value["answer"]) - 1, where, ending=after.strip(), separator=" ")


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
    if not ending:
        raise DataError(f"{where}: 'continuation' is empty; give the text that follows")
    return Ending(context, ending, where)


def _string(value: dict[str, Any], name: str, where: str) -> str:
    if not isinstance(value.get(name), str):
        raise DataError(f"{where}: it needs the field {name!r} with a text; it has {list_names(list(value))}")
    return value[name]


def text_config(
    text_field: str | None,
    rows: bool,
    prompt_field: str | None,
    answer_field: str | None,
    separator: str | None,
    special: Sequence[str] = (),
) -> DataConfig:
    """The configuration for reading texts. Raises ConfigError for contradictory fields."""
    fields: dict[str, Any] = {"text_field": text_field, "prompt_field": prompt_field, "answer_field": answer_field}
    fields["special"] = tuple(special)
    if prompt_field is not None:  # otherwise it is for questions
        fields["separator"] = separator or ""
    return make_section(DataConfig, {**fields, **({"rows": True} if rows else {})}, "evaluate")


def choose_task(
    data: str | Path,
    task: EvaluationTask | None,
    stride: int | None,
    config: DataConfig,
    limit: int | None,
    separator: str | None = None,
) -> EvaluationTask:
    """The task for a file; contradictory options are a UsageError. Needs no model."""
    if task is not None:
        check_known(task, get_args(EvaluationTask), "task")
    path = as_path("data", data)
    for name, count in (("limit", limit), ("stride", stride)):
        if count is not None:
            check_count(name, count)
    of_texts = config.rows or config.text_field is not None
    fields = set() if task or of_texts else first_fields(path)
    chosen = task or ("text" if of_texts else task_of(path, fields))
    if chosen == "text" and fields and "text" not in fields:
        raise DataError(f"{data} has the fields {', '.join(sorted(fields))[:200]}; {FORMATS}")
    if chosen == "text" and separator and config.prompt_field is None:
        raise UsageError("--separator goes between prompt and answer; give --prompt-field and --answer-field")
    if chosen != "text" and (stride is not None or of_texts):
        raise UsageError(f"--stride, --rows and fields are for texts; {data} is read as questions (--task {chosen})")
    if chosen != "text" and str(data) == "-":
        raise UsageError("questions are read from a file; give its name")
    return chosen
