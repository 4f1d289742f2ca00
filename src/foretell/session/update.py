"""One weight in an update of a run, with all operands."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from foretell.errors import UsageError, counted
from foretell.insight.address import parse_address, resolve_index
from foretell.insight.explain.explanation import UPDATE, Explanation, make_explanation
from foretell.insight.explain.steps import Remark, Step, Working, equals, factor, plus, quotient, written
from foretell.model.decoder import HEAD
from foretell.paths import suggest
from foretell.session.replay_run import BeforeUpdate
from foretell.training.optimizer import SGD, AdamW, Composite
from foretell.training.step import StepResult, clip_gradient
from foretell.typesetting.expression import Fraction, Number, Root

PRECISE = 10  # decimals of squares of gradients
CLIP_EPSILON = 1e-6  # torch adds it to the norm that the limit is divided by


@dataclass(frozen=True)
class Taken:
    """One weight in an update that was taken: its gradient before clipping, its moments and itself."""

    result: StepResult
    gradient: float
    moments: Mapping[str, float]
    before: float
    after: float
    group: Mapping[str, Any]
    optimizer: torch.optim.Optimizer


def explain_weight(before: BeforeUpdate, address: str) -> Explanation:
    """Take the update, which changes the session's model, and explain the new value of `update:PATH[i,j]`."""
    wanted = parse_address(address)
    path = wanted.name.removeprefix(UPDATE)
    weights = dict(before.session.task.model.named_parameters())
    if path == f"{HEAD}.weight" and path not in weights:
        path = "embed.token.weight"
    if path not in weights:
        raise UsageError(f"no weight is named '{path}'{suggest(path, [*weights])}")
    weight = weights[path]
    if not weight.requires_grad:
        raise UsageError(f"{path} is frozen in this run: no update changes it")
    index = resolve_index(wanted, ("row", "column")[: weight.dim()], weight.shape)
    taken = take(before, weight, index)
    meaning = [
        f"update {before.number}",
        *(f"{name} {each}" for name, each in zip(("row", "column"), index, strict=False)),
    ]
    return make_explanation(
        f"{UPDATE}{path}", index, meaning, (taken.after, working_of(before, taken)), weight.dtype, False
    )


def take(before: BeforeUpdate, weight: nn.Parameter, index: tuple[int, ...]) -> Taken:
    """Take the update by the step that trains, and record one weight."""
    session, whole = before.session, before.session.optimizer
    parts = whole.parts if isinstance(whole, Composite) else [whole]
    optimizer, group = next(
        (part, group)
        for part in parts
        for group in part.param_groups
        if any(each is weight for each in group["params"])
    )
    seen: list[float] = []

    def clip() -> None:
        """Clip here instead of in the step, to see the gradient before."""
        assert weight.grad is not None, "the loss depends on every trained weight"
        seen.append(float(weight.grad[index]))
        clip_gradient(session.objective, session.training.clip_norm)

    def moments() -> dict[str, float]:
        held = whole.state.get(weight) or optimizer.state.get(weight) or {}
        return {name: float(value[index] if value.dim() else value) for name, value in held.items()}

    old, held = float(weight.detach()[index]), moments()
    result = before.take(clip, session.training.model_copy(update={"clip_norm": None}))
    return Taken(result, seen[0], held, old, float(weight.detach()[index]), group, optimizer)


def working_of(before: BeforeUpdate, taken: Taken) -> Working:
    """The steps from the gradient of the batch to the new weight, by the rule of the weight's optimizer."""
    config, rate = before.session.training, float(taken.group["lr"])
    loss = f"The mean loss of the batch is {taken.result.loss:.6f} over {taken.result.count:,.0f} targets."
    schedule = f"{config.schedule} schedule, warm-up of {counted(config.warmup_steps, 'step')}"
    steps: list[Step] = [Remark(loss), equals(rate, "rate", note=f"update {before.number}: {schedule}")]
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
