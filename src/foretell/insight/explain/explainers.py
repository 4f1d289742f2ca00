"""The function that explains each value, by the formula that its module's class declares."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from foretell.errors import UsageError
from foretell.insight.explain.explain_attention import (
    ROTATION,
    explain_angle,
    explain_masked,
    explain_mixture,
    explain_rotated,
    explain_scaled,
    explain_score,
    explain_value_input,
    explain_weight,
)
from foretell.insight.explain.explain_linear import (
    explain_activation,
    explain_gated,
    explain_gelu,
    explain_linear,
    explain_own_activation,
)
from foretell.insight.explain.explain_norm import (
    explain_layer_norm,
    explain_mean,
    explain_mean_square,
    explain_rms_norm,
    explain_variance,
)
from foretell.insight.explain.explain_output import explain_loss, explain_probability
from foretell.insight.explain.explain_stream import (
    explain_identity,
    explain_position_vector,
    explain_replacement,
    explain_scaled_token_vector,
    explain_sum,
    explain_token_vector,
    explain_wave,
)
from foretell.insight.explain.recording import Recording, TracedScalar
from foretell.insight.explain.steps import Remark, Working
from foretell.insight.staged_attention import STAGES
from foretell.model.decoder import Decoder
from foretell.model.description import RETURNED, UNKNOWN_FORMULA
from foretell.model.structure import Structure, Value

Explainer = Callable[[Recording, TracedScalar], Working]

# Extend it for a formula of your own. What a formula needs of its module is in docs/explain.md
EXPLAINERS: dict[str, Explainer] = {
    "token vector": explain_token_vector,
    "scaled token vector": explain_scaled_token_vector,
    "position vector": explain_position_vector,
    "sinusoid": explain_wave,
    "token plus position": explain_sum,
    "residual": explain_sum,
    "replacement": explain_replacement,
    "identity": explain_identity,
    "linear": explain_linear,
    "tied linear": explain_linear,
    "gated linear": explain_gated,
    "gelu": explain_gelu,
    **dict.fromkeys(("relu", "relu2", "silu"), explain_activation),
    "activation": explain_own_activation,
    "layer_norm": explain_layer_norm,
    "rms_norm": explain_rms_norm,
    "mean": explain_mean,
    "variance": explain_variance,
    "mean_square": explain_mean_square,
    ROTATION: explain_angle,
    "rotated heads": explain_rotated,
    "heads": explain_value_input,
    "attention score": explain_score,
    "scaled score": explain_scaled,
    "masked score": explain_masked,
    "attention weight": explain_weight,  # also after dropout, which is inactive outside training
    "attention": explain_mixture,
    "probability": explain_probability,
    "loss": explain_loss,
}

IN_CORE = {stage.formula for stage in STAGES.values()}


def explain_scalar(recording: Recording, scalar: TracedScalar) -> Working:
    """The steps to one number."""
    check_explained(recording.model.decoder, recording.structure, scalar.name, recording.value(scalar.name))
    part = returned_part(scalar.value)
    if part is None:
        return EXPLAINERS[scalar.value.formula](recording, scalar)
    working = explain_scalar(recording, TracedScalar(recording.value(part), scalar.index))
    remark = Remark(f"{scalar.name} returns the output of {part}.")
    return Working([remark, *working.steps], working.value, working.scale)


def returned_part(value: Value) -> str | None:
    """The name of the value that a value without a formula of its own is the same as; None if it has one."""
    if value.formula == RETURNED:
        return value.name.rpartition(".")[0]
    return None if value.formula else value.reads[0]


def check_explained(decoder: Decoder, structure: Structure, name: str, value: Value | None = None) -> None:
    """Raise `UsageError`, naming path and class, for a value whose formula is not declared or has no explanation."""
    value = value or structure[name]
    while (part := returned_part(value)) is not None:
        value = structure[part]
    if value.formula in EXPLAINERS:
        return
    kind = type(decoder.get_submodule(value.module)).__name__
    if value.formula == UNKNOWN_FORMULA:
        reason = "a value that no class declares, and has no explanation"
        if value.reads:
            reason = f"a {kind}, which has no explanation: its class declares no formula"
        raise UsageError(f"{value.name} is {reason}")
    raise UsageError(f"{value.name} is a {kind}, whose formula '{value.formula}' has no explanation")


def operands_of(structure: Structure, name: str) -> Iterator[str]:
    """The names of the values to record so that a value can be recomputed: itself and what its formula reads."""
    value = structure[name]
    yield name
    part = returned_part(value)
    if part is not None:
        yield from operands_of(structure, part)
        return
    reads = [read for read in value.reads if read in structure.values]
    yield from reads
    if value.formula == "rotated heads":
        yield from (angle.name for angle in structure.with_formula(ROTATION))
    for read in reads:
        if structure[read].formula in IN_CORE:  # explained from the core's inputs
            yield from operands_of(structure, read)
