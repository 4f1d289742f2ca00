"""The report of a fine-tuning: figures on held-out or other labelled rows, compared with a baseline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from foretell.data.memory import as_source
from foretell.data.table import open_table
from foretell.errors import shell_words
from foretell.evaluation.material import table_rows
from foretell.evaluation.overlap import Overlap, overlap_entry, overlap_lines, overlap_with
from foretell.finetuning.examples import warn_of_other_columns
from foretell.finetuning.figures import NAMES
from foretell.finetuning.head import encode_examples, head_of, head_outputs, input_format
from foretell.finetuning.request import command_words
from foretell.finetuning.settings import DecimalMark, make_columns
from foretell.finetuning.split import hash_examples
from foretell.finetuning.task import FinetuneTask
from foretell.language_model import LanguageModel, load_model
from foretell.runs.run import REPORT, REPORT_PICTURE
from foretell.runs.summary import RunReport
from foretell.session.commands import command_name
from foretell.session.plots import draw_if_possible, picture, points_of
from foretell.session.state import SessionState
from foretell.storage.files import write_json
from foretell.typesetting import document
from foretell.typesetting.document import DocumentSection, Paragraph
from foretell.typesetting.html import Shown
from foretell.typesetting.numbers import format_duration
from foretell.typesetting.text import shorten

SHOWN = 20  # labels whose figures are displayed


def write_report(session: SessionState[FinetuneTask], baseline: dict[str, Any]) -> None:
    """Evaluate the best checkpoint on the held-out examples and write report.json into the run."""
    best, task, kind = session.run.best(), session.task, session.task.head.task
    model, dev = load_model(best.directory, session.device), task.data.dev
    outputs = head_outputs(model.decoder, head_of(model), dev, session.dtype)
    targets = [example.target for example in dev]
    report: dict[str, Any] = {
        "task": kind.settings.task,
        "examples": {"train": len(task.data.train), "dev": len(dev)},
        "split": task.data.files.split_rule,
        "minutes": round(session.progress.seconds / 60, 3),
        "dev": kind.report(outputs, targets),
        "best_step": best.step,
        "baseline": baseline,
    }
    figures = kind.figures(outputs, targets)
    advice = [*cut_texts(task), *longer_advice(session, figures), *baseline_advice(figures, baseline)]
    if advice:
        report["advice"] = advice
    write_json(session.run.directory / REPORT, report)

    def draw() -> None:
        with picture(session.run.directory / REPORT_PICTURE, (10, 4.6)) as figure:
            kind.draw(figure, report["dev"], outputs, targets)

    draw_if_possible(draw)


def cut_texts(task: FinetuneTask) -> list[str]:
    """A line with the number of examples that were cut to fit the context, if there are any."""
    examples = [*task.data.train, *task.data.dev]
    count = sum(example.cut > 0 for example in examples)
    context = task.config.model.context_length
    return [f"{count:,} of {len(examples):,} examples were cut to the context of {context} tokens"] if count else []


def baseline_advice(figures: Mapping[str, float], baseline: Mapping[str, Any]) -> list[str]:
    """A line if the baseline is better on the held-out examples."""
    signs = {"accuracy": 1, "rmse": -1}  # a kind may have neither
    is_better = any(sign * baseline[name] > sign * figures[name] for name, sign in signs.items() if name in figures)
    return ["the baseline is better than this model"] if is_better else []


def longer_advice(session: SessionState[FinetuneTask], figures: Mapping[str, float]) -> list[str]:
    """The command that trains longer, if the last evaluation was the best and not all predictions are right.

    Checkpoints between two evaluations are evaluated too.
    """
    progress, record, minutes = session.progress, session.task.record, session.task.record.minutes
    evaluated = [step for step, _ in points_of(session.run.metrics.records(), "validation_loss", "step")]
    is_perfect = figures.get("accuracy") == 1
    if is_perfect or not evaluated or progress.evaluations_since_best or session.run.best().step < evaluated[-1]:
        return []
    is_timed = minutes is not None and progress.step != record.most_steps
    length = ["--minutes", f"{2 * minutes:g}"] if is_timed else ["--steps", str(2 * progress.step)]
    words = command_words([record.start.model] if record.start else [], record, session.task.config.finetuning)
    command = f"{command_name()} {shell_words(*words, *length)}"
    return [f"the last evaluation is the best, so longer training may help, with your other options: {command}"]


@dataclass(frozen=True)
class TaskEvaluation(Shown):
    """The figures of a model on labelled examples, as reported by its `Kind`, and the figures of a baseline."""

    examples: int
    figures: dict[str, Any]
    baseline: dict[str, Any]
    overlap: Overlap | None = None

    def to_json(self) -> dict[str, Any]:
        values = asdict(replace(self, overlap=None))
        del values["overlap"]
        return values | overlap_entry(self.overlap)

    def document(self, name: str = "figures", note: str = "") -> DocumentSection:
        """The figures and the baseline's, then the figures of each label or type of span."""
        error = self.figures.get("calibration", {}).get("expected_calibration_error")
        figures = written(compared(self.figures)) | ({} if error is None else {"calibration error": f"{error:.3f}"})
        baseline = written(compared(self.baseline))
        rows = [
            (name, *figures.values(), f"{self.examples:,}"),
            ("baseline", *(baseline.get(figure, "") for figure in figures), ""),
        ]
        table = document.Table(("", *figures, "examples"), rows)
        rule = Paragraph(f"baseline: {self.baseline['rule']}{note}")
        parts = [table, rule, *overlap_lines(self.overlap), *score_tables(self.figures)]
        return DocumentSection("", parts)


