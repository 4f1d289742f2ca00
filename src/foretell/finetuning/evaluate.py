"""Figures of a tuned model on the labelled rows of a file."""

from __future__ import annotations

from typing import Any

import numpy as np

from foretell.data.table import Table
from foretell.finetuning.columns import find_columns
from foretell.finetuning.examples import read_examples
from foretell.finetuning.figures import baseline_figures, evaluation_report
from foretell.finetuning.head import head_of, input_format
from foretell.finetuning.request import encode_examples
from foretell.finetuning.settings import Columns
from foretell.finetuning.task import head_outputs
from foretell.language_model import LanguageModel


def evaluate_file(model: LanguageModel, table: Table, given: Columns) -> dict[str, Any]:
    """All figures, next to what the file's own most frequent label, or its mean, would get.

    Columns that are not given are those of the training, where the file has them.
    """
    settings = head_of(model).settings
    available = table.first_columns()
    trained = settings.columns
    if not given.texts and all(name in available for name in trained.texts):
        given = given.model_copy(update={"texts": trained.texts})
    if given.label is None and trained.label in available:
        given = given.model_copy(update={"label": trained.label})
    columns = find_columns(available, settings.task, given, str(table))
    examples = encode_examples(read_examples(table, columns, settings.task), input_format(model), settings)
    outputs = head_outputs(model.decoder, head_of(model), examples, model.dtype)
    targets = np.array([example.target for example in examples])
    return {
        "examples": len(examples),
        "figures": evaluation_report(outputs, targets, settings),
        "baseline": baseline_figures(targets.tolist(), targets, settings),
    }
