"""Forecasters of foretell in sktime: almanac, which needs no training, or a model of your own series.

pip install sktime
python examples/sktime_forecaster.py
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from sktime.forecasting.base import BaseForecaster

import foretell


class ForetellForecaster(BaseForecaster):
    """Forecasts by sampled paths: points are medians, intervals are calibrated on held-out windows.

    model: a MODEL argument, such as "runs/sales". samples: the number of paths. Fitting keeps the series, whose last
    values are the model's context; it does not train.
    """

    _tags = {  # noqa: RUF012 - sktime reads the class attribute
        "y_inner_mtype": "pd.Series",
        "X_inner_mtype": "pd.DataFrame",
        "capability:exogenous": False,
        "capability:missing_values": True,
        "capability:pred_int": True,
        "capability:insample": False,
        "capability:pred_int:insample": False,
        "requires-fh-in-fit": False,
    }

    def __init__(self, model: str = "almanac", samples: int = 100, seed: int = 1):
        self.model, self.samples, self.seed = model, samples, seed
        super().__init__()

    def _fit(self, y: pd.Series, X: Any, fh: Any) -> ForetellForecaster:
        self.forecaster_, self.series_ = foretell.load_forecaster(self.model), y
        return self

    def _update(self, y: pd.Series, X: Any = None, update_params: bool = True) -> ForetellForecaster:
        self.series_ = y.combine_first(self.series_)
        return self

    def _predict(self, fh: Any, X: Any) -> pd.Series:
        forecast, steps = self.forecast_to(fh)
        return pd.Series(forecast.median[steps], fh.to_absolute_index(self.cutoff), name=self.series_.name)

    def _predict_interval(self, fh: Any, X: Any, coverage: list[float]) -> pd.DataFrame:
        forecast, steps = self.forecast_to(fh)
        bounds = [bound[steps] for share in coverage for bound in forecast.interval(100 * share)]
        columns = pd.MultiIndex.from_product([self._get_varnames(), coverage, ["lower", "upper"]])
        return pd.DataFrame(np.stack(bounds, axis=1), fh.to_absolute_index(self.cutoff), columns)

    def forecast_to(self, fh: Any) -> tuple[Any, np.ndarray]:
        """The forecast up to the last step of a horizon, and the indices of the horizon's steps in it.

        The forecast begins after the last value, which may lie before the cutoff.
        """
        known = self.series_.loc[: self.series_.last_valid_index()]
        late = len(self.series_) - len(known)
        steps = fh.to_relative(self.cutoff).to_numpy() + late - 1
        frame = known.to_frame("y")
        if isinstance(frame.index, pd.PeriodIndex):
            frame.index = frame.index.to_timestamp()
        (forecast,) = foretell.forecast(self.forecaster_, frame, int(max(steps)) + 1, self.samples, seed=self.seed)
        return forecast, steps


if __name__ == "__main__":
    from sktime.datasets import load_airline

    airline = load_airline()
    forecaster = ForetellForecaster().fit(airline[:-12])
    print(forecaster.predict_interval(range(1, 13), coverage=[0.8]).assign(actual=airline[-12:]))
