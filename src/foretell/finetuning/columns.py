"""The columns of a data file that a task reads: those that the user names, or those whose names leave no doubt."""

from __future__ import annotations

from collections.abc import Sequence

from foretell.data.table import list_names
from foretell.errors import DataError, did_you_mean
from foretell.finetuning.settings import PAIRED, Columns, TaskName

TEXT_NAMES = (
    *("text", "sentence", "content", "review", "tweet", "document", "body", "message", "comment", "headline", "title"),
)
PAIR_NAMES = (
    *(("premise", "hypothesis"), ("sentence1", "sentence2"), ("text1", "text2"), ("question1", "question2")),
    *(("text_a", "text_b"), ("sentence_a", "sentence_b"), ("text", "text2"), ("first", "second")),
)
LABEL_NAMES = (
    *("label", "labels", "class", "category", "target", "gold_label", "gold", "sentiment", "score", "rating"),
    *("similarity", "stars", "answer", "y"),
)
QUESTION_NAMES = ("query", "question", "context", "premise", "ctx", "prompt", "text")
CHOICES = "choices"  # a list, in JSON


def find_columns(available: Sequence[str], task: TaskName, given: Columns, where: str) -> Columns:
    """The columns of a task among those of a file; `given` are those that the user named.

    Raises DataError for a named column that is missing, and, with the list of what is there, where names leave a doubt.
    """
    check_there(available, (*given.texts, *given.choices, *([given.label] if given.label else [])), where)
    label = given.label or only(available, LABEL_NAMES, "label", "--label-column", where)
    if label in given.texts:
        raise DataError(
            f"{where}: {label!r} is named as text and as label; its columns are {list_names(available, 12)}"
        )
    others = [name for name in available if name != label and name not in given.choices]
    texts = only_texts(others, task, given.texts, where)
    choices = find_choices(others, given.choices, where) if task == "choice" else ()
    return Columns(texts=texts, label=label, choices=choices)


def check_there(available: Sequence[str], names: Sequence[str], where: str) -> None:
    """Refuse a named column that is missing."""
    for name in names:
        if name not in available:
            near = did_you_mean(name, available)
            raise DataError(f"{where}: no column {name!r}{near}; its columns are {list_names(available, 12)}")


def only_texts(available: Sequence[str], task: TaskName, given: tuple[str, ...], where: str) -> tuple[str, ...]:
    """The text column, or both of a pair: given, or found by name."""
    check_there(available, given, where)
    texts = given or find_texts(available, task, where)
    needed = 2 if task in PAIRED else 1
    if len(texts) != needed:
        raise DataError(f"{where}: --task {task} reads {needed} text column{'s' * (needed > 1)}, not {len(texts)}")
    return texts


def find_texts(available: Sequence[str], task: TaskName, where: str) -> tuple[str, ...]:
    """The column or columns with the text."""
    if task in PAIRED:
        return find_pair(available, where)
    if task == "choice":
        return (only(available, QUESTION_NAMES, "question", "--text-column", where),)
    if len(available) == 1:
        return (available[0],)
    return (only(available, TEXT_NAMES, "text", "--text-column", where),)


def find_pair(available: Sequence[str], where: str) -> tuple[str, str]:
    """The two columns of a pair of texts: known names, or the only two that are left."""
    lower = {name.lower(): name for name in available}
    pairs = [(lower[first], lower[second]) for first, second in PAIR_NAMES if first in lower and second in lower]
    if len(pairs) == 1:
        return pairs[0]
    if not pairs and len(available) == 2:
        return available[0], available[1]
    raise DataError(
        f"{where}: which two columns hold the texts? Name them with --text-column A --text-column B; next to the label "
        f"there are {list_names(available, 12)}"
    )


def find_choices(available: Sequence[str], given: tuple[str, ...], where: str) -> tuple[str, ...]:
    """The columns of the answers; none where one column holds them as a list."""
    numbered = tuple(
        name
        for name in available
        if name.lower().startswith(("choice", "answer", "ending", "option"))
        and name[-1:].isalnum()
        and name.lower() != CHOICES
    )
    choices = given or (() if CHOICES in available else numbered)
    if CHOICES not in available and len(choices) < 2:
        raise DataError(
            f"{where}: which columns hold the answers? Name each with --choice-column; its columns are "
            f"{list_names(available, 12)}"
        )
    return choices


def only(available: Sequence[str], names: Sequence[str], what: str, option: str, where: str) -> str:
    """The only column with one of these names in upper or lower case."""
    matching = [name for name in available if name.lower() in names]
    if len(matching) == 1:
        return matching[0]
    raise DataError(
        f"{where}: which column holds the {what}? Name it with {option}; its columns are {list_names(available, 12)}"
    )