@dataclass(frozen=True)
class FinetuneReport(RunReport):
    """The report of a training with a head."""

    def document(self) -> DocumentSection:
        values = self.values
        evaluation = TaskEvaluation(values["examples"]["dev"], values["dev"], values["baseline"])
        note = f"; {format_duration(60 * values['minutes'])} of training, the best step is {values['best_step']:,}"
        shown = evaluation.document("held out", note)
        advice = [Paragraph(line) for line in values.get("advice", ())]
        return replace(shown, parts=[*shown.parts, *advice])


def evaluate_task(
    model: LanguageModel,
    data: Any,
    *,
    text_column: str | Sequence[str] = (),
    label_column: str | None = None,
    choice_column: Sequence[str] = (),
    columns: Sequence[str] = (),
    encoding: str | None = None,
    decimal: DecimalMark | None = None,
    limit: int | None = None,
) -> TaskEvaluation:
    """All figures of a tuned model on labelled rows, compared with predicting the most frequent label, or the mean.

    data: a file, a DataFrame of pandas or polars, or a list of dicts. limit: the number of rows to read. Columns and
    decimal mark default to the training's, if the data has these columns. Raises UsageError for a model without a head,
    DataError for rows that cannot be read.
    """
    head = head_of(model)
    table = open_table(as_source(data), encoding, tuple(columns), head.task.reader.otherwise)
    available, given = table.first_columns(), make_columns(text_column, label_column, choice_column, decimal)
    kind, trained = head.task, head.settings.columns
    if not given.texts and not given.choices and all(name in available for name in (*trained.texts, *trained.choices)):
        given = given.model_copy(update={"texts": trained.texts, "choices": trained.choices})
    if given.label is None and trained.label in available:
        given = given.model_copy(update={"label": trained.label})
    given = given.model_copy(update={"decimal": given.decimal or trained.decimal})
    chosen = kind.reader.find_columns(available, given, str(table))
    warn_of_other_columns(str(table), chosen, trained, given)
    examples = kind.reader.read_all(table, chosen)[:limit]
    overlap = overlap_with(model.data_use, hash_examples(examples), table_rows(table.file.suffix))
    examples = encode_examples(examples, kind, input_format(model))
    outputs = head_outputs(model.decoder, head, examples, model.dtype)
    targets = [example.target for example in examples]
    baseline = kind.baseline(targets, targets)
    report = kind.report(outputs, targets)
    return TaskEvaluation(len(examples), report, baseline, overlap=overlap)


def score_tables(figures: dict[str, Any]) -> list[document.Table]:
    """The scores of each type of span, or of each label with its confusions; empty for numbers."""
    name = "span" if "by_span" in figures else "label"
    scores = figures.get(f"by_{name}", {})
    if not scores or len(scores) > SHOWN:
        return []
    header = [name, "precision", "recall", "F1", "examples"]
    rows = [
        [shorten(label, 24), *(f"{score[key]:.3f}" for key in ("precision", "recall", "f1")), f"{score['examples']:,}"]
        for label, score in scores.items()
    ]
    if name == "label":
        header.append("predicted as, in this order")
        for row, counts in zip(rows, figures["confusion"], strict=True):
            row.append(" ".join(f"{count:,}" for count in counts))
    return [document.Table(header, rows)]


def compared(figures: Mapping[str, Any]) -> dict[str, float]:
    numbers = {name: value for name, value in figures.items() if isinstance(value, float)}
    return {name: value for name, value in numbers.items() if name not in ("loss", "value")}


def written(figures: Mapping[str, float]) -> dict[str, str]:
    """Figures with three digits, by their display names."""
    return {NAMES.get(name, name): f"{value:.3f}" for name, value in figures.items()}
