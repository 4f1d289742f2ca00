"""How large a model, how many steps: chosen from the text and the machine, with the reasons."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch

from foretell.config import ModelConfig, TrainingConfig
from foretell.data.batch import make_batch
from foretell.model.cost import count_parameters, training_flops_per_token
from foretell.model.init import make_decoder
from foretell.model.presets import SIZES, preset_config
from foretell.training.objective import make_objective
from foretell.training.optimizer import make_optimizer
from foretell.training.step import training_step

DEFAULT_MINUTES = 10.0
MOST_EPOCHS = 30  # more passes over the same text mostly memorise it
FEWEST_STEPS = 50
TOKENS_PER_PARAMETER = 20  # Hoffmann et al. 2022, table 3
PROBE_SECONDS = 2.0
DROPOUT_BY_EPOCHS = ((3.0, 0.0), (8.0, 0.1), (float("inf"), 0.2))


@dataclass(frozen=True)
class Plan:
    """What was chosen and why; `steps` is fixed from here on, so that a resumed run does the same."""

    size: str
    steps: int
    tokens_per_second: float | None
    reasons: list[str] = field(default_factory=list)


def choose_size(train_tokens: int, vocab_size: int, minutes: float, flops_per_second: float) -> tuple[str, str]:
    """The size whose parameters the time can feed best, but no larger than the text can; with the reason.

    In the given time the machine can process C operations; C = 6 N * 20 N is best spent on N parameters.
    """
    by_time = (minutes * 60 * flops_per_second / (6 * TOKENS_PER_PARAMETER)) ** 0.5
    by_text = train_tokens * MOST_EPOCHS / TOKENS_PER_PARAMETER
    target = min(by_time, by_text)
    parameters = {name: count_parameters(preset_config(name, vocab_size=vocab_size)) for name in SIZES}
    name = min(SIZES, key=lambda one: abs(np.log(parameters[one] / target)))
    limit = "the time" if by_time < by_text else "the text"
    return name, f"size        {name}, {parameters[name]:,} parameters: {limit} can teach about {target:,.0f}"


def choose_steps(
    train_tokens: int, tokens_per_step: int, minutes: float, tokens_per_second: float, fixed_time: bool
) -> tuple[int, str]:
    """As many steps as fit the time; unless the time was asked for, no more than MOST_EPOCHS passes over the text."""
    by_time = int(minutes * 60 * tokens_per_second / tokens_per_step)
    by_text = MOST_EPOCHS * train_tokens // tokens_per_step
    fewest = 1 if fixed_time else FEWEST_STEPS
    steps = max(fewest, by_time if fixed_time else min(by_time, by_text))
    epochs = steps * tokens_per_step / train_tokens
    why = f"{minutes:g} minutes at {tokens_per_second:,.0f} tokens/s"
    if not fixed_time and by_text < by_time:
        why = "more would mostly memorise the text"
    if steps == fewest:
        why += f", but no fewer than {fewest}"
    return steps, f"steps       {steps:,} of {tokens_per_step:,} tokens ({epochs:.1f} times the text): {why}"


def choose_dropout(epochs: float) -> dict[str, float]:
    """Rates for a text that is read so many times: the more often, the more a model would learn it by heart.

    Attention weights are never dropped, since that costs the fused kernel.
    """
    rate = next(rate for limit, rate in DROPOUT_BY_EPOCHS if epochs < limit)
    return {"embedding": rate, "attention": 0.0, "residual": rate}


def probe_speed(config: ModelConfig, training: TrainingConfig, device: torch.device, dtype: torch.dtype) -> float:
    """Training tokens per second of this shape on this machine, measured for PROBE_SECONDS on random tokens."""
    objective = make_objective(make_decoder(config, seed=0), device, dtype)
    # Decay takes no time, and its globs may name layers that only the size chosen later has
    training = training.model_copy(update={"weight_decay_by_path": {}})
    optimizer = make_optimizer(objective.decoder, training, dtype)
    tokens = np.random.default_rng(0).integers(0, config.vocab_size, (training.batch_size, config.context_length + 1))
    batch = make_batch(tokens).to(device)
    training_step(objective, optimizer, batch, 0, training, dtype)  # the first one warms up
    started, steps = time.perf_counter(), 0
    while (elapsed := time.perf_counter() - started) < PROBE_SECONDS or steps == 0:
        training_step(objective, optimizer, batch, steps, training, dtype)
        steps += 1
    return steps * batch.count / elapsed


def plan_run(
    model: Callable[[str], ModelConfig],
    training: Callable[[str, ModelConfig, int], TrainingConfig],
    train_tokens: int,
    *,
    size: str | None,
    minutes: float | None,
    steps: int | None,
    device: torch.device,
    dtype: torch.dtype,
) -> Plan:
    """Fill in what the user left open. `model(size)` and `training(size, model, steps)` build the configurations."""
    reasons: list[str] = []
    budget = minutes or DEFAULT_MINUTES
    if size is None:
        small = model("tiny")
        rate = probe_speed(small, training("tiny", small, 1), device, dtype)
        flops = rate * training_flops_per_token(small)
        size, reason = choose_size(train_tokens, small.vocab_size, budget, flops)
        reasons.append(reason)
    if steps is not None:
        return Plan(size, steps, None, reasons)
    config = model(size)
    settings = training(size, config, 1)
    rate = probe_speed(config, settings, device, dtype)
    tokens_per_step = settings.batch_size * config.context_length
    steps, reason = choose_steps(train_tokens, tokens_per_step, budget, rate, fixed_time=minutes is not None)
    return Plan(size, steps, rate, [*reasons, reason])
