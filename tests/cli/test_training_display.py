"""What a person sees while a model learns fits a terminal."""

from __future__ import annotations

from foretell.cli.training_display import describe, describe_gauges

METRICS = {
    "step": 123_456,
    "loss": 12.345,
    "validation_loss": 12.345,
    "learning_rate": 1.2345e-5,
    "gradient_norm": 1234.5678,
    "tokens_per_second": 1_234_567.8,
    "mfu": 0.41,
    "peak_memory_bytes": 123 * 2**30,
}


def test_both_lines_fit_eighty_columns():
    usual = METRICS | {"step": 12_345, "loss": 2.345, "validation_loss": 2.345, "tokens_per_second": 123_456.7}
    assert len(describe(usual, 20_000, "1:23:45 left").plain) <= 80
    assert len(describe_gauges(METRICS).plain) <= 80


def test_the_gauges_say_what_was_measured_and_nothing_else():
    assert describe_gauges(METRICS).plain == (
        "learning rate 1.2e-05  gradient 1234.57  41% of the matrix rate  125,952 MiB"
    )
    assert "matrix" not in describe_gauges(METRICS | {"mfu": None}).plain
