"""How a size is trained where the user says nothing: optimizer, learning rate, tokens a step, schedule."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from foretell.config import ModelConfig
from foretell.model.cost import count_parameters
from foretell.model.presets import SIZES, preset_config


class Recipe(NamedTuple):
    """What depends on the size: larger models want smaller rates and more tokens a step."""

    learning_rate: float
    tokens_per_step: int


# Found by trial, docs/speedrun.md: less loss than by AdamW's, on several texts. "medium" is a guess from the others
MUON = {
    "toy": Recipe(4e-3, 1024),
    "tiny": Recipe(4e-3, 2048),
    "small": Recipe(4e-3, 2048),
    "medium": Recipe(3e-3, 4096),
}
ADAMW = {
    "toy": Recipe(3e-3, 1024),
    "tiny": Recipe(2e-3, 2048),
    "small": Recipe(1.5e-3, 4096),
    "medium": Recipe(1e-3, 8192),
}
LARGE = Recipe(6e-4, 16_384)
SCHEDULES = {"muon": {"schedule": "linear", "min_learning_rate": 0.0}}  # others: TrainingConfig's own
CONTINUED_SHARE = 0.1  # of a new model's learning rate with the same optimizer, for one that has learned already


def training_defaults(
    size: str, config: ModelConfig, steps: int, chosen: Mapping[str, Any] = MappingProxyType({})
) -> dict[str, Any]:
    """What `train` sets for a new model; `chosen` is what the user set, on which some of it depends."""
    optimizer = chosen.get("optimizer", "muon" if size in MUON else "adamw")
    recipe = (MUON if optimizer == "muon" else ADAMW).get(size, LARGE)
    return {
        "optimizer": optimizer,
        "learning_rate": recipe.learning_rate,
        **({} if "schedule" in chosen else SCHEDULES.get(optimizer, {})),
        **paced(recipe, config, steps),
    }


def continued_defaults(
    config: ModelConfig, steps: int, chosen: Mapping[str, Any] = MappingProxyType({})
) -> dict[str, Any]:
    """What `train` sets where a model goes on that has learned already: AdamW, as most public ones were made with."""
    defaults = training_defaults(nearest_size(config), config, steps, {"optimizer": "adamw", **chosen})
    return {**defaults, "learning_rate": CONTINUED_SHARE * defaults["learning_rate"]}


def paced(recipe: Recipe, config: ModelConfig, steps: int) -> dict[str, Any]:
    """Rows of a step, and how often what is done."""
    tokens_per_step = recipe.tokens_per_step
    return {
        "steps": steps,
        "batch_size": max(1, tokens_per_step // config.context_length),
        "warmup_steps": min(100, max(1, steps // 10)),
        # a tenth of the training's arithmetic at most, since reading costs a third of learning and ten are made
        "evaluation_tokens": min(65_536, max(8_192, steps * tokens_per_step // 32)),
        "log_every": max(1, min(10, steps // 100)),
        "evaluate_every": min(250, -(-steps // 10)),
        "sample_every": -(-steps // 5),
        "checkpoint_every": min(500, -(-steps // 5)),
    }


def nearest_size(config: ModelConfig) -> str:
    """The size whose number of parameters is nearest, with the same vocabulary."""
    parameters = count_parameters(config)
    others = {name: count_parameters(preset_config(name, vocab_size=config.vocab_size)) for name in SIZES}
    return min(others, key=lambda one: abs(np.log(others[one] / parameters)))
