"""`explain_value`: any number of a pass by its address, explained by the file for its kind. `explain` is the public
function."""

from __future__ import annotations

from collections.abc import Sequence

from foretell.insight.address import address_of
from foretell.insight.explain.explain_contribution import ContributionNumbers
from foretell.insight.explain.explain_gradient import GradientNumbers
from foretell.insight.explain.explain_layers import stored_terms
from foretell.insight.explain.explain_lens import LensNumbers
from foretell.insight.explain.explain_neuron import NeuronNumbers
from foretell.insight.explain.explain_outcome import OutcomeNumbers
from foretell.insight.explain.explain_sampling import SamplingNumbers
from foretell.insight.explain.explain_value import RecordedNumbers
from foretell.insight.explain.explanation import Explained, Explanation, NumberGroup, NumberKind, Numbers
from foretell.insight.explain.steps import Remark, Working, equals
from foretell.insight.explain.walk import Walk, walk
from foretell.insight.readout import TaskReadout
from foretell.insight.recorded_pass import Array, RecordedPass, weight_path
from foretell.language_model import LanguageModel, check_model
from foretell.model.decoder import HEAD, Decoder
from foretell.model.quantized_linear import quantized_layers
from foretell.model.structure import Structure, model_structure

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
    of: str | None = None,
) -> Explanation:
    """Explain one number of the pass over a text or ids, `name[index]` without the batch row.

    In addition to all trace names there are `logits[t,v]`, the names of `implied_values.py`, weights by their paths,
    and the contributions of `explain_contribution.py`. A token v can be given as text: `probabilities[4,'!']`. Negative
    indices count from the end. readout: for the numbers of a tuned model's head (see `explain_outcome`). levels: for
    the next value of a forecaster (see `explain_sampling`). of: the number whose gradient `grad:<name>[index]` is, by
    default the mean loss of the text. Raises `UsageError` for an unknown name or index.
    """
    return numbers_of(model, readout, levels, of).explain(text, address)


def numbers_of(
    model: LanguageModel, readout: TaskReadout | None = None, levels: Array | None = None, of: str | None = None
) -> Numbers:
    """All numbers of a model's passes; with the options of `explain_value`."""
    structure = model_structure(model.decoder)
    groups = (
        RecordedNumbers(model, structure),
        WeightNumbers(model, structure),
        NeuronNumbers(model, structure),
        LensNumbers(model, structure),
        SamplingNumbers(levels),
        ContributionNumbers(model, structure, readout),
        GradientNumbers(model, structure, weight_shapes(model.decoder), of),
        *([] if readout is None else [OutcomeNumbers(readout)]),
    )
    return Numbers(model, structure, groups)


class WeightNumbers(NumberGroup):
    """The weights of the model, which have no operands; a quantised weight has stored numbers."""

    def __init__(self, model: LanguageModel, structure: Structure):
        self.decoder, self.head, self.shapes = model.decoder, structure[HEAD], weight_shapes(model.decoder)
        self.names = [*self.shapes, HEAD_WEIGHT]

    def full_name(self, name: str) -> str:
        return weight_path(self.decoder, self.head) if name == HEAD_WEIGHT else name

    def needs(self, name: str) -> Sequence[str]:
        return ()

    def kind(self, recording: RecordedPass, name: str) -> NumberKind:
        def explain(index: tuple[int, ...]) -> Explained:
            value, stored = float(recording.weight(name, *index)), stored_terms(recording, name, index[0], index[-1])
            remark = Remark(f"{address_of(name, *index)} is a weight: training sets it.")
            return value, Working([remark, *([equals(value, "w", *stored)] if stored else [])], value, 0.0)

        shape, is_derived = self.shapes[name], bool(recording.stored_weight(name, 0))
        return NumberKind(("row", "column")[: len(shape)], shape, explain, recording.model.dtype, is_derived)


def weight_shapes(decoder: Decoder) -> dict[str, tuple[int, ...]]:
    """The shapes of all weights, quantised or not, by path."""
    shapes = {
        f"{path}.weight": (layer.out_features, layer.in_features) for path, layer in quantized_layers(decoder).items()
    }
    return {**{path: tuple(parameter.shape) for path, parameter in decoder.named_parameters()}, **shapes}
