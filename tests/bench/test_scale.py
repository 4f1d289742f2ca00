"""bench/scale.py on sizes that take a second."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import scale
from arguments import print_report
from scale import write_plot
from scale_points import ROWS, Effort, flops_of, measure, model
from weak_scaling import covered, with_parts

from foretell.model.cost import training_flops_per_token

TINY = {"context_length": 16, "width": 64, "num_layers": 1, "vocab_size": 64}
SIZES: dict[str, tuple[int, ...]] = {"context_length": (8, 16), "num_layers": (1, 2)}


@pytest.fixture
def dimensions(monkeypatch: pytest.MonkeyPatch):
    """Two dimensions of two sizes, measured here instead of in child processes."""

    class Here:
        def __init__(self, work):
            self.work = work

        def result(self):
            return self.work(), 50_000_000

    monkeypatch.setattr(scale, "BASE", TINY)
    monkeypatch.setattr(scale.Child, "start", Here)
    return scale.measure_dimensions(SIZES, Effort(1, 0.0), nothing=20_000_000)


def test_a_report_has_the_points_and_laws_of_each_dimension(dimensions, tmp_path: Path, capsys) -> None:
    assert list(dimensions) == list(SIZES)
    for name, dimension in dimensions.items():
        assert [point["value"] for point in dimension["points"]] == list(SIZES[name])
        assert all(point["memory"] == 30_000_000 for point in dimension["points"])
        assert dimension["laws"]["memory"]["measured"]["exponent"] == 0
        low, high = dimension["points"][0]["planned_memory"]
        assert 0 < low < high
    setup = {"step": {"low": 1.0}, "cpu": {"low": 1.0}, "collectives": {"low": 0.0}, "memory": 1e6}
    machine = {name: {"high": 1e9} for name in ("matmul_flops", "read_bandwidth")}
    setups = with_parts({name: dict(setup) for name in ("alone", "separate", "ddp", "fsdp")})
    weak = {"setups": setups, "machine": {"alone": machine, "separate": machine}}
    report = {**scale.start_report("scale"), "quick": True, "dimensions": dimensions, "weak_scaling": weak}
    print_report(report, scale.print_tables, as_json=False)
    assert "context T" in capsys.readouterr().out
    json.dumps(report)
    write_plot(tmp_path / "scale.png", dimensions, scale.NAMES)
    assert (tmp_path / "scale.png").read_bytes().startswith(b"\x89PNG")


def test_reading_is_a_third_of_a_step_but_for_the_head() -> None:
    config = model(TINY)
    step, reading = flops_of(config)
    tokens, head = ROWS * config.context_length, config.vocab_size * config.width
    assert step == training_flops_per_token(config) * tokens
    assert reading == step / 3 - 2 * head * (tokens - ROWS)


def test_a_point_has_seconds_of_steps_and_of_reading() -> None:
    figures = measure(model(TINY), 0.0)
    assert all(seconds and min(seconds) > 0 for seconds in figures.values())


def test_time_in_collectives_counts_overlaps_once() -> None:
    assert covered([]) == 0
    assert covered([(0.0, 1.0), (2.0, 3.0)]) == 2
    assert covered([(2.0, 3.0), (0.0, 2.5), (0.5, 1.0)]) == 3


def test_the_parts_of_a_step_of_two_processes_add_up() -> None:
    figures = {"alone": (1.0, 0.9, 0.0), "separate": (1.3, 1.1, 0.0), "ddp": (1.6, 1.2, 0.2)}
    setups = with_parts(
        {
            name: {"step": {"low": step}, "cpu": {"low": cpu}, "collectives": {"low": collectives}}
            for name, (step, cpu, collectives) in figures.items()
        }
    )
    assert setups["ddp"]["efficiency"] == pytest.approx(1 / 1.6)
    parts = {"sharing": 0.2, "waiting": 0.1, "rest": 0.1}
    assert {name: setups["ddp"][name] for name in parts} == pytest.approx(parts)
    assert setups["separate"]["rest"] == pytest.approx(0)
    assert setups["alone"]["sharing"] == setups["alone"]["waiting"] == 0
