"""A recorded number of a pass with its operands, stored and recomputed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch

from foretell.errors import UsageError
from foretell.insight.address import Address, resolve_index
from foretell.insight.explain.explain_attention import ATTENTION_EXPLAINERS, ROTATION
from foretell.insight.explain.explain_distribution import (
    DISTRIBUTION_EXPLAINERS,
    stored_in_distribution,
)
from foretell.insight.explain.explain_layers import LAYER_EXPLAINERS, divisor_of, norm_explainer
from foretell.insight.explain.explanation import Explanation, make_explanation
from foretell.insight.explain.steps import Explainer, Remark, Step, Working
from foretell.insight.implied_values import implied_values
from foretell.insight.recorded_pass import RecordedPass, TracedScalar, record, with_token_ids
from foretell.insight.replacement import STAGES
from foretell.insight.trace import LISTED
from foretell.language_model import LanguageModel
from foretell.model.decoder import HEAD, Decoder
from foretell.model.description import RETURNED, UNKNOWN_FORMULA
from foretell.model.structure import Structure, Value, model_structure
from foretell.paths import suggest

ALIASES = {"logits": HEAD}


def explain_recorded(model: LanguageModel, text: str | list[int], parsed: Address) -> Explanation:
    """Explain a number that the pass records, or that follows from recorded numbers (`implied_values.py`)."""
    structure = model_structure(model.decoder)
    values = {**implied_values(structure), **structure.values}
    wanted = find(parsed, values)
    value = values[wanted.name]
    check_explained(model.decoder, structure, value)
    # The logits of all positions are not recorded; for one position they are computed from the hidden state
    names = [name for name in operands_of(structure, value) if name != HEAD]
    return explain_at(record(model, text, names), wanted)


def find(address: Address, values: Mapping[str, Value]) -> Address:
    """The address with its full trace name. Raises `UsageError`, with similar names, for an unknown one."""
    name = ALIASES.get(address.name, address.name)
    if "*" in name:
        raise UsageError(f"'{name}' can match several values; one number needs the full name, without a *")
    if name not in values:
        near = suggest(name, [*values, *ALIASES]) or LISTED
        raise UsageError(f"no value is named '{name}'{near}")
    return Address(name, address.index)


def explain_at(recording: RecordedPass, wanted: Address) -> Explanation:
    name, dimensions = wanted.name, recording.dimensions(wanted.name)
    value = recording.value(name)
    is_traced = name in recording.structure.values and name != HEAD
    shape = recording.stored(name).shape if is_traced else implied_shape(recording, value)
    index = resolve_index(with_token_ids(recording.model, wanted, dimensions), dimensions, shape)
    if name == "loss":
        check_loss_position(index[0], len(recording.ids))
    scalar = TracedScalar(value, index)
    working = explain_scalar(recording, scalar)
    stored, dtype = stored_number(recording, scalar) or (working.value, torch.float64)
    meaning = recording.meanings(name, index)
    return make_explanation(name, index, meaning, (stored, working), dtype, value.is_derived)


def stored_number(recording: RecordedPass, scalar: TracedScalar) -> tuple[float, torch.dtype] | None:
    """The stored number and its dtype; None for an implied number that nothing else computes."""
    name, index = scalar.name, scalar.index
    if name == HEAD:
        logit = recording.pass_logits(index[0])[index[1]]
        return float(logit), logit.dtype
    if name in recording.structure.values:
        stored = recording.stored(name)
        return float(stored[index]), stored.dtype
    if scalar.source == HEAD:
        number = stored_in_distribution(recording, scalar)
        return None if number is None else (number, torch.float64)
    if scalar.value.formula == "vector norm":
        vector = recording.stored(scalar.source)[index]
        return float(torch.linalg.vector_norm(vector, dtype=torch.float64)), torch.float64
    if scalar.value.formula == "divisor of a norm":
        spread = recording.stored(scalar.source)
        return divisor_of(recording, scalar, float(spread[index])), spread.dtype
    return None


def implied_shape(recording: RecordedPass, value: Value) -> tuple[int, ...]:
    """The shape of an implied value, or of the logits (T, V), without the batch row; from the values that it reads."""
    if value.reads[0] == HEAD or value.name == HEAD:
        columns = recording.config.vocab_size if value.name == HEAD else recording.vocabulary
        whole: tuple[int, ...] = (len(recording.ids), columns)
    else:
        whole = (*recording.stored(value.reads[0]).shape, recording.config.head_width)
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
