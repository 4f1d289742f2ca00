"""Statements about evaluated data that the model has used before."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from foretell.data.data_use import DataUse
from foretell.typesetting.document import Paragraph


@dataclass(frozen=True)
class Material:
    """The words for a kind of data.

    items: the items that are counted. train: how to train without the items of a test. test: the arguments after RUN of
    the evaluation of these items. chosen: what is chosen on held-out items.
    """

    items: str
    train: str
    test: str
    chosen: str = "its checkpoint"


TEXT = Material("passages", "train without the texts of a file TEST.txt", "TEST.txt")
TEXT_ROWS = Material("rows", "train without the rows of a file TEST.jsonl", "TEST.jsonl --rows")
ROWS = Material("rows", "train without the rows of a file TEST.csv", "TEST.csv")
CHATS = Material("conversations", "train without the conversations of a file TEST.jsonl", "TEST.jsonl --task chat")
PAIRS = Material(
    "sources", "train without the pairs of a file TEST.tsv", "TEST.tsv", "its checkpoint and length penalty"
)
VALUES = Material(
    "values",
    "train on a file PAST.csv that ends before these values",
    "{data} --test LATER.csv",
    "its checkpoint, its blend with a naive forecast and its intervals",
)


@dataclass(frozen=True)
class Overlap:
    """The shares of evaluated items that a model was trained on, and that were held out to choose settings."""

    trained_on: float
    selected_on: float
    material: Material

    def describe(self) -> str:
        """A statement with the command of an honest evaluation; empty without any overlap."""
        material = self.material
        uses = {"trained this model": self.trained_on, f"chose {material.chosen}": self.selected_on}
        shares = [f"{percent(share)} of the {material.items} {use}" for use, share in uses.items() if share]
        if not shares:
            return ""
        command = f"foretell evaluate RUN {material.test.format(data='PAST.csv')}"
        return (
            f"already used: {' and '.join(shares)}, so these figures do not hold for new data. To measure those, "
            f"{material.train}, and then: {command}"
        )


def percent(share: float) -> str:
    return f"{share:.0%}" if share >= 0.01 else "less than 1%"


def overlap_with(use: DataUse | None, hashes: np.ndarray, material: Material) -> Overlap | None:
    """The overlap of evaluated items with the data of a model; None for a model that did not record them."""
    return None if use is None else Overlap(*use.shares(hashes), material)


def overlap_entry(overlap: Overlap | None) -> dict[str, Any]:
    """The entry of an evaluation in JSON; its value is None for a model that did not record its data."""
    shares = overlap and {"trained_on": overlap.trained_on, "selected_on": overlap.selected_on}
    return {"used_before": shares}


def overlap_lines(overlap: Overlap | None) -> list[Paragraph]:
    """The line below the table of an evaluation, if there is something to state."""
    return [Paragraph(line)] if overlap is not None and (line := overlap.describe()) else []
