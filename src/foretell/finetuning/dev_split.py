"""The held-out examples of a training file: a rule that depends on the texts alone, not on the order of the rows."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Sequence

from foretell.errors import DataError
from foretell.finetuning.examples import Example


def split_off_dev(
    examples: Sequence[Example], fraction: float, seed: int, by_label: bool
) -> tuple[list[Example], list[Example]]:
    """Training and held-out examples: of each label, the `fraction` whose hash of seed and texts is the smallest.

    So the shares of the labels are kept, the same texts are on the same side, and rows that are added later move few
    others. A label with one example stays in training. Without `by_label` all examples are one group.
    """
    groups: dict[str, list[Example]] = defaultdict(list)
    for example in examples:
        groups[example.label if by_label else ""].append(example)
    held_out: set[int] = set()
    for group in groups.values():
        count = min(len(group) - 1, max(1, round(fraction * len(group))))
        ordered = sorted(group, key=lambda example: digest_of(example, seed))
        held_out |= {id(example) for example in ordered[:count]}
    train = [example for example in examples if id(example) not in held_out]
    dev = [example for example in examples if id(example) in held_out]
    if not dev:
        raise DataError("no label has two examples, so none can be held out; give more rows, or --dev FILE")
    return train, dev


def digest_of(example: Example, seed: int) -> bytes:
    """A hash of seed and texts."""
    return hashlib.sha256("\0".join((str(seed), *example.texts)).encode("utf-8", "surrogatepass")).digest()


def describe_split(fraction: float, seed: int, by_label: bool) -> str:
    """The rule in one line."""
    of = "of each label " if by_label else ""
    return f"dev is the {fraction:.3g} {of}with the smallest SHA-256 of seed {seed} and text"
