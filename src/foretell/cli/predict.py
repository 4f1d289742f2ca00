"""`foretell predict MODEL TEXT|FILE`: the label or number predicted by a tuned model; and its `evaluate`."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from foretell.cli import arguments
from foretell.cli.terminal import WIDTH, CountLine, note, open_model, print_json, report, write
from foretell.config.options import help_of
from foretell.errors import DataError, UsageError, counted, expanded
from foretell.finetuning.kinds import DecimalMark, HeadOptions, TableOptions

if TYPE_CHECKING:
    from foretell.finetuning.predict import Predicted

UTF_8 = "utf-8"
ROWS = "rows (csv, tsv, jsonl, json, parquet or txt)"


def predict(
    model: arguments.Model,
    /,
    *text: Annotated[
        str, Parameter(help="The text or texts of one example; a file with rows; - reads a text per line.")
    ],
    column: Annotated[list[str] | None, Parameter(help="The column with the text (default: as in training).")] = None,
    form: Annotated[TableOptions, arguments.FLAT] = TableOptions(),
    out: Annotated[arguments.Output, Parameter(help="Write .csv, .tsv or .jsonl: rows with their predictions.")] = None,
    overwrite: arguments.Overwrite = False,
    json: arguments.Json = False,
    options: arguments.Loading = arguments.LOADING_DEFAULTS,
) -> None:
    """The label or number that a tuned model predicts.

    A file (csv, tsv, jsonl, json, parquet, or txt with a text per line) is read row by row; its columns are kept.
    Parquet files need a package: pip install 'foretell[data]'.
    """
    if not text:
        raise UsageError(f"give a TEXT, or a FILE with {ROWS}")
    arguments.refuse_folder(text[0])
    path, is_one = Path(expanded(text[0])), len(text) == 1 and text[0] != arguments.STANDARD_INPUT
    is_one_file = is_one and arguments.is_file(path)
    if is_one and not is_one_file and arguments.LIKE_A_FILE.fullmatch(text[0]):
        raise DataError(f"{path}: no such file; to predict this text, give - and the text on standard input")
    of_files = {"column": column, "choice-column": form.choice_column, "columns": form.columns, "out": out}
    of_files["encoding"] = form.encoding
    given = [name for name, value in of_files.items() if value]
    if given and not is_one_file:
        raise UsageError(f"--{given[0]} is for a FILE with {ROWS}")
    if out is not None:
        from foretell.finetuning.predict import check_predictions_file

        check_predictions_file(out, overwrite=overwrite)
    loaded = open_model(model, **vars(options))
    from foretell.data.table import Row
    from foretell.finetuning.head import head_of, with_truncation
    from foretell.finetuning.predict import find_table, iter_predictions, predict_file, predict_rows, write_predictions
    from foretell.finetuning.settings import Columns

    loaded = with_truncation(loaded, form.truncate)
    kind = head_of(loaded).task
    predicted: Iterable[Predicted]
    if text == (arguments.STANDARD_INPUT,):
        lines = arguments.read_text(text[0]).split("\n")
        if not any(map(str.strip, lines)):
            raise DataError("there is no text on standard input; give one per line")
        rows = ((Row(f"line {number}", {}, False), (line,)) for number, line in enumerate(lines, start=1))
        predicted = iter_predictions(loaded, rows)
    elif not is_one_file:
        return report(predict_rows(loaded, [text])[0], json)
    else:
        table = find_table(path, kind, form.encoding or UTF_8, arguments.names_of(form.columns))
        if table is None:
            raise UsageError(f"{path} is a file of another kind; save it as CSV, or give a FILE with {ROWS}")
        predicted = predict_file(loaded, table, Columns(texts=tuple(column or ()), choices=tuple(form.choice_column)))
        if out is not None:
            with CountLine("predicting") as progress:
                count = write_predictions(out, predicted, kind, progress, table, overwrite=overwrite)
            return note(f"{out}: {counted(count, 'row')}")
    for row, result in predicted:
        if json:
            answer = result.to_json() if result else {kind.predictions.answer: None}
            print_json({**answer, **({"row": row.cells} if row.cells else {})})
        else:
            shown = re.sub(r"[\n\r\t]", " ", " | ".join(map(str, row.cells.values())))
            write(f"{'no text' if result is None else result.short():<24}  {shown[: WIDTH - 26]}".rstrip())
    return None


def evaluate_task(
    model: arguments.Model,
    file: Annotated[
        Path,
        Parameter(
            help="A csv, tsv, jsonl, json or parquet file with labelled rows; - reads csv.",
            converter=arguments.input_file,
        ),
    ],
    /,
    *,
    text_column: Annotated[
        list[str] | None, Parameter(help="The column with the text (default: as in training).")
    ] = None,
    label_column: Annotated[str | None, Parameter(help="The column with the label (default: as in training).")] = None,
    form: Annotated[TableOptions, arguments.FLAT] = TableOptions(),
    decimal: Annotated[DecimalMark | None, Parameter(help=help_of(HeadOptions, "decimal"))] = None,
    limit: arguments.Limit = None,
    json: arguments.Json = False,
    options: arguments.Loading = arguments.LOADING_DEFAULTS,
) -> None:
    """Accuracy, macro F1, confusion and calibration of a tuned model on labelled rows; MAE, RMSE and R2 of numbers; F1
    of tagged spans.

    --task text evaluates it as a language model.
    """
    from foretell.finetuning.head import with_truncation
    from foretell.finetuning.report import evaluate_task as evaluate

    loaded = with_truncation(open_model(model, **vars(options)), form.truncate)
    evaluation = evaluate(
        loaded,
        file,
        text_column=text_column or (),
        label_column=label_column,
        choice_column=form.choice_column,
        columns=arguments.names_of(form.columns),
        encoding=form.encoding or UTF_8,
        decimal=decimal,
        limit=limit,
    )
    report(evaluation, json)
