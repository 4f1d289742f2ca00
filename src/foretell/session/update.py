"""One update of a run, taken again from the checkpoint before it, and one of its weights with all operands."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from foretell.config.training import TrainingConfig
from foretell.errors import UsageError, counted
from foretell.insight.address import parse_address, resolve_index
from foretell.insight.explain.explanation import UPDATE, Explanation, make_explanation
from foretell.insight.explain.steps import Remark, Step, Working, equals, factor, plus, quotient, written
from foretell.model.decoder import HEAD
from foretell.paths import suggest
from foretell.runs.checkpoint import list_checkpoints
from foretell.runs.run import Run
from foretell.runs.training_state import load_optimizer
from foretell.session.declaration import Training
from foretell.session.machine import resumed_precision
from foretell.session.protocol import recorded_config, recorded_task
from foretell.training.optimizer import SGD, AdamW, Composite, freeze, make_optimizer, set_learning_rate
from foretell.training.pace import learning_rate_at, learning_rate_of_share
from foretell.training.step import StepResult, TrainingBatch, clip_gradient, training_step
from foretell.typesetting.expression import Fraction, Number, Root

PRECISE = 10  # decimals of squares of gradients
CLIP_EPSILON = 1e-6  # torch adds it to the norm that the limit is divided by


@dataclass(frozen=True, eq=False)
class StateBefore:
    """The state before an update, counted from 1, and what the update takes."""

    number: int
    objective: nn.Module
    model: nn.Module
    optimizer: torch.optim.Optimizer
    batch: TrainingBatch
    config: TrainingConfig
    dtype: torch.dtype = torch.float32


def state_before(training: Training[Any, Any], run: Run, number: int) -> StateBefore:
    """The state before update `number` of a run. Raises `UsageError` unless a checkpoint has it."""
    record = run.record()
    config = recorded_config(training, run, record)
    last = config.training.steps if record.minutes is None else math.inf
    before = {each.step: each for each in list_checkpoints(run.checkpoints) if each.step < last}
    if number != 1 and number - 1 not in before:
        known = ", ".join(str(step + 1) for step in sorted({0, *before}))
        raise UsageError(f"{run.directory} has no checkpoint before update {number}; its updates {known} can be shown")
    device, dtype = resumed_precision(record, "auto", "auto")
    checkpoint = before.get(number - 1)
    if checkpoint is not None:
        checkpoint.verify()
    model = None if checkpoint is None else training.load_model(checkpoint.directory, device)
    task = recorded_task(training, run, record, model)
    task.objective.to(device).train()
    task.choose_kernels(device, dtype)
    freeze(task.model, config.training)
    optimizer = make_optimizer(task.model, config.training, dtype)
    share = 0.0
    if checkpoint is not None and checkpoint.step:
        load_optimizer(checkpoint, optimizer, task.model)
        share = checkpoint.training()["progress"]["share"]
    is_timed = record.minutes is not None
    rate = learning_rate_of_share(share, config.training) if is_timed else learning_rate_at(number - 1, config.training)
    set_learning_rate(optimizer, rate)
    batch = task.batch(number - 1)
    return StateBefore(number, task.objective, task.model, optimizer, batch, config.training, dtype)


@dataclass(frozen=True)
class Taken:
    """One weight in an update that was taken: its gradient before and after clipping, its moments and itself."""

    result: StepResult
    gradient: float
    clipped: float
    moments: Mapping[str, float]
    before: float
    after: float
    group: Mapping[str, Any]
    optimizer: torch.optim.Optimizer


def explain_update(state: StateBefore, address: str) -> Explanation:
    """Take the update, which changes the state's model, and explain the new value of the weight `update:PATH[i,j]`."""
    wanted = parse_address(address)
    path = wanted.name.removeprefix(UPDATE)
    weights = dict(state.model.named_parameters())
    if path == f"{HEAD}.weight" and path not in weights:
        path = "embed.token.weight"
    if path not in weights:
        raise UsageError(f"no weight is named '{path}'{suggest(path, [*weights])}")
    weight = weights[path]
    if not weight.requires_grad:
        raise UsageError(f"{path} is frozen in this run: no update changes it")
    index = resolve_index(wanted, ("row", "column")[: weight.dim()], weight.shape)
    taken = take(state, weight, index)
    meaning = [
        f"update {state.number}",
        *(f"{name} {each}" for name, each in zip(("row", "column"), index, strict=False)),
    ]
    return make_explanation(
        f"{UPDATE}{path}", index, meaning, (taken.after, working_of(state, taken)), weight.dtype, False
    )


