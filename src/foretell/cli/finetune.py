"""`foretell finetune MODEL DATA --task ...`: train a model with one extra layer on labelled texts."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from foretell.cli.arguments import ChoiceColumn, ColumnNames, Encoding, Flag, Json, Truncate
from foretell.cli.terminal import print_json, results
from foretell.cli.training import DEFAULTS, Options, train_and_report
from foretell.errors import UsageError
from foretell.finetuning.kinds import KINDS


def finetune(
    model: Annotated[str | None, Parameter(help="The MODEL to start from.")] = None,
    data: Annotated[
        Path | None, Parameter(help="A csv, tsv, jsonl or json file with a row per example; for tag also CoNLL.")
    ] = None,
    /,
    *,
    task: Annotated[str | None, Parameter(help=f"{', '.join(KINDS)}, chat or text; default: classify.")] = None,
    dev: Annotated[Path | None, Parameter(help="Held-out examples; default: cut from DATA.")] = None,
    dev_fraction: Annotated[float | None, Parameter(help="The share of DATA that is held out; default: 0.1.")] = None,
    text_column: Annotated[
        list[str] | None, Parameter(negative="", help="The column with the text; twice for a pair of texts.")
    ] = None,
    label_column: Annotated[str | None, Parameter(help="The column with the label.")] = None,
    choice_column: ChoiceColumn = None,
    columns: ColumnNames = None,
    encoding: Encoding | None = None,
    truncate: Truncate = None,
    pool: Annotated[
        Literal["extract", "last", "mean"] | None,
        Parameter(
            help="The vector of a text: at an extract token (default), at its last, or the mean.", show_choices=False
        ),
    ] = None,
    lm_weight: Annotated[
        float | None, Parameter(help="The weight of language modelling in the loss; default: 0.5.")
    ] = None,
    class_weights: Annotated[
        Literal["balanced", "none"] | None,
        Parameter(help="balanced: all labels weigh the same; default: none.", show_choices=False),
    ] = None,
    best_by: Annotated[
        str | None, Parameter(help="The figure that selects the best checkpoint, such as accuracy; default: loss.")
    ] = None,
    epochs: Annotated[float | None, Parameter(help="How often the examples are read; default: 3.")] = None,
    dropout: Annotated[float | None, Parameter(help="Dropout of the whole model; default: 0.1.")] = None,
    head_dropout: Annotated[float | None, Parameter(help="Dropout before the new layer; default: 0.1.")] = None,
    word_dropout: Annotated[
        float | None, Parameter(help="The share of a text's tokens that each step leaves out; default: 0.")
    ] = None,
    lora: Annotated[
        bool, Flag, Parameter(help="Train low-rank updates and the new layer alone; also --lora.rank 8.")
    ] = False,
    options: Options = DEFAULTS,
    json: Json = False,
) -> None:
    """Train a model with one extra layer on labelled texts.

    GPT-1's recipe (Radford et al. 2018): new start, delimiter and extract tokens, one linear layer on the extract
    token's vector, and language modelling as a second loss. The held-out examples decide which checkpoint is best.

    With --lora (Hu et al. 2021) the model's own weights stay as they are; --lora.rank, --lora.alpha, --lora.dropout and
    --lora.targets (globs of module paths) change the updates.
    """
    if (model is None or data is None) and not options.is_resumed:
        raise UsageError("give MODEL and DATA: foretell finetune MODEL DATA --task classify")
    out = options.directory([] if data is None else [data])
    from foretell.finetuning.finetune import FinetuneTraining, make_request
    from foretell.loading import load_start

    sections = options.sections({})
    for name in sections:
        if name not in ("training", "lora"):
            raise UsageError(f"--{name}... is not a section of finetune; its sections are training and lora")
    request = make_request(
        data,
        out=out,
        task=task,
        start=load_start(model) if model else None,
        text_column=text_column or (),
        label_column=label_column,
        choice_column=choice_column or (),
        columns=[name.strip() for name in columns.split(",")] if columns else (),
        dev=dev,
        epochs=epochs,
        minutes=options.minutes,
        dropout=dropout,
        pool=pool,
        truncate=truncate,
        training=sections.get("training", {}),
        lora=sections.get("lora", {} if lora else None),
        device=options.device,
        dtype=options.dtype,
        lm_weight=lm_weight,
        head_dropout=head_dropout,
        word_dropout=word_dropout,
        class_weights=class_weights,
        dev_fraction=dev_fraction,
        best_by=best_by,
        encoding=encoding,
    )
    train_and_report(FinetuneTraining(request), options, lambda session: finish(session.run.directory, json))


def finish(directory: Path, json: bool) -> None:
    """Show the report, and what to do with the run."""
    from foretell.files import read_json
    from foretell.finetuning.kind import find_kind
    from foretell.finetuning.report import PICTURE, REPORT, report_lines
    from foretell.session.failures import command_name

    report = read_json(directory / REPORT)
    if json:
        return print_json(report)
    console = results()
    console.print("\n".join(report_lines(report)))
    picture = f", {PICTURE}" if (directory / PICTURE).exists() else " (for report.png: pip install 'foretell[plot]')"
    console.print(f"run         {directory}: checkpoints/, metrics.jsonl, {REPORT}{picture}")
    texts = find_kind(report["task"]).arguments
    console.print(f"try         {command_name()} predict {shlex.quote(str(directory))} {texts}")
    return None
