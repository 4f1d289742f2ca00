"""Series, a file of them, and a forecaster that was trained on it for a few steps."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from foretell.forecasting.forecaster import Forecaster, load_forecaster
from foretell.forecasting.train import ForecastRequest, ForecastTraining
from foretell.session.protocol import run_training
from foretell.session.reporter import Reporter
from foretell.session.session import Session

PERIOD = 6
SHAPE = {"num_layers": 1, "num_heads": 2, "width": 16, "context_length": 32}


def wave(length: int, size: float = 10.0, offset: float = 100.0) -> np.ndarray:
    """A repeating series: every PERIOD values the same."""
    return offset + size * np.sin(2 * np.pi * np.arange(length) / PERIOD)


def make_request(file: Path, out: Path, steps: int = 8, **changes) -> ForecastRequest:
    training = {"steps": steps, "batch_size": 4, "evaluate_every": steps, "checkpoint_every": steps}
    overrides = {"model": SHAPE, "codec": {"bins": 63}, "series": {"cycle": 1}, "training": training}
    return ForecastRequest(
        data=file, out=out, size="toy", horizon=4, overrides={**overrides, **changes.pop("overrides", {})}
    )


@pytest.fixture(scope="session")
def series_file(tmp_path_factory) -> Path:
    """Two waves by the hour, in the long format."""
    path = tmp_path_factory.mktemp("series") / "waves.csv"
    rows = [
        f"{name},{np.datetime64('2024-01-01T00:00:00') + np.timedelta64(index, 'h')},{value:.3f}"
        for name, values in (("small", wave(48, 3)), ("large", wave(60, 4000, -1e4)))
        for index, value in enumerate(values)
    ]
    path.write_text("\n".join(["unique_id,ds,y", *rows]) + "\n", encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def request_for(series_file) -> Callable[..., ForecastRequest]:
    """Makes the request of a tiny training on the file: `request_for(out, steps=3)`."""
    return partial(make_request, series_file)


@pytest.fixture(scope="session")
def session(series_file, tmp_path_factory) -> Session:
    """A session that has trained a tiny forecaster."""
    return run_training(
        ForecastTraining(make_request(series_file, tmp_path_factory.mktemp("runs") / "waves")), Reporter()
    )


@pytest.fixture(scope="session")
def run_directory(session) -> Path:
    return session.run.directory


@pytest.fixture(scope="session")
def forecaster(run_directory) -> Forecaster:
    return load_forecaster(run_directory, dtype="float32")
