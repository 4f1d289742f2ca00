"""The report of a fine-tuning: figures of the best checkpoint on the held-out examples, next to a baseline."""

from __future__ import annotations

from typing import Any

import numpy as np

from foretell.files import write_json
from foretell.finetuning.figures import (
    baseline_figures,
    calibration,
    class_scores,
    confusion,
    evaluation_figures,
    on_scale,
)
from foretell.finetuning.head import head_of
from foretell.finetuning.report_plot import draw_report
from foretell.finetuning.settings import HeadSettings
from foretell.finetuning.task import FinetuneTask, describe_figures, head_outputs
from foretell.language_model import load_model
from foretell.session.session import Session

REPORT = "report.json"


def write_report(session: Session[FinetuneTask]) -> dict[str, Any]:
    """Evaluate the best checkpoint on the held-out examples and write report.json into the run."""
    task, run = session.task, session.run
    best = run.best()
    model = load_model(best.directory, session.device)
    targets = np.array([example.target for example in task.data.dev])
    outputs = head_outputs(model.decoder, head_of(model), task.data.dev, session.dtype)
    train = [example.target for example in task.data.train]
    report = {
        "task": task.head.settings.task,
        "examples": {"train": len(task.data.train), "dev": len(task.data.dev)},
        "split": task.data.split_rule,
        "best_step": best.step,
        "minutes": round(session.progress.seconds / 60, 3),
        "dev": evaluation_report(outputs, targets, task.head.settings),
        "baseline": baseline_figures(train, targets, task.head.settings),
    }
    write_json(run.directory / REPORT, report)
    draw_report(run.directory, report["dev"], numbers_of(outputs, targets, task.head.settings))
    return report


def numbers_of(
    outputs: np.ndarray, targets: np.ndarray, settings: HeadSettings
) -> tuple[np.ndarray, np.ndarray] | None:
    """True and predicted numbers (N,) on the scale of the data; None for labels."""
    if not settings.is_number:
        return None
    return on_scale(targets, settings), on_scale(outputs[:, 0], settings)


def evaluation_report(outputs: np.ndarray, targets: np.ndarray, settings: HeadSettings) -> dict[str, Any]:
    """All figures of outputs (N, C) for the targets (N,)."""
    figures: dict[str, Any] = dict(evaluation_figures(outputs, targets, settings))
    if settings.is_number:
        return figures
    indices = targets.astype(int)
    names = settings.labels or tuple(str(index) for index in range(outputs.shape[1]))
    matrix = confusion(outputs.argmax(1), indices, outputs.shape[1])
    scores = dict(zip(names, class_scores(matrix), strict=True))
    own = {"labels": list(names), "confusion": matrix.tolist(), "by_label": scores}
    return {**figures, **own, "calibration": calibration(outputs, indices)}


def report_lines(report: dict[str, Any]) -> list[str]:
    """The report for a terminal."""
    return [
        f"dev         {described(report['dev'])}, {report['examples']['dev']:,} examples, step {report['best_step']:,}",
        f"baseline    {described(report['baseline'])}: {report['baseline']['rule']}",
        f"time        {report['minutes']:.1f} minutes of training",
    ]


def described(figures: dict[str, Any]) -> str:
    """The figures that are numbers, in one line."""
    names = ("accuracy", "macro_f1", "rmse", "mae", "r2")
    return describe_figures({name: figures[name] for name in names if name in figures})
