"""The function that explains each value: by the end of its name, or by the class of its module."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from foretell.errors import UsageError
from foretell.insight.derive import StagedAttention
from foretell.insight.explain.explain_attention import (
    explain_angle,
    explain_key,
    explain_masked,
    explain_mixture,
    explain_query,
    explain_scaled,
    explain_score,
    explain_value_input,
    explain_weight,
)
from foretell.insight.explain.explain_linear import explain_activation, explain_gated, explain_linear, explain_tied_head
from foretell.insight.explain.explain_norm import STATISTICS, explain_layer_norm, explain_rms_norm, explain_statistic
from foretell.insight.explain.explain_output import explain_loss, explain_probability
from foretell.insight.explain.explain_stream import (
    explain_embedding,
    explain_identity,
    explain_position_vector,
    explain_replacement,
    explain_residual,
    explain_token_vector,
    explain_wave,
)
from foretell.insight.explain.flow import LAST_OF_BLOCK
from foretell.insight.explain.recording import Recording, TracedScalar, locate
from foretell.insight.explain.steps import Remark, Working
from foretell.model.attention import Attention, EagerAttention, SDPAttention
from foretell.model.decoder import TiedHead, TokenAndPositionEmbedding, TokenEmbedding
from foretell.model.dropout import Dropout
from foretell.model.feedforward import MLP, GatedMLP, SquaredRelu
from foretell.model.norm import LayerNorm, RMSNorm
from foretell.model.transformer import AddUpdate, ReplaceByUpdate, Transformer

Explainer = Callable[[Recording, TracedScalar], Working]

BY_ENDING: dict[str, Explainer] = {
    "embed.position": lambda recording, scalar: POSITIONS[recording.config.position](recording, scalar),
    "feedforward.down": lambda recording, scalar: DOWN[recording.config.feedforward](recording, scalar),
    "core.query": explain_query,
    "core.key": explain_key,
    "core.value": explain_value_input,
    "core.scores": explain_score,
    "core.scaled": explain_scaled,
    "core.masked": explain_masked,
    "core.weights": explain_weight,
    "core.dropout": explain_weight,  # dropout is inactive outside training
    "rotation.cosine": explain_angle,
    "rotation.sine": explain_angle,
    "probabilities": explain_probability,
    "loss": explain_loss,
    **dict.fromkeys(STATISTICS, explain_statistic),
}
POSITIONS: dict[str, Explainer] = {"learned": explain_position_vector, "sinusoidal": explain_wave}
DOWN: dict[str, Explainer] = {"mlp": explain_linear, "gated": explain_gated}
BY_MODULE: dict[type[nn.Module], Explainer] = {
    nn.Embedding: explain_token_vector,
    TokenAndPositionEmbedding: explain_embedding,
    nn.Linear: explain_linear,
    TiedHead: explain_tied_head,
    LayerNorm: explain_layer_norm,
    RMSNorm: explain_rms_norm,
    nn.Identity: explain_identity,
    Dropout: explain_identity,
    **dict.fromkeys((nn.GELU, nn.ReLU, SquaredRelu, nn.SiLU), explain_activation),
    **dict.fromkeys((SDPAttention, EagerAttention, StagedAttention), explain_mixture),
    AddUpdate: explain_residual,
    ReplaceByUpdate: explain_replacement,
}
RETURNS: dict[type[nn.Module], str] = {  # modules that return the output of one of their submodules
    TokenEmbedding: "token",
    Transformer: "norm",
    Attention: "output",
    MLP: "down",
    GatedMLP: "down",
    **LAST_OF_BLOCK,
}


def explain_scalar(recording: Recording, scalar: TracedScalar) -> Working:
    """The steps to one number."""
    if scalar.name == "embed.dropout":
        return returned_by(recording, scalar, "embed")
    *_, last = scalar.name.split(".")
    by_name = BY_ENDING.get(".".join(scalar.name.split(".")[-2:])) or BY_ENDING.get(last)
    if by_name is not None:
        return by_name(recording, scalar)
    for kind in type(scalar.module).__mro__:
        if kind in RETURNS:
            return returned_by(recording, scalar, f"{scalar.name}.{RETURNS[kind]}")
        if kind in BY_MODULE:
            return BY_MODULE[kind](recording, scalar)
    raise UsageError(f"{scalar.name} is a {type(scalar.module).__name__}, which has no explanation")


def returned_by(recording: Recording, scalar: TracedScalar, part: str) -> Working:
    """The working of a number that the module returns from its submodule `part`."""
    working = explain_scalar(recording, locate(part, scalar.index, recording))
    return Working(
        [Remark(f"{scalar.name} returns the output of {part}."), *working.steps], working.value, working.scale
    )
