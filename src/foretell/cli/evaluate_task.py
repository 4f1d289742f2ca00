"""`foretell evaluate MODEL FILE` of a tuned model: accuracy and other figures on labelled rows."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from foretell.cli.arguments import (
    ChoiceColumn,
    ColumnNames,
    Device,
    Dtype,
    Encoding,
    Json,
    ModelArgument,
    Quantize,
    Truncate,
    Verify,
)
from foretell.cli.terminal import open_model, print_json, results


def evaluate_task(
    model: ModelArgument,
    file: Annotated[Path, Parameter(help="A csv, tsv, jsonl or json file with labelled rows.")],
    /,
    *,
    text_column: Annotated[
        list[str] | None, Parameter(negative="", help="The column with the text; default: as in training.")
    ] = None,
    label_column: Annotated[str | None, Parameter(help="The column with the label; default: as in training.")] = None,
    choice_column: ChoiceColumn = None,
    columns: ColumnNames = None,
    encoding: Encoding = "utf-8",
    truncate: Truncate = None,
    json: Json = False,
    device: Device = "auto",
    dtype: Dtype = "auto",
    quantize: Quantize = None,
    verify: Verify = False,
) -> None:
    """Accuracy, macro F1, confusion and calibration of a tuned model on labelled rows; of numbers MAE, RMSE and R2.

    --task text evaluates it as a language model.
    """
    from foretell.data.rows import RowFile
    from foretell.finetuning.evaluate import evaluate_file
    from foretell.finetuning.head import with_truncation
    from foretell.finetuning.report import figure_lines
    from foretell.finetuning.settings import Columns

    names = tuple(name.strip() for name in columns.split(",")) if columns else ()
    given = Columns(texts=tuple(text_column or ()), label=label_column, choices=tuple(choice_column or ()))
    loaded = with_truncation(open_model(model, device, dtype, verify=verify, quantize=quantize), truncate)
    report = evaluate_file(loaded, RowFile(file, encoding, names), given)
    print_json(report) if json else results().print("\n".join(figure_lines(report)))
