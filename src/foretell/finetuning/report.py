"""The report of a fine-tuning: figures on held-out or other labelled rows, compared with a baseline."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from foretell.data.table import Table
from foretell.errors import OutputError
from foretell.files import write_json
from foretell.finetuning.figures import describe_figures
from foretell.finetuning.head import encode_examples, head_of, head_outputs
from foretell.finetuning.settings import Columns
from foretell.finetuning.task import FinetuneTask
from foretell.language_model import LanguageModel, load_model
from foretell.session.plots import has_matplotlib, import_figure
from foretell.session.session import Session

REPORT, PICTURE = "report.json", "report.png"
SHOWN = 20  # labels of which a terminal shows the figures

logger = logging.getLogger(__name__)


def write_report(session: Session[FinetuneTask]) -> dict[str, Any]:
    """Evaluate the best checkpoint on the held-out examples and write report.json into the run."""
    task, run = session.task, session.run
    best, kind = run.best(), task.head.task
    model = load_model(best.directory, session.device)
    outputs = head_outputs(model.decoder, head_of(model), task.data.dev, session.dtype)
    targets = [example.target for example in task.data.dev]
    report = {
        "task": kind.task,
        "examples": {"train": len(task.data.train), "dev": len(task.data.dev)},
        "split": task.data.split_rule,
        "best_step": best.step,
        "minutes": round(session.progress.seconds / 60, 3),
        "dev": kind.report(outputs, targets),
        "baseline": kind.baseline([example.target for example in task.data.train], targets),
    }
    write_json(run.directory / REPORT, report)
    draw_report(run.directory, partial(kind.draw, report=report["dev"], outputs=outputs, targets=targets))
    return report


def draw_report(directory: Path, draw: Callable[[Any], None]) -> None:
    """Write the picture of a report, which `draw` puts into a figure, if matplotlib is installed; else warn."""
    if not has_matplotlib():
        return
    path = directory / PICTURE
    try:
        figure = import_figure(path)(figsize=(10, 4.6), dpi=150, layout="constrained")
        draw(figure)
        figure.savefig(path, format="png")
    except OSError as error:
        logger.warning(f"could not write {path}: {error.strerror or error}; the run itself is complete")
    except OutputError as error:
        logger.warning(f"{error}; the run itself is complete")


def evaluate_file(model: LanguageModel, table: Table, given: Columns) -> dict[str, Any]:
    """All figures on the rows of a file, and those of the file's own most frequent label, or of its mean.

    Columns that are not given are those of the training, where the file has them.
    """
    head, available = head_of(model), table.first_columns()
    kind, trained = head.task, head.settings.columns
    if not given.texts and all(name in available for name in trained.texts):
        given = given.model_copy(update={"texts": trained.texts})
    if given.label is None and trained.label in available:
        given = given.model_copy(update={"label": trained.label})
    columns = kind.find_columns(available, given, str(table))
    examples = encode_examples(kind.read_all(table, columns), model)
    outputs = head_outputs(model.decoder, head, examples, model.dtype)
    targets = [example.target for example in examples]
    return {
        "examples": len(examples),
        "figures": kind.report(outputs, targets),
        "baseline": kind.baseline(targets, targets),
    }


# --- lines for a terminal --------------------------------------------------------------------------------------------


def report_lines(report: dict[str, Any]) -> list[str]:
    """The report of a run."""
    dev = {"examples": report["examples"]["dev"], "figures": report["dev"], "baseline": report["baseline"]}
    return [
        *figure_lines(dev, "held out"),
        f"time        {report['minutes']:.1f} minutes of training; the best step is {report['best_step']:,}",
    ]


def figure_lines(report: dict[str, Any], where: str = "figures") -> list[str]:
    """Figures and the baseline, then those of each label."""
    figures, baseline = report["figures"], report["baseline"]
    error = figures.get("calibration", {}).get("expected_calibration_error")
    calibrated = "" if error is None else f", calibration error {error:.3f}"
    return [
        f"{where:<11} {described(figures)}{calibrated} on {report['examples']:,} examples",
        f"baseline    {described(baseline)}: {baseline['rule']}",
        *score_lines(figures),
    ]


def score_lines(figures: dict[str, Any]) -> list[str]:
    """A line per type of span, or per label with how often it was predicted as which label; none for numbers."""
    name = "span" if "by_span" in figures else "label"
    scores = figures.get(f"by_{name}", {})
    if not scores or len(scores) > SHOWN:
        return []
    width = min(24, max(len(name), *map(len, scores)))
    lines = [f"{name:<{width}}  precision  recall     F1  examples"]
    for label, score in scores.items():
        columns = f"{score['precision']:9.3f}  {score['recall']:6.3f}  {score['f1']:5.3f}  {score['examples']:8,}"
        lines.append(f"{label[:width]:<{width}}  {columns}")
    if name == "span":
        return lines
    counts = (" ".join(f"{count:,}" for count in row) for row in figures["confusion"])
    return [f"{line}  {more}" for line, more in zip(lines, ["predicted as, in this order", *counts], strict=True)]


def described(figures: dict[str, Any]) -> str:
    """The figures that are compared with a baseline, in one line."""
    numbers = {name: value for name, value in figures.items() if isinstance(value, float)}
    return describe_figures({name: value for name, value in numbers.items() if name not in ("loss", "value")})
