"""The loss curve in the terminal and as a picture."""

from __future__ import annotations

import importlib.util

import pytest

from foretell.pretraining.curve import block_curve, write_curve

METRICS = [{"step": step, "loss": 5.0 / step, "validation_loss": None} for step in range(1, 101)]


def test_the_curve_has_its_largest_and_smallest_value_beside_it():
    lines = block_curve(METRICS, "loss", width=100, height=4).splitlines()
    assert lines[0].startswith("  5.00 ")
    assert lines[3].startswith("  0.05 ")
    assert lines[4].split() == ["step", "1", "100"]


def test_a_falling_loss_falls_from_left_to_right():
    top = block_curve(METRICS, "loss", width=50, height=4).splitlines()[0]
    assert top[7] == "█"
    assert len(top) < 15


def test_a_curve_fits_eighty_columns():
    assert max(len(line) for line in block_curve(METRICS, "loss").splitlines()) <= 80


@pytest.mark.parametrize("count", [0, 1])
def test_one_point_makes_no_curve(count):
    assert block_curve(METRICS[:count], "loss") == ""


def test_values_that_are_not_finite_are_left_out():
    assert "nan" not in block_curve([*METRICS, {"step": 101, "loss": float("nan")}], "loss")


def test_a_flat_curve_is_drawn_too():
    assert "1.00" in block_curve([{"step": step, "loss": 1.0} for step in range(5)], "loss")


def test_the_picture_is_a_png(tmp_path):
    assert write_curve(tmp_path / "loss.png", METRICS, "title")
    assert (tmp_path / "loss.png").read_bytes().startswith(b"\x89PNG")


def test_without_matplotlib_there_is_no_picture_and_no_error(tmp_path, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert not write_curve(tmp_path / "loss.png", METRICS, "title")
    assert not (tmp_path / "loss.png").exists()
