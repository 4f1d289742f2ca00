"""Statements about evaluated data that the model has used before."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from foretell.data.data_use import DataUse
from foretell.evaluation.material import Material
from foretell.typesetting.document import Paragraph
from foretell.typesetting.numbers import whole_percent


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
        shares = [f"{whole_percent(share)} of the {material.items} {use}" for use, share in uses.items() if share]
        if not shares:
            return ""
        command = f"foretell evaluate RUN {material.test.format(data='PAST.csv')}"
        return (
            f"already used: {' and '.join(shares)}, so these figures do not hold for new data. To measure those, "
            f"{material.train}, and then: {command}"
        )


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
