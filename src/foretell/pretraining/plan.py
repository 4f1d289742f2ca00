"""`foretell.plan`: the memory and time of a training on text before it starts, and of generation."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from foretell.config.model import ModelConfig
from foretell.config.training import TrainingConfig
from foretell.config.weight_shapes import count_parameters
from foretell.errors import UsageError
from foretell.model.presets import ASSUMED_VOCABULARY, PUBLISHED, SIZES
from foretell.planning.plan import Plan, find_devices, plan_generation, plan_training
from foretell.planning.speed import THIS
from foretell.pretraining.request import TextRequest
from foretell.pretraining.resolve import training_config
from foretell.session.budget import TOKENS_PER_PARAMETER

if TYPE_CHECKING:
    from foretell.config.typed_dicts import ModelDict, TrainingDict

logger = logging.getLogger(__name__)


def plan(
    size: str,
    tokens: float | None = None,
    *,
    gpus: int = 1,
    gpu: str = THIS,
    context: int | None = None,
    only: Literal["training", "generating"] | None = None,
    model: ModelDict | None = None,
    training: TrainingDict | None = None,
) -> Plan:
    """Plan the memory and time of a training before it starts, and generation.

    tokens: to train on; default: the tokens of training's steps, else 20 per parameter. gpu: a name, as in
    `foretell plan --help`; `this` measures this machine for seconds. context: tokens of the
    text that is generated; default: the model's context. model and training are dicts of fields of ModelConfig and
    TrainingConfig. Raises UsageError, and ConfigError for a training that cannot fit.
    """
    unused = {"generating": {"tokens": tokens, "training": training}, "training": {"context": context}}
    for name, value in unused.get(only or "", {}).items():
        if value is not None:
            raise UsageError(f"a plan of {only} only does not need {name}; leave it out")
    overrides = {"model": model, "training": training}
    request = TextRequest(source=lambda: (), names=[], out=Path("runs/plan"), size=size, overrides=overrides)
    devices = find_devices(gpu, gpus)
    shape, settings, count = planned(request, size, tokens, gpus)
    if only != "generating" and tokens is None and request.given_steps is None:
        logger.info(f"{count:.3g} tokens are assumed, {TOKENS_PER_PARAMETER} per parameter (--tokens)")
    trained = None if only == "generating" else plan_training(shape, settings, count, devices)
    generated = None if only == "training" else plan_generation(shape, devices, context)
    return Plan(size, shape, settings, count, devices, trained, generated)


def planned(
    request: TextRequest, size: str, tokens: float | None, gpus: int
) -> tuple[ModelConfig, TrainingConfig, float]:
    """Model, training and tokens, with what `train` chooses where the request leaves it open."""
    is_given = "vocab_size" in request.section("model")
    if size in SIZES and not is_given:
        logger.info(
            f"the vocabulary of {size} comes from the text; {ASSUMED_VOCABULARY:,} is assumed (--model.vocab-size)"
        )
    vocabulary = 1 if is_given else PUBLISHED.get(size, {}).get("vocab_size", ASSUMED_VOCABULARY)
    model = request.model_config(size, vocabulary)
    training = training_config(request, size, model, request.given_steps or 1)
    if "batch_size" not in request.section("training"):
        least = max(1, gpus) * training.gradient_accumulation_steps
        training = training.model_copy(update={"batch_size": -(-training.batch_size // least) * least})
    if tokens is not None and request.given_steps is not None:
        raise UsageError("tokens and training.steps both set the length of the training; give one of them")
    if request.given_steps is not None:
        tokens = float(request.given_steps * training.batch_size * model.context_length)
    if tokens is None:
        tokens = float(TOKENS_PER_PARAMETER * count_parameters(model))
    return model, training, tokens
