"""`explain_value`: any number of a pass by its address, explained by the file for its kind. `explain` is the public
function."""

from __future__ import annotations

from foretell.errors import UsageError
from foretell.insight.address import Address, address_of, parse_address
from foretell.insight.explain.explain_contribution import BEGINNINGS, explain_contribution
from foretell.insight.explain.explain_layers import stored_terms
from foretell.insight.explain.explain_lens import LENS, ending_at, in_lens, names_in_lens
from foretell.insight.explain.explain_neuron import NEURONS, explain_neuron
from foretell.insight.explain.explain_outcome import explain_outcome
from foretell.insight.explain.explain_sampling import OF_SAMPLING, explain_sampling
from foretell.insight.explain.explain_value import ALIASES, explain_recorded
from foretell.insight.explain.explanation import Explained, Explanation, NumberKind, explain_number
from foretell.insight.explain.steps import Remark, Working, equals
from foretell.insight.explain.walk import Walk, walk
from foretell.insight.readout import TASK_HEAD, TaskReadout
from foretell.insight.recorded_pass import Array, RecordedPass, record
from foretell.language_model import LanguageModel, check_model
from foretell.model.decoder import HEAD, Decoder
from foretell.model.quantized_linear import quantized_layers
from foretell.model.structure import model_structure
from foretell.paths import suggest

HEAD_WEIGHT = f"{HEAD}.weight"  # for a tied head, this is another module's weight


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
    readout: TaskReadout | None = None,
    levels: Array | None = None,
) -> Explanation:
    """Explain one number of the pass over a text or ids, `name[index]` without the batch row.

    In addition to all trace names there are `logits[t,v]`, the names of `implied_values.py`, weights by their paths,
    and the contributions of `explain_contribution.py`. A token v can be given as text: `probabilities[4,'!']`. Negative
    indices count from the end. readout: for the numbers of a tuned model's head (see `explain_outcome`). levels: for
    the next value of a forecaster (see `explain_sampling`). Raises `UsageError` for an unknown name or index.
    """
    structure = model_structure(model.decoder)
    parsed = parse_address(address)
    if parsed.name.startswith(BEGINNINGS):
        return explain_contribution(model, text, readout, parsed)
    if parsed.name.partition("(")[0] in OF_SAMPLING:
        return explain_sampling(record(model, text, []), parsed, levels)
    if readout is not None and parsed.name.partition(".")[0] == TASK_HEAD:
        return explain_outcome(record(model, text, []), readout, parsed)
    if parsed.name in (HEAD_WEIGHT, *weight_shapes(model.decoder)):
        return explain_parameter(record(model, text, []), parsed)
    block, neurons, _ = parsed.name.partition(NEURONS)
    if neurons and block in structure.stream[1:]:
        return explain_neuron(model, text, parsed)
    point, lens, _ = parsed.name.partition(LENS)
    if lens and point in structure.stream:
        return explain_in_lens(model, text, parsed, point)
    return explain_recorded(model, text, parsed)


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


def explain_parameter(recording: RecordedPass, wanted: Address) -> Explanation:
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
