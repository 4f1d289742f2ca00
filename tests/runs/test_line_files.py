"""Files of lines: metrics and pace that survive a crash."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from foretell.runs.run import FollowedRun, Run

LINES = [{"step": step, "loss": 3.5 - step, "validation_loss": None} for step in (1, 2, 3)]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path)


@pytest.fixture
def measured(run: Run) -> Run:
    for line in LINES:
        run.metrics.append(line)
    return run


def test_metrics_come_back_in_the_order_they_were_written(measured: Run) -> None:
    assert measured.metrics.records() == LINES


def test_keeping_all_lines_does_not_write_the_file(measured: Run) -> None:
    path = measured.directory / "metrics.jsonl"
    os.utime(path, (1, 1))
    measured.metrics.keep(lambda line: True)
    assert path.stat().st_mtime == 1
    measured.metrics.keep(lambda line: line["step"] < 3)
    assert path.stat().st_mtime > 1
    assert measured.metrics.records() == LINES[:2]


def test_a_run_without_metrics_has_none(run: Run) -> None:
    assert run.metrics.records() == []


def cut(run: Run, count: int) -> None:
    path = run.directory / "metrics.jsonl"
    path.write_bytes(path.read_bytes()[:-count])


@pytest.mark.parametrize("count", [1, 2, 20])
def test_a_truncated_last_line_is_left_out(count: int, measured: Run) -> None:
    cut(measured, count)
    assert measured.metrics.records() == LINES[:2]


@pytest.mark.parametrize("was_cut", [False, True])
def test_resuming_drops_the_metrics_after_the_checkpoint(was_cut: bool, measured: Run) -> None:
    if was_cut:
        cut(measured, 5)
    measured.metrics.keep(lambda line: line["step"] <= 2)
    assert measured.metrics.records() == LINES[:2]
    measured.metrics.append(LINES[2])
    assert measured.metrics.records() == LINES


def test_a_cut_first_line_does_not_damage_the_next_one(run: Run) -> None:
    (run.directory / "pace.txt").write_text("0 0.0 1")
    run.clear_leftovers()
    run.pace.append((0, 0.0, 1.5))
    assert run.pace.records() == [(0, 0.0, 1.5)]


def test_only_the_first_process_writes_lines(measured: Run) -> None:
    followed = FollowedRun(measured.directory)
    followed.metrics.append(LINES[0])
    followed.metrics.keep(lambda line: False)
    assert followed.metrics.records() == LINES
