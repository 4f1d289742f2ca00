"""Recipes: how a size is trained by default. Optimizer, learning rate, tokens per step, schedule, dropout."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from foretell.config import ModelConfig
from foretell.model.cost import count_parameters
from foretell.model.presets import SIZES, preset_config


class Recipe(NamedTuple):
    """Settings that depend on the size: larger models need smaller rates and more tokens per step."""

    learning_rate: float
    tokens_per_step: int


# Found by trial, docs/speedrun.md: less loss than with AdamW, on several texts. "medium" is a guess from the others
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
SCHEDULES = {"muon": {"schedule": "linear", "final_learning_rate_share": 0.0}}  # others: TrainingConfig's own
CONTINUED_SHARE = 0.1  # of a new model's learning rate with the same optimizer, for a model that is trained already
DROPOUT_BY_EPOCHS = ((3.0, 0.0), (8.0, 0.1), (float("inf"), 0.2))


def training_defaults(
    size: str,
    config: ModelConfig,
    steps: int,
    chosen: Mapping[str, Any] = MappingProxyType({}),
    row: int | None = None,
) -> dict[str, Any]:
    """The settings for a new model, on rows of `row` tokens (None: the context); some depend on `chosen` ones."""
    optimizer = chosen.get("optimizer", "muon" if size in MUON else "adamw")
    recipe = (MUON if optimizer == "muon" else ADAMW).get(size, LARGE)
    return {
        "optimizer": optimizer,
        "learning_rate": recipe.learning_rate,
        **({} if "schedule" in chosen else SCHEDULES.get(optimizer, {})),
        **paced(recipe, row or config.context_length, steps),
    }


def continued_defaults(
    config: ModelConfig, steps: int, chosen: Mapping[str, Any] = MappingProxyType({}), row: int | None = None
) -> dict[str, Any]:
    """The settings for a trained model that continues: AdamW, with which most public models were trained."""
    defaults = training_defaults(nearest_size(config), config, steps, {"optimizer": "adamw", **chosen}, row)
    return {**defaults, "learning_rate": CONTINUED_SHARE * defaults["learning_rate"]}


def paced(recipe: Recipe, row: int, steps: int) -> dict[str, Any]:
    """Rows of `row` tokens per step, and the number of steps between actions."""
    tokens_per_step = recipe.tokens_per_step
    return {
        "steps": steps,
        "batch_size": max(1, tokens_per_step // row),
        "warmup_steps": min(100, max(1, steps // 10)),
        # a tenth of the training's arithmetic at most: a forward pass costs a third of a step, and ten are made
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
    return min(others, key=lambda name: abs(np.log(others[name] / parameters)))


def choose_dropout(epochs: float) -> dict[str, float]:
    """Dropout rates by how often a text is read: the more often, the more a model would memorise it.

    Attention weights are never dropped, since that rules out the fused kernel.
    """
    rate = next(rate for limit, rate in DROPOUT_BY_EPOCHS if epochs < limit)
    return {"embedding": rate, "attention": 0.0, "residual": rate}
