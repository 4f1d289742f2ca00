"""Each measured training, predicted from the others."""

from __future__ import annotations

from dataclasses import dataclass

from foretell.planning.calibration import Basis, Calibration, calibrations, nearest
from foretell.planning.ranges import Range


@dataclass(frozen=True)
class Prediction:
    """The device seconds of a measured training, next to those predicted without it."""

    row: Calibration
    basis: Basis
    device_seconds: Range

    @property
    def is_right(self) -> bool:
        """True if the range contains what was measured."""
        return self.row.device_seconds in self.device_seconds


def backtest() -> list[Prediction]:
    """A prediction for every row, with the row left out."""
    return [predict(row, [other for other in calibrations() if other is not row]) for row in calibrations()]


def predict(row: Calibration, others: list[Calibration]) -> Prediction:
    """The prediction of a row from others."""
    basis = nearest(row.flops_per_token, row.tokens, row.device, others)
    at_peak = row.flops / row.peak_flops
    return Prediction(row, basis, Range(at_peak / basis.share.high, at_peak / basis.share.low))
