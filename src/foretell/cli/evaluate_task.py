"""`foretell evaluate MODEL FILE` of a tuned model: accuracy and other figures on labelled rows."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from foretell.cli.arguments import Device, Dtype, Json, ModelArgument, Quantize, Verify
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
    choice_column: Annotated[list[str] | None, Parameter(negative="", help="A column with an answer.")] = None,
    columns: Annotated[str | None, Parameter(help="The columns of a file without a header: text,label.")] = None,
    encoding: Annotated[
        Literal["utf-8", "latin-1", "cp1252"], Parameter(help="utf-8, latin-1 or cp1252.", show_choices=False)
    ] = "utf-8",
    truncate: Annotated[
        Literal["head", "tail", "middle"] | None,
        Parameter(help="Leave out the head, tail or middle of what does not fit.", show_choices=False),
    ] = None,
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
