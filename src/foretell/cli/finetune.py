"""`foretell finetune MODEL DATA --task ...`: train a model with one extra layer on labelled texts."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from foretell.cli.arguments import (
    ChoiceColumn,
    ColumnNames,
    Device,
    Dtype,
    Encoding,
    Flag,
    Json,
    Truncate,
    Whole,
    parse_settings,
)
from foretell.cli.processes import decided
from foretell.cli.terminal import messages, note, print_json, results
from foretell.distributed.launch import is_follower
from foretell.errors import UsageError

if TYPE_CHECKING:
    from foretell.finetuning.request import FinetuneRequest

PAIR = '"a text" "another text"'
EXAMPLES = {  # texts to predict for, by task
    "classify": '"a text"',
    "regress": '"a text"',
    "similarity": PAIR,
    "entailment": PAIR,
    "choice": '"a question" "an answer" "another answer"',
}
TaskArgument = Literal["classify", "regress", "similarity", "entailment", "choice"]


def finetune(
    model: Annotated[str | None, Parameter(help="The MODEL to start from.")] = None,
    data: Annotated[Path | None, Parameter(help="A csv, tsv, jsonl or json file with a row per example.")] = None,
    /,
    *,
    task: Annotated[
        TaskArgument,
        Parameter(help="classify, regress, similarity, entailment, choice, chat or text.", show_choices=False),
    ] = "classify",
    out: Annotated[Path | None, Parameter(help="The run's folder; default: runs/ and the data's name.")] = None,
    resume: Annotated[Literal["auto", "never"], Parameter(help="auto (or nothing) continues the run OUT.")] = "never",
    dev: Annotated[Path | None, Parameter(help="Held-out examples; default: cut from DATA.")] = None,
    dev_fraction: Annotated[float, Parameter(help="The share of DATA that is held out.")] = 0.1,
    text_column: Annotated[
        list[str] | None, Parameter(negative="", help="The column with the text; twice for a pair of texts.")
    ] = None,
    label_column: Annotated[str | None, Parameter(help="The column with the label.")] = None,
    choice_column: ChoiceColumn = None,
    columns: ColumnNames = None,
    encoding: Encoding = "utf-8",
    truncate: Truncate = None,
    pool: Annotated[
        Literal["extract", "last", "mean"],
        Parameter(help="The vector of a text: at an extract token, at its last, or the mean.", show_choices=False),
    ] = "extract",
    lm_weight: Annotated[float, Parameter(help="The weight of language modelling in the loss.")] = 0.5,
    class_weights: Annotated[
        Literal["balanced", "none"], Parameter(help="balanced: all labels weigh the same.", show_choices=False)
    ] = "none",
    best_by: Annotated[
        Literal["loss", "accuracy", "macro_f1"],
        Parameter(help="What decides which checkpoint is best.", show_choices=False),
    ] = "loss",
    epochs: Annotated[float | None, Parameter(help="How often the examples are read; default: 3.")] = None,
    dropout: Annotated[float | None, Parameter(help="Dropout of the whole model; default: 0.1.")] = None,
    head_dropout: Annotated[float, Parameter(help="Dropout before the new layer.")] = 0.1,
    lora: Annotated[
        bool, Flag, Parameter(help="Train low-rank updates and the new layer alone; also --lora.rank 8.")
    ] = False,
    word_dropout: Annotated[float, Parameter(help="The share of a text's tokens that each step leaves out.")] = 0.0,
    seed: Annotated[int | None, Whole, Parameter(help="The seed of everything random.")] = None,
    settings: Annotated[
        list[str] | None,
        Parameter(name="--set", negative="", help="Any field, as --training.learning-rate 1e-4, --lora.rank 8."),
    ] = None,
    json: Json = False,
    device: Device = "auto",
    dtype: Dtype = "auto",
) -> None:
    """Train a model with one extra layer on labelled texts.

    GPT-1's recipe (Radford et al. 2018): new start, delimiter and extract tokens, one linear layer on the extract
    token's vector, and language modelling as a second loss. What is held out decides which checkpoint is best.

    With --lora (Hu et al. 2021) the model's own weights stay as they are; --lora.rank, --lora.alpha, --lora.dropout and
    --lora.targets (globs of module paths) change the updates.
    """
    from foretell.finetuning.finetune import finetune_again, finetune_new
    from foretell.finetuning.request import make_request
    from foretell.session.display import make_reporter
    from foretell.session.reporter import Reporters
    from foretell.start import load_start

    out = out or Path(decided(lambda: str(default_out(data, resume == "auto"))))
    if resume == "auto" and decided(lambda: is_started(out)):
        note(f"opening     {out}")
        with Reporters([make_reporter(messages())]) as reporter:
            training = tuning_sections(settings or []).get("training", {})
            session = finetune_again(out, reporter, device, dtype, training)
        return None if is_follower() else finish(session.run.directory, json)
    if model is None or data is None:
        raise UsageError("give MODEL and DATA: foretell finetune MODEL DATA --task classify")
    sections = tuning_sections(settings or [])
    request = make_request(
        data,
        out,
        task,
        text_column=text_column or (),
        label_column=label_column,
        choice_column=choice_column or (),
        columns=[name.strip() for name in columns.split(",")] if columns else (),
        dev=dev,
        epochs=epochs,
        dropout=dropout,
        pool=pool,
        truncate=truncate,
        training={**sections.get("training", {}), **({} if seed is None else {"seed": seed})},
        device=device,
        dtype=dtype,
        lm_weight=lm_weight,
        head_dropout=head_dropout,
        word_dropout=word_dropout,
        class_weights=class_weights,
        dev_fraction=dev_fraction,
        best_by=best_by,
        encoding=encoding,
        lora=sections.get("lora", {} if lora else None),
    )
    decided(lambda: check_new(request))
    note(f"reading     {data}")
    _ = request.examples  # before the model: a wrong column is found at once
    start = load_start(model)
    for line in start.notes():
        note(line)
    with Reporters([make_reporter(messages())]) as reporter:
        session = finetune_new(request, start, reporter)
    return None if is_follower() else finish(session.run.directory, json)


def default_out(data: Path | None, resume: bool) -> Path:
    """runs/NAME, named after the data."""
    from foretell.finding import default_run_directory

    if data is None:
        if resume:
            raise UsageError("--resume auto needs the run: give --out runs/NAME")
        raise UsageError("give MODEL and DATA: foretell finetune MODEL DATA --task classify")
    return default_run_directory([data], resume)


def is_started(out: Path) -> bool:
    """True for a run that can be continued."""
    from foretell.runs.run import is_run

    return is_run(out)


def check_new(request: FinetuneRequest) -> None:
    """Refuse a directory that is a run already, before anything is read."""
    from foretell.runs.run import is_unfinished

    if request.out.exists() and not is_unfinished(request.out) and is_started(request.out):
        from foretell.errors import OutputError

        raise OutputError(f"{request.out} exists; resume it with --resume auto, or give another --out")


def tuning_sections(settings: list[str]) -> dict[str, dict[str, Any]]:
    """The sections `training` and `lora` of --set; any other is refused."""
    sections = parse_settings(settings)
    for name in sections:
        if name not in ("training", "lora"):
            raise UsageError(f"--{name}... is not a section of finetune; its sections are training and lora")
    return sections


def finish(directory: Path, json: bool) -> None:
    """Show the report, and what to do with the run."""
    from foretell.files import read_json
    from foretell.finetuning.report import REPORT, report_lines
    from foretell.finetuning.report_plot import PICTURE
    from foretell.session.failures import command_name

    report = read_json(directory / REPORT)
    if json:
        return print_json(report)
    console = results()
    console.print("\n".join(report_lines(report)))
    picture = f", {PICTURE}" if (directory / PICTURE).exists() else " (for report.png: pip install 'foretell[plot]')"
    console.print(f"run         {directory}: checkpoints/, metrics.jsonl, {REPORT}{picture}")
    console.print(f"try         {command_name()} predict {shlex.quote(str(directory))} {EXAMPLES[report['task']]}")
    return None
