"""The options of every training."""

from dataclasses import dataclass
from typing import ClassVar

from foretell.config.options import DeviceOptions, option


@dataclass(frozen=True, kw_only=True)
class PaceOptions:
    """The length of a training, and its most used settings."""

    minutes: float | None = option("Minutes of training (default: chosen from the data).")
    steps: int | None = option("Number of optimizer steps (default: chosen from the data).", sets="training.steps")
    seed: int | None = option("The random seed.", sets="training.seed")
    checkpoint_every: int | None = option("Steps between checkpoints.", sets="training.checkpoint_every")


@dataclass(frozen=True, kw_only=True)
class TrainingOptions(DeviceOptions, PaceOptions):
    """Options of every training, on the command line and in Python."""


class LongReplays:
    """The permission to begin a replay of more than a minute; the command line forbids it in a pipe without --yes."""

    are_allowed: ClassVar[bool] = True
