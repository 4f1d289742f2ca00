"""Several curves in one field of characters."""

from __future__ import annotations

import pytest

from foretell.pretraining.comparison import HEIGHT, LABEL, WIDTH, plot, points_of, shared_axis, shared_metric


def line(first: float, last: float, count: int = 11) -> list[tuple[float, float]]:
    return [(step * 10.0, first + (last - first) * step / (count - 1)) for step in range(count)]


def test_a_falling_line_goes_from_the_upper_left_to_the_lower_right():
    lines = plot([line(3, 1)], "step").splitlines()
    assert lines[0].split()[:1] == ["3.000"]
    assert lines[0][LABEL] == "●"
    assert lines[HEIGHT - 1].startswith("  1.000 ")
    assert lines[HEIGHT - 1][LABEL + WIDTH - 1] == "●"
    assert lines[-1].split() == ["step", "0", "100"]


def test_every_column_between_two_points_is_filled():
    lines = plot([line(3, 1, count=2)], "step").splitlines()
    assert all(any(row[LABEL + place : LABEL + place + 1] == "●" for row in lines) for place in range(WIDTH))


def test_each_curve_has_its_mark_and_stays_below_the_other_where_it_is_smaller():
    lines = plot([line(3, 2), line(2, 1)], "step").splitlines()
    places = {mark: [row for row, text in enumerate(lines) if mark in text] for mark in "●○"}
    assert max(places["●"]) <= min(places["○"])


def test_curves_that_coincide_take_turns():
    text = plot([line(3, 1), line(3, 1)], "step")
    assert text.count("●") == text.count("○") == WIDTH / 2


def test_a_curve_that_ends_earlier_is_not_drawn_further():
    lines = plot([line(3, 1), line(3, 1, count=6)], "step").splitlines()
    assert max(text.rfind("○") for text in lines) == pytest.approx(LABEL + WIDTH / 2, abs=1)


@pytest.mark.parametrize("curves", [[[(5.0, 2.0)]], [[(0.0, 1.0), (9.0, 1.0)]], [[], [(1.0, 2.0)]]])
def test_a_point_and_a_flat_line_are_drawn_too(curves):
    text = plot(curves, "step")
    assert "●" in text or "○" in text
    assert max(map(len, text.splitlines())) <= 80


def test_nothing_makes_no_picture():
    assert plot([[], []], "step") == ""


def test_what_is_not_finite_is_left_out():
    metrics = [{"step": 1, "loss": float("nan")}, {"step": 2, "loss": None}, {"step": 3, "loss": 1.0}]
    assert points_of(metrics, "loss", "step") == [(3, 1.0)]


def test_runs_whose_steps_are_not_alike_are_compared_by_tokens():
    alike = [[{"step": 2, "tokens": 64}], [{"step": 4, "tokens": 128}]]
    assert shared_axis(alike) == "step"
    assert shared_axis([*alike, [{"step": 2, "tokens": 256}]]) == "tokens"


def test_the_training_loss_is_compared_where_a_run_has_no_validation_loss():
    with_it = [{"step": step, "loss": 2.0, "validation_loss": 1.0} for step in (1, 2)]
    without = [{"step": step, "loss": 2.0, "validation_loss": None} for step in (1, 2)]
    assert shared_metric([with_it, with_it]) == "validation_loss"
    assert shared_metric([with_it, without]) == "loss"
