"""The report of a fine-tuning: figures of the best checkpoint on the held-out examples, next to a baseline."""

from __future__ import annotations

from typing import Any

import numpy as np

from foretell.files import write_json
from foretell.finetuning.figures import (
    baseline_figures,
    evaluation_report,
    on_scale,
)
from foretell.finetuning.head import head_of
from foretell.finetuning.report_plot import draw_report
from foretell.finetuning.settings import HeadSettings
from foretell.finetuning.task import FinetuneTask, describe_figures, head_outputs
from foretell.language_model import load_model
from foretell.session.session import Session

REPORT = "report.json"
SHOWN = 20  # labels of which a terminal shows the figures


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


def report_lines(report: dict[str, Any]) -> list[str]:
    """The report for a terminal."""
    dev = {"examples": report["examples"]["dev"], "figures": report["dev"], "baseline": report["baseline"]}
    return [
        *figure_lines(dev, "held out"),
        f"time        {report['minutes']:.1f} minutes of training; the best step is {report['best_step']:,}",
    ]


def figure_lines(report: dict[str, Any], where: str = "figures") -> list[str]:
    """Figures next to the baseline, then those of each label."""
    figures, baseline = report["figures"], report["baseline"]
    rows = [] if "by_label" not in figures or len(figures["labels"]) > SHOWN else label_lines(figures)
    error = figures.get("calibration", {}).get("expected_calibration_error")
    calibrated = "" if error is None else f", calibration error {error:.3f}"
    return [
        f"{where:<11} {described(figures)}{calibrated} on {report['examples']:,} examples",
        f"baseline    {described(baseline)}: {baseline['rule']}",
        *rows,
    ]


def label_lines(figures: dict[str, Any]) -> list[str]:
    """A line per label: precision, recall, F1 and how often it was predicted as which label."""
    width = min(24, max(len(label) for label in figures["labels"]))
    head = f"{'label':<{width}}  precision  recall     F1  examples  predicted as, in this order"
    lines = [
        f"{label[:width]:<{width}}  {score['precision']:9.3f}  {score['recall']:6.3f}  {score['f1']:5.3f}  "
        f"{score['examples']:8,}  {' '.join(f'{count:,}' for count in counts)}"
        for (label, score), counts in zip(figures["by_label"].items(), figures["confusion"], strict=True)
    ]
    return [head, *lines]


def described(figures: dict[str, Any]) -> str:
    """The figures that are numbers, in one line."""
    names = ("accuracy", "macro_f1", "rmse", "mae", "r2")
    return describe_figures({name: figures[name] for name in names if name in figures})
