"""The display of a training fits a terminal."""

from __future__ import annotations

from foretell.session.display import describe, describe_gauges

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


def test_the_gauges_show_only_what_was_measured():
    assert describe_gauges(METRICS).plain == ("learning rate 1.2e-05  gradient 1234.57  41% MFU  125,952 MiB")
    assert "MFU" not in describe_gauges(METRICS | {"mfu": None}).plain
