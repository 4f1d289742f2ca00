"""`foretell evaluate MODEL FILE`: the loss of a model on texts, or its accuracy at questions."""

from __future__ import annotations

from typing import Annotated, Literal

from cyclopts import Parameter

from foretell.cli.arguments import STANDARD_INPUT, Json, ModelArgument, Whole
from foretell.cli.options import MODEL_DEFAULTS, Options
from foretell.cli.terminal import ProgressLine, report

Task = Literal["text", "choice", "ending"]


def evaluate(
    model: ModelArgument,
    file: Annotated[str, Parameter(help="Texts (.txt, .jsonl, .csv, a folder, -) or questions (.jsonl, .csv).")],
    /,
    *,
    task: Annotated[
        Task | None, Parameter(help="text, choice or ending; default: by the file's fields.", show_choices=False)
    ] = None,
    stride: Annotated[
        int | None, Whole, Parameter(help="Tokens from one window to the next; default: half the context.")
    ] = None,
    text_field: Annotated[str | None, Parameter(help="The field or column with the text.")] = None,
    limit: Annotated[int | None, Parameter(help="Only the first so many texts or questions.")] = None,
    json: Json = False,
    options: Options = MODEL_DEFAULTS,
) -> None:
    """Loss, perplexity and bits per byte of texts, or accuracy at questions.

    Questions are JSON lines with query, choices and gold (choice), or context and continuation (ending); HellaSwag,
    WinoGrande and MMLU (CSV) as they are published.
    """
    from foretell.data.questions import choose_task
    from foretell.inference.evaluate import evaluate as evaluate_file

    path = "-" if file == STANDARD_INPUT else file
    chosen = choose_task(path, task, stride, text_field, limit)  # refuses before the model is loaded
    loaded = options.open(model)
    with ProgressLine("tokens" if chosen == "text" else "texts") as progress:
        result = evaluate_file(
            loaded, path, task=chosen, stride=stride, text_field=text_field, limit=limit, progress=progress
        )
    report(result, json)
