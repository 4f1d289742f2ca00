"""The configuration of a forecaster: model, codec, windows of series, training."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from foretell.config.model import ModelConfig, Size
from foretell.config.section import Section
from foretell.config.training import TrainingConfig
from foretell.forecasting.codec import CodecConfig


class SeriesConfig(Section):
    """Settings for cutting series into windows. Lengths are in values."""

    horizon: int = Field(gt=0)  # the number of last values of a series to hold out, and the shortest training target
    held_out_windows: int = Field(1, gt=0)  # windows of `horizon` values held out of a long series
    hold_out: bool = True  # False: train on all values, without evaluation
    noise: float = Field(0.1, ge=0, le=1)  # standard deviation of random changes of a window's scale
    missing_rate: float = Field(0.05, ge=0, lt=1)  # share of the windows in which some values are hidden
    cycle: Size | None = 1  # length of the subtracted cycle; None: the season of each series; 1: none
    synthetic: float = Field(0.0, ge=0, le=1)  # share of the windows that are synthetic series
    combine: bool = True  # combine with a repeated season or last value if that is better on held-out values
    smoothing: float = Field(1.5, ge=0, le=1e3)  # standard deviation, in bins, of the smoothed targets


class ForecastConfig(Section):
    """One whole training run of a forecaster."""

    model: ModelConfig
    codec: CodecConfig = CodecConfig()
    series: SeriesConfig
    training: TrainingConfig


# Rotary positions with a low base distinguish offsets of a day from offsets of a week; biases of queries and keys let
# heads attend to a fixed offset independent of the value. Widths and depths by name.
MODEL: dict[str, Any] = {
    "position": "rotary",
    "rope_theta": 1000.0,
    "norm": "rmsnorm",
    "qk_norm": True,
    "activation": "relu2",
    "tie_embeddings": False,
    "bias": {"attention": True, "attention_output": False, "feedforward": False, "norm": True, "head": True},
}
SIZES: dict[str, dict[str, int]] = {
    "toy": {"num_layers": 2, "num_heads": 2, "width": 32},
    "tiny": {"num_layers": 2, "num_heads": 2, "width": 64},
    "small": {"num_layers": 4, "num_heads": 4, "width": 128},
    "medium": {"num_layers": 6, "num_heads": 6, "width": 192},
}
TRAINING: dict[str, Any] = {
    "batch_size": 8,  # with 32, a loss of 5.33 instead of 4.51 on M4 hourly: docs/forecasting-reference.md
    "optimizer": "muon",
    "learning_rate": 4e-3,
    "final_learning_rate_share": 0.0,
    "schedule": "linear",
    "warmup_steps": 30,
    "sample_every": 500,
}
TUNING: dict[str, Any] = {"learning_rate": 1e-3}  # from the included weights; other rates were not compared
CONTEXT_LENGTH = 448  # more than two weeks of hours, with room for a forecast of two days
