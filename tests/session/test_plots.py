"""Loss curves: as characters, and as a PNG."""

from __future__ import annotations

import importlib.util
import logging
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from foretell.errors import Interrupted, OutputError
from foretell.finetuning.figures import draw_confusion
from foretell.runs.record import RunRecord
from foretell.runs.run import Run
from foretell.session.plots import (
    HEIGHT,
    LABEL,
    WIDTH,
    draw_curve,
    losses_of,
    picture,
    plot,
    points_of,
    shared_axis,
    shared_metric,
    write_png,
)

RECORD = RunRecord(config={}, data=[], size="micro", device="cpu", dtype="float32")
METRICS = [{"step": step, "loss": 5.0 / step, "validation_loss": None} for step in range(1, 101)]


def line(first: float, last: float, count: int = 11) -> list[tuple[float, float]]:
    return [(step * 10.0, first + (last - first) * step / (count - 1)) for step in range(count)]


def test_a_signal_while_matplotlib_is_imported_is_not_taken_for_its_absence(tmp_path: Path, monkeypatch):
    class Stopped:
        def find_spec(self, name: str, *_: Any) -> None:
            if name == "matplotlib.figure":
                raise Interrupted("stopped by SIGTERM", 143)

    monkeypatch.delitem(sys.modules, "matplotlib.figure", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Stopped(), *sys.meta_path])
    with pytest.raises(Interrupted):
        write_png(tmp_path / "loss.png", [("run", METRICS)])


def test_a_falling_line_goes_from_the_upper_left_to_the_lower_right():
    lines = plot([line(3, 1)], "step").splitlines()
    assert lines[0].split()[:1] == ["3.000"]
    assert lines[0][LABEL] == "●"
    assert lines[HEIGHT - 1].startswith("  1.000 ")
    assert lines[HEIGHT - 1][LABEL + WIDTH - 1] == "●"
    assert lines[-1].split() == ["step", "0", "100"]


def test_the_axis_of_a_short_training_ends_at_its_last_step():
    assert plot([[(step, 1 / step) for step in range(1, 6)]], "step").splitlines()[-1].split() == ["step", "1", "5"]


@pytest.mark.parametrize("columns", [40, 60, 80, 200])
def test_a_curve_fits_the_terminal(columns):
    assert max(map(len, plot([line(3, 1)], "step", columns).splitlines())) == min(columns, LABEL + WIDTH)


def test_every_column_between_two_points_is_filled():
    lines = plot([line(3, 1, count=2)], "step").splitlines()
    assert all(any(row[LABEL + column : LABEL + column + 1] == "●" for row in lines) for column in range(WIDTH))


def test_each_curve_has_its_mark_and_the_smaller_one_is_below():
    lines = plot([line(3, 2), line(2, 1)], "step").splitlines()
    rows = {mark: [row for row, text in enumerate(lines) if mark in text] for mark in "●○"}
    assert max(rows["●"]) <= min(rows["○"])


def test_curves_that_coincide_take_turns():
    text = plot([line(3, 1), line(3, 1)], "step")
    assert text.count("●") == text.count("○") == WIDTH / 2


def test_a_curve_that_ends_earlier_is_not_extended():
    lines = plot([line(3, 1), line(3, 1, count=6)], "step").splitlines()
    assert max(text.rfind("○") for text in lines) == pytest.approx(LABEL + WIDTH / 2, abs=1)


@pytest.mark.parametrize("curves", [[[(5.0, 2.0)]], [[(0.0, 1.0), (9.0, 1.0)]], [[], [(1.0, 2.0)]]])
def test_a_point_and_a_flat_line_are_drawn_too(curves):
    text = plot(curves, "step")
    assert "●" in text or "○" in text
    assert max(map(len, text.splitlines())) <= 80


def test_no_points_give_no_plot():
    assert plot([[], []], "step") == ""


def test_values_that_are_not_finite_are_left_out():
    metrics = [{"step": 1, "loss": float("nan")}, {"step": 2, "loss": None}, {"step": 3, "loss": 1.0}]
    assert points_of(metrics, "loss", "step") == [(3, 1.0)]


def test_runs_with_unequal_steps_are_compared_by_tokens():
    alike = [[{"step": 2, "tokens": 64}], [{"step": 4, "tokens": 128}]]
    assert shared_axis(alike) == "step"
    assert shared_axis([*alike, [{"step": 2, "tokens": 256}]]) == "tokens"


def test_without_a_validation_loss_the_training_losses_are_compared():
    with_it = [{"step": step, "loss": 2.0, "validation_loss": 1.0} for step in (1, 2)]
    without = [{"step": step, "loss": 2.0, "validation_loss": None} for step in (1, 2)]
    assert shared_metric([with_it, with_it]) == "validation_loss"
    assert shared_metric([with_it, without]) == "loss"


