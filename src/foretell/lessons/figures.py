"""Numbers as tables, with what they belong to beside them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from foretell.typesetting.document import Table
from foretell.typesetting.expression import Matrix, format_matrix


def labelled(
    rows: Sequence[str], columns: Sequence[str], values: np.ndarray, digits: int = 4, corner: str = ""
) -> Table:
    """A matrix (rows, columns) as a table with a name for each row and each column."""
    cells = format_matrix(Matrix(values, digits))
    return Table((corner, *columns), [(label, *line) for label, line in zip(rows, cells, strict=True)])