def take(state: StateBefore, weight: nn.Parameter, index: tuple[int, ...]) -> Taken:
    """Take the update by the step that trains, and record one weight."""
    parts = state.optimizer.parts if isinstance(state.optimizer, Composite) else [state.optimizer]
    optimizer, group = next(
        (part, group)
        for part in parts
        for group in part.param_groups
        if any(each is weight for each in group["params"])
    )
    seen: list[float] = []

    def clip(*_: Any) -> None:
        """Clip here instead of in the step, to see the gradient before and after."""
        assert weight.grad is not None, "the loss depends on every trained weight"
        seen.append(float(weight.grad[index]))
        clip_gradient(state.objective, state.config.clip_norm)
        seen.append(float(weight.grad[index]))

    def moments() -> dict[str, float]:
        held = state.optimizer.state.get(weight) or optimizer.state.get(weight) or {}
        return {name: float(value[index] if value.dim() else value) for name, value in held.items()}

    before, old = float(weight.detach()[index]), moments()
    unclipped = state.config.model_copy(update={"clip_norm": None})
    handle = state.optimizer.register_step_pre_hook(clip)
    try:
        result = training_step(state.objective, state.optimizer, state.batch, state.number - 1, unclipped, state.dtype)
    finally:
        handle.remove()
    return Taken(result, seen[0], seen[1], old, before, float(weight.detach()[index]), group, optimizer)


def working_of(state: StateBefore, taken: Taken) -> Working:
    """The steps from the gradient of the batch to the new weight, by the rule of the weight's optimizer."""
    config, rate = state.config, float(taken.group["lr"])
    loss = f"The mean loss of the batch is {taken.result.loss:.6f} over {taken.result.count:,.0f} targets."
    schedule = f"{config.schedule} schedule, warm-up of {counted(config.warmup_steps, 'step')}"
    steps: list[Step] = [Remark(loss), equals(rate, "rate", note=f"update {state.number}: {schedule}")]
    norm, limit = taken.result.gradient_norm, config.clip_norm
    kept = 1.0 if limit is None else min(1.0, limit / (norm + CLIP_EPSILON))
    clipping = "no limit" if limit is None else f"norm {norm:.6f}, limit {limit:g}"
    g = taken.gradient * kept
    steps.append(equals(g, "g = gradient · kept =", taken.gradient, "·", kept, note=f"kept by clipping: {clipping}"))
    if isinstance(taken.optimizer, AdamW):
        more, update = adamw_steps(taken, g)
    elif isinstance(taken.optimizer, SGD):
        momentum, old = float(taken.group["momentum"]), taken.moments.get("momentum", 0.0)
        update = momentum * old + g
        more = [equals(update, "direction = μ · momentum + g =", momentum, "·", factor(old), *plus(g))]
    else:
        kind = type(taken.optimizer).__name__
        reads = f"momentum {taken.moments.get('momentum', 0.0):.6g}, weight {taken.before:.6g} before"
        remark = f"{kind} makes the singular values of the momentum about 1, so it reads all of the matrix: {reads}."
        return Working([*steps, Remark(remark)], taken.after, 0.0, has_operands=False)
    decay = 1 - rate * float(taken.group["weight_decay"])
    kept_weight = taken.before * decay
    value = kept_weight - rate * update
    steps += [
        *more,
        equals(kept_weight, "w · (1 - rate · decay) =", taken.before, "·", decay, note="weight decay"),
        equals(value, "new weight =", kept_weight, "-", rate, "·", factor(update)),
    ]
    return Working(steps, value, abs(taken.before) + abs(kept_weight) + 8 * abs(rate * update))


def adamw_steps(taken: Taken, g: float) -> tuple[list[Step], float]:
    """The moments after the update, without their bias, and the direction of the step."""
    (beta1, beta2), epsilon = taken.group["betas"], float(taken.group["eps"])
    old_mean, old_square = taken.moments.get("exp_avg", 0.0), taken.moments.get("exp_avg_sq", 0.0)
    count = int(taken.moments.get("step", 0)) + 1
    mean, square = beta1 * old_mean + (1 - beta1) * g, beta2 * old_square + (1 - beta2) * g * g
    unbiased = mean / (1 - beta1**count), square / (1 - beta2**count)
    update = unbiased[0] / (math.sqrt(unbiased[1]) + epsilon)
    term = (1 - beta1) * g
    old, new = Number(old_square, PRECISE), Number((1 - beta2) * g * g, PRECISE)
    unbiased_square = Fraction(Number(square, PRECISE), Number(1 - beta2**count, 6))
    denominator = written(Root(Number(unbiased[1], PRECISE)), "+", epsilon)
    steps: list[Step] = [
        equals(mean, "m = β₁ · m + (1 - β₁) · g =", beta1, "·", factor(old_mean), *plus(term)),
        equals(square, "v = β₂ · v + (1 - β₂) · g² =", beta2, "·", old, "+", new),
        equals(unbiased[0], "m / (1 - β₁ᵗ) =", quotient(mean, 1 - beta1**count), note=f"t = {count}"),
        equals(unbiased[1], "v / (1 - β₂ᵗ) =", unbiased_square, note=f"t = {count}"),
        equals(update, "direction =", Fraction(Number(unbiased[0], 6), denominator)),
    ]
    return steps, update
