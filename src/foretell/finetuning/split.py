"""The choice of held-out examples.

Examples of one group are always on the same side; without groups, examples whose texts differ only in case and white
space are. Without groups, each label is split separately, so that its share is the same. A hash of the seed and the
group or texts decides, so the order of the rows does not matter, and adding rows moves few others.
"""

from __future__ import annotations

import hashlib
import logging
from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence

import numpy as np

from foretell.data.data_use import hash_texts
from foretell.errors import DataError
from foretell.finetuning.examples import Example

logger = logging.getLogger(__name__)

Unit = list[int]  # the indices of examples that stay together


def split_off_dev(
    examples: Sequence[Example], fraction: float, seed: int, by_label: bool
) -> tuple[list[Example], list[Example]]:
    """Training and held-out examples: about `fraction` of each label, in whole units; one unit stays in training."""
    if not fraction:
        return list(examples), []
    strata = units_by_label(examples, seed, by_label)
    held_out: set[int] = set()
    for units in strata:
        total, taken = sum(map(len, units)), 0
        wanted = max(1, round(fraction * total))
        for unit in units[:-1]:
            if taken + len(unit) / 2 <= wanted:  # take a unit only if that is nearer to the fraction
                held_out.update(unit)
                taken += len(unit)
    if not held_out:
        units = max(strata, key=len)
        if len(units) > 1:
            held_out.update(min(units, key=len))
        elif len(units[0]) > 1 and examples[units[0][0]].group is None:
            logger.warning("held out    rows with texts that are also learned from: each label has only one text")
            held_out.update(units[0][: max(1, min(round(fraction * len(units[0])), len(units[0]) - 1))])
        else:
            raise DataError(
                "each label has one example, or one group, so none can be held out; give more rows, or --dev FILE"
            )
    train = [example for index, example in enumerate(examples) if index not in held_out]
    return train, [examples[index] for index in sorted(held_out)]


def make_folds(examples: Sequence[Example], count: int, seed: int, by_label: bool) -> list[list[int]]:
    """The indices of the examples of each fold; some folds are empty if there are too few units."""
    folds: list[Unit] = [[] for _ in range(count)]
    for units in units_by_label(examples, seed, by_label):
        for unit in sorted(units, key=len, reverse=True):
            min(folds, key=len).extend(unit)
    return folds


def units_by_label(examples: Sequence[Example], seed: int, by_label: bool) -> list[list[Unit]]:
    """The units of each label in order of their hashes; without `by_label` or with groups, of all examples together."""
    units: dict[tuple[str, ...], Unit] = defaultdict(list)
    for index, example in enumerate(examples):
        key = (example.group,) if example.group is not None else tuple(map(without_case_and_space, example.texts))
        units[key].append(index)
    digests = [key_digest(example, seed) for example in examples]
    by: dict[str, list[Unit]] = defaultdict(list)
    for unit in sorted(units.values(), key=lambda unit: min(digests[index] for index in unit)):
        first = examples[unit[0]]
        by[first.labels[0] if by_label and first.group is None else ""].append(unit)
    return list(by.values())


def hash_examples(examples: Sequence[Example]) -> np.ndarray:
    """The hashes of the texts of examples, ignoring case and white space."""
    return hash_texts("\0".join(map(without_case_and_space, example.texts)) for example in examples)


def without_case_and_space(text: str) -> str:
    return " ".join(text.casefold().split())


def key_digest(example: Example, seed: int) -> bytes:
    """A hash of the seed and the group, or the texts."""
    key = example.texts if example.group is None else (example.group,)
    return hashlib.sha256("\0".join((str(seed), *key)).encode("utf-8", "surrogatepass")).digest()


def check_groups(train: Sequence[Example], dev: Sequence[Example]) -> None:
    """Refuse held-out examples of a group that is also in training."""
    groups = {example.group for example in train} - {None}
    for example in dev:
        if example.group in groups:
            raise DataError(f"{example.where}: group {example.group!r} is in the training file too; move its rows")


def count_repeated(train: Iterable[Hashable], held_out: Iterable[Hashable]) -> int:
    """The number of held-out items that are also learned from, word for word."""
    learned = set(train)
    return sum(each in learned for each in held_out)
