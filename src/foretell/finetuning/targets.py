"""Labels as numbers: the classes of a training file, or the scale of its numbers."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np

from foretell.errors import DataError
from foretell.finetuning.examples import Example
from foretell.finetuning.settings import HeadSettings, TaskName

MOST_LABELS = 1000
LARGEST = 1e150  # a number whose square is still finite
MANY = 20  # a similarity with more different numbers is a scale, with fewer a set of labels


def with_targets(settings: HeadSettings, examples: Sequence[Example]) -> HeadSettings:
    """The settings with the labels, or with mean and deviation of the numbers, of the training examples."""
    if settings.task == "choice":
        return settings
    if predicts_number(settings.task, examples):
        values = np.array([number_of(example) for example in examples])
        deviation = float(values.std())
        if deviation == 0:
            raise DataError(f"every number is {values[0]:g}; there is nothing to learn")
        return settings.model_copy(update={"mean": float(values.mean()), "deviation": deviation})
    return settings.model_copy(update={"labels": find_labels(examples)})


def predicts_number(task: TaskName, examples: Sequence[Example]) -> bool:
    """True for regression, and for a similarity given as numbers with fractions or as many different ones."""
    if task != "similarity":
        return task == "regress"
    labels = {example.label for example in examples}
    numbers = [number for label in labels if (number := parse_number(label)) is not None]
    return len(numbers) == len(labels) and (len(labels) > MANY or any(number % 1 for number in numbers))


def find_labels(examples: Sequence[Example]) -> tuple[str, ...]:
    """The labels in order: numbers by value, words by alphabet. Refuses one label alone and a column of names."""
    counts = Counter(example.label for example in examples)
    if len(counts) == 1:
        raise DataError(f"every row has the label {next(iter(counts))!r}; there is nothing to tell apart")
    if len(counts) > MOST_LABELS or len(counts) > max(2, len(examples) / 2):
        raise DataError(
            f"{len(counts):,} different labels in {len(examples):,} rows, such as {next(iter(counts))[:30]!r}: at most "
            f"{MOST_LABELS:,}, with two rows each, can be learned; name the right column with --label-column, or use "
            "--task regress"
        )
    numbers = {label: parse_number(label) for label in counts}
    if None in numbers.values():
        return tuple(sorted(counts))
    return tuple(sorted(counts, key=lambda label: (numbers[label], label)))


def target_of(example: Example, settings: HeadSettings) -> float:
    """The index of the label, or the number on the scale of the outputs."""
    if settings.is_number:
        return (number_of(example) - settings.mean) / settings.deviation
    if settings.task == "choice":
        return int(example.label)
    if example.label not in settings.labels:
        raise DataError(
            f"{example.where}: the label {example.label[:40]!r} is not one of {', '.join(settings.labels[:12])}, which "
            "the model learned"
        )
    return settings.labels.index(example.label)


def number_of(example: Example) -> float:
    """The label as a finite number."""
    number = parse_number(example.label)
    if number is None:
        raise DataError(f"{example.where}: the label {example.label[:40]!r} is not a finite number")
    if abs(number) > LARGEST:
        raise DataError(f"{example.where}: the label {number:g} is too large to compute with; rescale the numbers")
    return number


def parse_number(text: str) -> float | None:
    """A finite number; None for anything else."""
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def class_weights(targets: Sequence[float], count: int) -> list[float]:
    """A weight per class so that all classes weigh the same in the loss; their mean over the examples is 1."""
    seen = np.bincount(np.array(targets, dtype=int), minlength=count)
    return [len(targets) / (count * max(1, int(number))) for number in seen]
