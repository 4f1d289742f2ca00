"""`foretell.finetune`: fine-tuning from Python."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypedDict, Unpack

from foretell.device import DeviceName, DtypeName
from foretell.finetuning.finetune import FinetuneTraining
from foretell.finetuning.request import make_request
from foretell.finetuning.settings import Pool, TaskName, Truncate
from foretell.language_model import LanguageModel
from foretell.loading import load, load_start
from foretell.session.progress import choose_display, notes_of_the_log
from foretell.session.protocol import run_training
from foretell.session.reporter import Reporter, Reporters


class FinetuneOptions(TypedDict, total=False):
    """The options of `foretell finetune` as keywords; training and lora are fields of TrainingConfig and LoRAConfig."""

    text_column: str | Sequence[str]
    label_column: str | None
    choice_column: Sequence[str]
    columns: Sequence[str]
    dev: str | Path | None
    dev_fraction: float
    encoding: str
    truncate: Truncate | None
    pool: Pool | None
    lm_weight: float
    class_weights: Literal["balanced", "none"]
    best_by: Literal["loss", "accuracy", "macro_f1"]
    epochs: float | None
    minutes: float | None
    dropout: float | None
    head_dropout: float
    word_dropout: float
    training: Mapping[str, Any]
    lora: Mapping[str, Any] | None
    device: DeviceName
    dtype: DtypeName


def finetune(
    model: str | Path,
    data: str | Path,
    /,
    out: str | Path | None = None,
    *,
    task: TaskName = "classify",
    resume: bool = False,
    progress: bool | None = None,
    reporter: Reporter | None = None,
    **options: Unpack[FinetuneOptions],
) -> LanguageModel:
    """Train a model with one extra layer on the labelled rows of a file, and return the best model of the run.

    options are those of `foretell finetune`: text_column, label_column, choice_column, columns, dev, dev_fraction,
    encoding, truncate, pool, lm_weight, class_weights, best_by, epochs, dropout, head_dropout, word_dropout, device,
    dtype; training and lora are dicts of fields of TrainingConfig and LoRAConfig. out: the run's directory; default:
    runs/NAME after the data. resume continues a run that exists. The report is in the run's report.json. Raises the
    errors of `foretell.errors`.
    """
    request = make_request(data, out, task, start=load_start(model), **options)
    displays = [*choose_display(progress), *([] if reporter is None else [reporter])]
    with notes_of_the_log(displays), Reporters(displays) as reporters:
        session = run_training(FinetuneTraining(request), reporters, resume=resume)
    return load(session.run.directory, request.device)
