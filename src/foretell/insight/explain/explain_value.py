"""`explain_value`: a number of a pass with its operands, stored and recomputed. `explain` is the public function."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch

from foretell.errors import UsageError
from foretell.insight.address import Address, parse_address, resolve_index
from foretell.insight.explain.explain_attention import ATTENTION_EXPLAINERS, ROTATION
from foretell.insight.explain.explain_contribution import BEGINNINGS, explain_contribution
from foretell.insight.explain.explain_distribution import (
    DISTRIBUTION_EXPLAINERS,
    OF_SAMPLING,
    explain_sampling,
    stored_in_distribution,
)
from foretell.insight.explain.explain_layers import LAYER_EXPLAINERS, divisor_of, norm_explainer, stored_terms
from foretell.insight.explain.explain_lens import LENS, ending_at, in_lens, names_in_lens
from foretell.insight.explain.explain_neuron import NEURONS, explain_neuron
from foretell.insight.explain.explain_outcome import TASK_HEAD, explain_outcome
from foretell.insight.explain.explanation import Explained, Explanation, NumberKind, explain_number, make_explanation
from foretell.insight.explain.steps import Explainer, Remark, Step, Working, equals
from foretell.insight.explain.walk import Walk, walk
from foretell.insight.implied_values import implied_values
from foretell.insight.page.outcomes import Outcomes
from foretell.insight.recording import Array, Recording, TracedScalar, address_of, record, with_token_ids
from foretell.insight.replacement import STAGES
from foretell.insight.trace import LISTED
from foretell.language_model import LanguageModel, check_model
from foretell.model.decoder import HEAD, Decoder
from foretell.model.description import RETURNED, UNKNOWN_FORMULA
from foretell.model.quantized_linear import quantized_layers
from foretell.model.structure import Structure, Value, model_structure
from foretell.paths import suggest

HEAD_WEIGHT = f"{HEAD}.weight"  # for a tied head, this is another module's weight
ALIASES = {"logits": HEAD}


def explain(model: LanguageModel, text: str, address: str | None = None) -> Explanation | Walk:
    """Walk through the pass over a text or, with an address, explain one number: see `explain_value`.

        foretell.explain(model, "The return value of the", "trunk.blocks.0.attention.core.weights[1,3,2]")

    Both results are displayed in notebooks, print as text and have `to_json()`.
    """
    check_model(model)
    return walk(model, text) if address is None else explain_value(model, text, address)


def explain_value(
    model: LanguageModel,
    text: str | list[int],
    address: str,
    outcomes: Outcomes | None = None,
    levels: Array | None = None,
) -> Explanation:
    """Explain one number of the pass over a text or ids, `name[index]` without the batch row.

    In addition to all trace names there are `logits[t,v]`, the names of `implied_values.py`, weights by their paths,
    and the contributions of `explain_contribution.py`. A token v can be given as text: `probabilities[4,'!']`. Negative
    indices count from the end. outcomes: for the numbers of a tuned model's head (see `explain_outcome`). levels: for
    the next value of a forecaster (see `explain_sampling`). Raises `UsageError` for an unknown name or index.
    """
    structure = model_structure(model.decoder)
    parsed = parse_address(address)
    if parsed.name.startswith(BEGINNINGS):
        return explain_contribution(model, text, outcomes, parsed)
    if parsed.name.partition("(")[0] in OF_SAMPLING:
        return explain_sampling(record(model, text, []), parsed, levels)
    if outcomes is not None and parsed.name.partition(".")[0] == TASK_HEAD:
        return explain_outcome(record(model, text, []), outcomes, parsed)
    if parsed.name in (HEAD_WEIGHT, *weight_shapes(model.decoder)):
        return explain_parameter(record(model, text, []), parsed)
    block, neurons, _ = parsed.name.partition(NEURONS)
    if neurons and block in structure.stream[1:]:
        return explain_neuron(model, text, parsed)
    point, lens, _ = parsed.name.partition(LENS)
    if lens and point in structure.stream:
        return explain_in_lens(model, text, parsed, point)
    values = {**implied_values(structure), **structure.values}
    wanted = find(parsed, values)
    value = values[wanted.name]
    check_explained(model.decoder, structure, value)
    # The logits of all positions are not recorded; for one position they are computed from the hidden state
    names = [name for name in operands_of(structure, value) if name != HEAD]
    return explain_at(record(model, text, names), wanted)


def explain_in_lens(model: LanguageModel, text: str | list[int], wanted: Address, point: str) -> Explanation:
    """The explanation of a number of the logit lens at a point of the stream."""
    names = names_in_lens(model_structure(model.decoder), point)
    inner = wanted.name.removeprefix(f"{point}{LENS}")
    inner = ALIASES.get(inner, inner)
    if (name := f"{point}{LENS}{inner}") not in names.values():
        raise UsageError(f"no value of the lens is named '{name}'{suggest(name, [*names.values()])}")
    with ending_at(model, text, point):
        explanation = explain_value(model, text, str(Address(inner, wanted.index)))
    return in_lens(explanation, point, names)


def find(address: Address, values: Mapping[str, Value]) -> Address:
    """The address with its full trace name. Raises `UsageError`, with similar names, for an unknown one."""
    name = ALIASES.get(address.name, address.name)
    if "*" in name:
        raise UsageError(f"'{name}' can match several values; one number needs the full name, without a *")
    if name not in values:
        near = suggest(name, [*values, *ALIASES]) or LISTED
        raise UsageError(f"no value is named '{name}'{near}")
    return Address(name, address.index)


def explain_parameter(recording: Recording, wanted: Address) -> Explanation:
    """A weight of the model, which has no operands; for a quantised weight, its stored numbers."""
    name = recording.weight_path(recording.structure[HEAD]) if wanted.name == HEAD_WEIGHT else wanted.name
    shape = weight_shapes(recording.model.decoder)[name]

    def explain(index: tuple[int, ...]) -> Explained:
        value, stored = float(recording.weight(name, *index)), stored_terms(recording, name, index[0], index[-1])
        remark = Remark(f"{address_of(name, *index)} is a weight: training sets it.")
        return value, Working([remark, *([equals(value, "w", *stored)] if stored else [])], value, 0.0)

    is_derived = bool(recording.stored_weight(name, 0))
    kind = NumberKind(("row", "column")[: len(shape)], shape, explain, recording.model.dtype, is_derived)
    return explain_number(recording, {name: kind}, Address(name, wanted.index), {})


def weight_shapes(decoder: Decoder) -> dict[str, tuple[int, ...]]:
    """The shapes of all weights, quantised or not, by path."""
    shapes = {
        f"{path}.weight": (layer.out_features, layer.in_features) for path, layer in quantized_layers(decoder).items()
    }
    return {**{path: tuple(parameter.shape) for path, parameter in decoder.named_parameters()}, **shapes}


def explain_at(recording: Recording, wanted: Address) -> Explanation:
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


def stored_number(recording: Recording, scalar: TracedScalar) -> tuple[float, torch.dtype] | None:
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


def implied_shape(recording: Recording, value: Value) -> tuple[int, ...]:
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


def explain_scalar(recording: Recording, scalar: TracedScalar) -> Working:
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
