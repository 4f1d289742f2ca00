"""Training settings in the words of nanoGPT: translated where the meaning is clear, refused where it is not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from foretell.config.field_names import ALIASES
from foretell.errors import ConfigError

# With these names of nanoGPT's, batch_size means the rows of one micro-batch
NANOGPT_TRAINING = {
    "max_iters": "steps",
    "warmup_iters": "warmup_steps",
    "eval_interval": "evaluate_every",
    "grad_clip": "clip_norm",
    "min_lr": "final_learning_rate_share",
}
LEAST_SHARE = 0.01  # a smaller final share of the learning rate is taken for a learning rate


def translate_training_input(values: Mapping[str, Any]) -> dict[str, Any]:
    """A user's `training` section under our names for its keys.

    nanoGPT's `min_lr` becomes a share of `learning_rate`. A share that looks like a learning rate, and a nanoGPT recipe
    whose batch_size counts the rows of one micro-batch, are a `ConfigError` of one line.
    """
    given = {str(key).replace("-", "_"): value for key, value in values.items()}
    _refuse_nanogpt_batch(given)
    translated = {ALIASES.get(key, key): value for key, value in given.items() if key != "min_lr"}
    share = translated.get("final_learning_rate_share")
    if isinstance(share, float) and 0 < share < LEAST_SHARE:
        raise ConfigError(
            f"training.final_learning_rate_share = {share:g} looks like a learning rate; it is the share of "
            "learning_rate at which the schedule ends: 0.1 is a tenth"
        )
    if "min_lr" in given:
        translated["final_learning_rate_share"] = _share_of(given["min_lr"], translated)
    return translated


def _share_of(final_rate: Any, training: Mapping[str, Any]) -> float:
    """nanoGPT's min_lr as a share of the learning rate."""
    rate = training.get("learning_rate")
    is_known = all(isinstance(value, int | float) and value > 0 for value in (final_rate, rate))
    if not is_known or "final_learning_rate_share" in training:
        raise ConfigError(
            f"training.min_lr = {final_rate!r} is a learning rate: give learning_rate with it, or "
            "final_learning_rate_share = min_lr / learning_rate alone"
        )
    return final_rate / rate


def _refuse_nanogpt_batch(given: Mapping[str, Any]) -> None:
    """Refuse a batch_size that counts rows per micro-batch, with the equivalent that counts rows per step."""
    rows, parts = given.get("batch_size"), given.get("gradient_accumulation_steps", 1)
    names = [name for name in NANOGPT_TRAINING if name in given]
    if names and isinstance(rows, int) and isinstance(parts, int) and parts > 1:
        renamed = ", ".join(f"{NANOGPT_TRAINING[name]} for {name}" for name in names)
        raise ConfigError(
            f"training: batch_size = {rows} next to nanoGPT's {names[0]} would be the rows of one micro-batch, and "
            f"here it is all rows of a step; write batch_size = {rows * parts} with gradient_accumulation_steps = "
            f"{parts}, and {renamed}"
        )
