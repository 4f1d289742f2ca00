"""What a user asked for: a file of series, a size, settings. It is checked before any work is done."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from foretell.config import check_known, make_section, translate_training_input
from foretell.device import DeviceName, DtypeName
from foretell.errors import ConfigError
from foretell.forecasting.config import SIZES, ForecastConfig

MOST_MINUTES = 10 * 525_600


@dataclass(frozen=True)
class ForecastRequest:
    """What to train on which file. `overrides` holds sections of the configuration."""

    data: Path
    out: Path
    columns: tuple[str, ...] = ()
    size: str | None = None
    minutes: float | None = None
    horizon: int | None = None
    season: int | None = None
    overrides: dict[str, dict[str, Any]] = field(default_factory=dict)
    device: DeviceName = "auto"
    dtype: DtypeName = "auto"

    def __post_init__(self) -> None:
        for section in self.overrides:
            check_known(section, tuple(ForecastConfig.model_fields), "configuration section")
        if self.size is not None:
            check_known(self.size, tuple(SIZES), "size")
        if self.minutes is not None and not 0 < self.minutes <= MOST_MINUTES:
            raise ConfigError(f"minutes must be a positive number of at most {MOST_MINUTES:,}, not {self.minutes:g}")
        if self.minutes is not None and "steps" in self.section("training"):
            raise ConfigError("minutes and steps both say how long to train; give one of them")
        if self.horizon is not None and self.horizon < 1:
            raise ConfigError(f"horizon must be at least 1, not {self.horizon}")

    def section(self, name: str) -> dict[str, Any]:
        """What the user set in a section, under our names for the fields."""
        values = self.overrides.get(name, {})
        if name == "training":
            return translate_training_input(values)
        return {key.replace("-", "_"): value for key, value in values.items()}


def check_same_run(request: ForecastRequest, config: ForecastConfig, record: dict[str, Any]) -> None:
    """Refuse settings other than those that the run was started with."""
    asked = {"data": [str(request.data)], "size": request.size, "columns": list(request.columns) or None}
    asked |= {"season": request.season}
    for name, value in asked.items():
        if value is not None and record.get(name) != value:
            raise changed(request.out, name, record.get(name), value)
    if request.horizon not in (None, config.series.horizon):
        raise changed(request.out, "horizon", config.series.horizon, request.horizon)
    for name in request.overrides:
        old = getattr(config, name)
        new = make_section(type(old), {**old.model_dump(), **request.section(name)}, name)
        for key in type(old).model_fields:
            if getattr(new, key) != getattr(old, key):
                raise changed(request.out, f"{name}.{key}", getattr(old, key), getattr(new, key))


def changed(out: Path, what: str, old: Any, new: Any) -> ConfigError:
    """The error for a setting that differs from the run's."""
    return ConfigError(
        f"{out} was started with {what} = {old}, not {new}; leave it out to resume, or start again with another --out"
    )
