"""A recorded number of a pass with its operands, stored and recomputed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from foretell.errors import UsageError
from foretell.insight.explain.explain_attention import ATTENTION_EXPLAINERS, ROTATION
from foretell.insight.explain.explain_distribution import (
    DISTRIBUTION_EXPLAINERS,
    LOSS,
    stored_in_distribution,
)
from foretell.insight.explain.explain_layers import LAYER_EXPLAINERS, divisor_of, norm_explainer
from foretell.insight.explain.explanation import Explained, NumberGroup, NumberKind
from foretell.insight.explain.steps import Explainer, Remark, Step, Working
from foretell.insight.implied_values import implied_values
from foretell.insight.recorded_pass import RecordedPass, TracedScalar
from foretell.insight.replacement import STAGES
from foretell.language_model import LanguageModel
from foretell.model.decoder import HEAD, Decoder
from foretell.model.description import RETURNED, UNKNOWN_FORMULA
from foretell.model.structure import Structure, Value

ALIASES = {"logits": HEAD}


class RecordedNumbers(NumberGroup):
    """Numbers that a pass records, or that follow from recorded numbers (`implied_values.py`)."""

    def __init__(self, model: LanguageModel, structure: Structure):
        self.decoder, self.structure = model.decoder, structure
        self.values = {**implied_values(structure), **structure.values}
        self.names = [*self.values, *ALIASES]

    def full_name(self, name: str) -> str:
        return ALIASES.get(name, name)

    def needs(self, name: str) -> Sequence[str]:
        check_explained(self.decoder, self.structure, self.values[name])
        # The logits of all positions are not recorded; for one position they are computed from the hidden state
        return [each for each in operands_of(self.structure, self.values[name]) if each != HEAD]

    def kind(self, recording: RecordedPass, name: str) -> NumberKind:
        value = self.values[name]

        def explain(index: tuple[int, ...]) -> Explained:
            if name == LOSS:
                check_loss_position(index[0], len(recording.ids))
            scalar = TracedScalar(value, index)
            working = explain_scalar(recording, scalar)
            stored = stored_number(recording, scalar)
            return working.value if stored is None else stored, working

        dimensions, shape = recording.dimensions(name), shape_of(recording, value)
        return NumberKind(dimensions, shape, explain, stored_dtype(recording, value), value.is_derived)


def is_traced(recording: RecordedPass, value: Value) -> bool:
    """True for a value in the trace; the logits of all positions are not."""
    return value.name in recording.structure.values and value.name != HEAD


def stored_number(recording: RecordedPass, scalar: TracedScalar) -> float | None:
    """The stored number; None for an implied number that nothing else computes."""
    index, formula = scalar.index, scalar.value.formula
    if is_traced(recording, scalar.value):
        return float(recording.stored(scalar.name)[index])
    if scalar.name == HEAD:
        return float(recording.pass_logits(index[0])[index[1]])
    if formula == "vector norm":
        return float(torch.linalg.vector_norm(recording.stored(scalar.source)[index], dtype=torch.float64))
    if formula == "divisor of a norm":
        return divisor_of(recording, scalar, float(recording.stored(scalar.source)[index]))
    return stored_in_distribution(recording, scalar) if scalar.source == HEAD else None


def stored_dtype(recording: RecordedPass, value: Value) -> torch.dtype:
    if value.name == HEAD:
        return recording.hidden.dtype
    if value.formula == "divisor of a norm":
        return recording.stored(value.reads[0]).dtype
    return recording.stored(value.name).dtype if is_traced(recording, value) else torch.float64


def shape_of(recording: RecordedPass, value: Value) -> Sequence[int]:
    """The shape of a value without the batch row; of an implied value from the values that it reads."""
    if is_traced(recording, value):
        return recording.stored(value.name).shape
    whole = [len(recording.ids), recording.config.vocab_size if value.name == HEAD else recording.vocabulary]
    if HEAD not in (value.name, value.reads[0]):
        whole = [*recording.stored(value.reads[0]).shape, recording.config.head_width]
    return whole[: len(recording.dimensions(value.name))]


def check_loss_position(position: int, length: int) -> None:
    """Raise `UsageError` for the loss of the last token, which no token follows."""
    if position == length - 1:
        others = "" if length < 2 else "; give 0" if length == 2 else f"; give 0 to {length - 2}"
        raise UsageError(f"loss[{position}] does not exist: token {position} is the last of the text{others}")


# By the formula that the module's class declares; norms are explained by their record. Add your own formulas here;
# docs/explain.md has the requirements of a formula for its module
EXPLAINERS: dict[str, Explainer] = LAYER_EXPLAINERS | ATTENTION_EXPLAINERS | DISTRIBUTION_EXPLAINERS
IN_CORE = {stage.formula for stage in STAGES.values()}


def find_explainer(formula: str) -> Explainer | None:
    return EXPLAINERS.get(formula) or norm_explainer(formula)


def explain_scalar(recording: RecordedPass, scalar: TracedScalar) -> Working:
    check_explained(recording.model.decoder, recording.structure, scalar.value)
    part = returned_part(scalar.value)
    if part is None:
        explainer = find_explainer(scalar.value.formula)
        assert explainer is not None, "checked above"
        return explainer(recording, scalar)
    working = explain_scalar(recording, TracedScalar(recording.value(part), scalar.index))
    remark: Step = Remark(f"{scalar.name} returns the output of {part}.")
    return Working([remark, *working.steps], working.value, working.scale)


def returned_part(value: Value) -> str | None:
    """The name of the value that a value without a formula is equal to; None if it has a formula."""
    if value.formula == RETURNED:
        return value.name.rpartition(".")[0]
    return None if value.formula else value.reads[0]


def check_explained(decoder: Decoder, structure: Structure, value: Value) -> None:
    """Raise `UsageError`, naming path and class, for a value whose formula is undeclared or has no explanation."""
    while (part := returned_part(value)) is not None:
        value = structure[part]
    if find_explainer(value.formula) is not None:
        return
    kind = type(decoder.get_submodule(value.module)).__name__
    if value.formula != UNKNOWN_FORMULA:
        raise UsageError(f"{value.name} is a {kind}, whose formula '{value.formula}' has no explanation")
    if value.reads:
        raise UsageError(f"{value.name} is a {kind}, which has no explanation: its class declares no formula")
    raise UsageError(f"{value.name} is a value that no class declares, and has no explanation")


def operands_of(structure: Structure, value: Value) -> Iterator[str]:
    """The names of the values to record to recompute a value: itself and what its formula reads."""
    if value.name in structure.values:
        yield value.name
    part = returned_part(value)
    if part is not None:
        yield from operands_of(structure, structure[part])
        return
    reads = [read for read in value.reads if read in structure.values]
    yield from reads
    if value.formula == "vector norm":
        return
    if value.formula == "rotated heads":
        yield from (angle.name for angle in structure.with_formula(ROTATION))
    for read in reads:
        if value.name not in structure.values or structure[read].formula in IN_CORE:  # include what its operand reads
            yield from operands_of(structure, structure[read])
