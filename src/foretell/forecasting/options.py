"""The options of reading series and of training on them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from foretell.config.options import option

if TYPE_CHECKING:
    from foretell.forecasting.series_layout import SeriesFormat


@dataclass(frozen=True, kw_only=True)
class FormatOptions:
    """The format of a file with series; by default found in the file, or as in the model's training."""

    columns: Sequence[str] = option(
        "Read only this column, where every column is a series; may be repeated.", default=()
    )
    id_column: str | None = option("The column that names the series of a row.")
    time_column: str | None = option("The column of times.")
    target_column: str | None = option("The column of values; others are left out.")
    separator: str | None = option("The character between cells.")
    decimal: Literal[".", ","] | None = option("The decimal mark.")
    date_format: str | None = option("Date format: %d.%m.%Y, %Y-Q%q, unix, unix_ms or number.")

    @property
    def format(self) -> "SeriesFormat":
        from foretell.forecasting.series_layout import SeriesFormat

        return SeriesFormat(**{name: getattr(self, name) for name in SeriesFormat.model_fields})


@dataclass(frozen=True, kw_only=True)
class ForecastOptions(FormatOptions):
    """Options of `foretell train --task forecast`."""

    sections: ClassVar[tuple[str, ...]] = ("model", "codec", "series", "training")

    size: str | None = option("A preset: toy, tiny, small or medium (default: by the time).")
    horizon: int | None = option("Values to hold out at the end of each series (default: two seasons).")
    season: int | None = option("Values per season (default: by times, or found).")
    is_from_scratch: bool = option("Start from random weights instead of almanac's.", default=False)