# --- pictures ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """A run that has its record and its metrics."""
    run = Run(tmp_path)
    run.replace_record(RECORD)
    for line in METRICS[:5]:
        run.metrics.append(line)
    return run


def test_the_picture_is_a_png(run, pictures):
    draw_curve(run)
    assert (run.directory / "loss.png").read_bytes().startswith(b"\x89PNG")


def test_without_matplotlib_there_is_no_picture_and_no_error(run, monkeypatch, caplog):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    draw_curve(run)
    assert not (run.directory / "loss.png").exists()
    assert caplog.messages == []


class Broken:
    """An import hook under which matplotlib is installed and cannot be imported."""

    def find_spec(self, name: str, *_: object) -> None:
        if name.startswith("matplotlib"):
            raise AttributeError("_ARRAY_API not found\nin numpy")


@pytest.fixture
def broken(monkeypatch):
    for name in [name for name in sys.modules if name.startswith("matplotlib")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr("foretell.session.plots.has_matplotlib", lambda: True)
    monkeypatch.setattr(sys, "meta_path", [Broken(), *sys.meta_path])


def test_a_matplotlib_that_cannot_be_imported_is_one_line_in_the_log(run, broken, caplog):
    with caplog.at_level(logging.WARNING):
        draw_curve(run)
    assert len(caplog.messages) == 1
    assert "matplotlib cannot be imported (_ARRAY_API not found in numpy)" in caplog.messages[0]
    assert "\n" not in caplog.messages[0]


def test_a_comparison_that_cannot_be_drawn_is_an_output_error(run, broken):
    with pytest.raises(OutputError, match="matplotlib cannot be imported"):
        write_png(run.directory / "x.png", [("a", METRICS)])


def test_a_picture_that_cannot_be_written_is_one_line_in_the_log(run, caplog):
    (run.directory / "loss.png").mkdir()
    with caplog.at_level(logging.WARNING):
        draw_curve(run)
    assert len(caplog.messages) == 1
    assert "could not write" in caplog.messages[0]


def test_the_picture_says_what_it_shows(run, monkeypatch):
    from matplotlib.figure import Figure

    figures = []
    save = Figure.savefig
    monkeypatch.setattr(
        Figure, "savefig", lambda figure, *rest, **options: (figures.append(figure), save(figure, *rest, **options))
    )
    lines = [{"step": step, "loss": 5.0 - step, "validation_loss": 5.0 - step} for step in range(1, 6)]
    write_png(run.directory / "x.png", [("a", lines)], "these losses cannot be compared")
    (axes,) = figures[0].axes
    assert axes.get_title() == "these losses cannot be compared"
    assert [text.get_text() for text in axes.get_legend().get_texts()] == [
        "a, training",
        "a, held-out",
        "lowest: 0 at step 5",
    ]
    assert all(tick == int(tick) for tick in axes.get_xticks())
    first, last = axes.get_xlim()
    assert 0.5 < first < 1 and 5 < last < 5.5


@pytest.mark.parametrize(
    ("tuning", "losses"),
    [
        (None, ", in nats per token"),
        ({"task": "classify"}, ""),
        ({"task": "classify", "best_by": "macro_f1"}, ", where validation is 1 - macro_f1"),
    ],
)
def test_only_the_loss_of_a_language_model_is_in_nats_per_token(tuning, losses, run, monkeypatch):
    text = Run(run.directory / "text")
    text.directory.mkdir()
    text.replace_record(RECORD)
    run.replace_record(RECORD.model_copy(update={"config": {"finetuning": tuning}}))
    drawn: list[Any] = []
    monkeypatch.setattr("foretell.session.plots.write_png", lambda *_, **given: drawn.append(given["losses"]))
    draw_curve(run)
    assert drawn == [losses] and losses_of([run, run]) == losses
    assert losses_of([run, text]) == ("" if tuning else losses)


@pytest.mark.parametrize("name", ["a\x07\x1b[31m", "b\x9b\u202e", "c\ud800", r"$\x$", "5$ or $6"])
def test_a_name_or_label_with_any_characters_is_drawn(name: str, run, tmp_path: Path):
    points = [{"step": step, "tokens": step, "loss": 1.0} for step in (1, 2)]
    write_png(tmp_path / "losses.png", [(name, points)], warning=name)
    with picture(tmp_path / "confusion.png", (4, 3)) as figure:
        draw_confusion(figure.subplots(), [name, "other"], np.ones((2, 2)))
    assert (tmp_path / "losses.png").is_file() and (tmp_path / "confusion.png").is_file()


def test_names_of_any_length_leave_room_for_the_curves(run):
    lines = [{"step": step, "loss": 5.0 - step} for step in (1, 2)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # matplotlib's, where the axes have no room
        write_png(run.directory / "x.png", [(f"{'y' * 200}{number}", lines) for number in range(8)])
