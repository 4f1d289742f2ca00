"""`grad:<name>[index]`: the gradient of a target, by default the mean loss, for any value or weight of a pass."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from foretell.errors import UsageError
from foretell.insight.address import address_of
from foretell.insight.explain.core_gradients import core_of, gradient_address, sum_of_products
from foretell.insight.explain.explain_attention import ROTATION
from foretell.insight.explain.explain_layers import read_input
from foretell.insight.explain.explanation import Explained, NumberGroup, NumberKind
from foretell.insight.explain.gradient_steps import (
    ROTATED_BACK,
    Index,
    explain_gradient,
    gradient_of_outputs,
    has_rule,
    normalised,
    readers,
    sum_of_parts,
    without_operands,
)
from foretell.insight.explain.steps import Column, Remark, Working, equals, factor
from foretell.insight.gradient_pass import MEAN_LOSS, GradientPass, Target, make_target, record_gradients
from foretell.insight.recorded_pass import Array, RecordedPass, TracedScalar, steady_ids, weight_path
from foretell.insight.trace import GRADIENT
from foretell.language_model import LanguageModel
from foretell.model.decoder import HEAD
from foretell.model.structure import Structure, Value
from foretell.numerics.norms import in_float32

Shapes = Mapping[str, tuple[int, ...]]
WEIGHT_DIMENSIONS = ("row", "column")


class GradientNumbers(NumberGroup):
    """The gradients of the values and weights of a pass. of: the address of the target."""

    def __init__(self, model: LanguageModel, structure: Structure, shapes: Shapes, of: str | None):
        self.model, self.structure, self.shapes, self.of = model, structure, shapes, of or MEAN_LOSS
        values = [value.name for value in structure.values.values() if can_have_gradient(structure, value)]
        self.names = [f"{GRADIENT}{name}" for name in (*values, "logits", *shapes, f"{HEAD}.weight")]

    def full_name(self, name: str) -> str:
        plain = name.removeprefix(GRADIENT)
        if plain == f"{HEAD}.weight":
            plain = weight_path(self.model.decoder, self.structure[HEAD])
        return f"{GRADIENT}{HEAD if plain == 'logits' else plain}"

    def needs(self, name: str) -> Sequence[str]:
        return ()

    def record(self, model: LanguageModel, text: str | list[int], name: str, structure: Structure) -> GradientPass:
        plain, ids = name.removeprefix(GRADIENT), steady_ids(model, text)
        weight = plain if plain in self.shapes else None
        if weight and plain not in dict(model.decoder.named_parameters()):
            raise UsageError(f"{plain} is stored as integers, which have no gradient; the values of the pass have one")
        target = make_target(model, structure, ids, self.of)
        recording = record_gradients(model, target, self._operands(plain, target), weight, structure)
        if not recording.has_gradient(plain):
            reason = f"{target} does not depend on it, or it depends on no weight"
            raise UsageError(f"no gradient of {target} reaches {plain}: {reason}")
        return recording

    def kind(self, recording: RecordedPass, name: str) -> NumberKind:
        assert isinstance(recording, GradientPass)
        plain = name.removeprefix(GRADIENT)
        context = f"the gradient of {recording.target}"
        if plain in self.shapes:
            shape, stored = self.shapes[plain], recording.weight_gradients[plain]

            def explain_weight(index: tuple[int, ...]) -> Explained:
                return float(stored[index]), gradient_of_weight(recording, plain, index)

            return NumberKind(
                WEIGHT_DIMENSIONS[: len(shape)], shape, explain_weight, stored.dtype, False, context=context
            )

        def explain(index: tuple[int, ...]) -> Explained:
            stored = recording.logit_gradients(index[0])[index[1]] if plain == HEAD else recording.stored(name)[index]
            return float(stored), explain_gradient(recording, plain, index)

        if plain == HEAD:
            shape, dtype = (len(recording.ids), recording.config.vocab_size), in_float32(recording.hidden).dtype
        else:
            shape, dtype = recording.stored(name).shape, recording.stored(name).dtype
        is_derived = plain == HEAD or self.structure[plain].is_derived
        return NumberKind(recording.dimensions(plain), shape, explain, dtype, is_derived, context=context)

    def _operands(self, plain: str, target: Target) -> list[str]:
        """The values to record: the value, those that read it or use the weight, and what these read."""
        structure = self.structure
        if plain in self.shapes:
            through = uses_of(self.model, structure, plain)
        elif core := core_of(structure, plain):
            through = [structure[core]]
        else:
            through = readers(structure, plain, target.root)
        read = [plain, *(each for value in through for each in (value.name, *value.reads))]
        if any(value.backward == ROTATED_BACK for value in through):
            read += [angle.name for angle in structure.with_formula(ROTATION)]
        return [each for each in dict.fromkeys(read) if each in structure.values and each != HEAD]


def can_have_gradient(structure: Structure, value: Value) -> bool:
    """False for what is equal for all texts and weights, and for statistics, which no value reads."""
    is_constant = value.formula in (ROTATION, "sinusoid")
    return not is_constant and (not value.is_derived or core_of(structure, value.name) is not None)


def uses_of(model: LanguageModel, structure: Structure, path: str) -> list[Value]:
    """The values whose modules use a weight: the output of its module, and of a tied head."""
    used = [structure.values[owner]] if (owner := path.rpartition(".")[0]) in structure.values else []
    tied = structure.with_formula("tied linear")
    return used + [value for value in tied if weight_path(model.decoder, value) == path and value.name != owner]


def gradient_of_weight(recording: GradientPass, path: str, index: Index) -> Working:
    """The gradient of a weight: a sum over the positions at which it is used."""
    uses = uses_of(recording.model, recording.structure, path)
    through = [value for value in uses if value.name != HEAD or recording.target.is_of_logits]
    if not through or not all(has_rule(recording, value, OF_WEIGHTS) for value in through):
        return without_operands(recording, float(recording.weight_gradients[path][index]), through)
    rules = {
        value.name: bias_gradient if path == f"{value.name}.bias" else OF_WEIGHTS[value.backward] for value in through
    }
    return sum_of_parts([(value.name, rules[value.name](recording, value, index)) for value in through])


def outputs_at(recording: GradientPass, value: Value, output: int) -> tuple[Array, Array]:
    """The gradients of one output at all positions, (T,), and their errors as in `gradient_of_outputs`."""
    pairs = [gradient_of_outputs(recording, value, position) for position in range(len(recording.ids))]
    return np.array([pair[0][output] for pair in pairs]), np.array([pair[1][output] for pair in pairs])


def positions_of(recording: GradientPass) -> dict[str, Column]:
    positions = range(len(recording.ids))
    return {"position": positions, "token": [recording.token(position) for position in positions]}


def matrix_gradient(recording: GradientPass, value: Value, index: Index) -> Working:
    """The sum over positions of the output's gradient times the input."""
    output, column = index
    inputs = [read_input(recording, TracedScalar(value, (0, 0)), position) for position in range(len(recording.ids))]
    x = np.array([vector[column] for vector, _ in inputs])
    operands = {"g": gradient_address(value, ":", output), "x": inputs[0][1].replace("0,:", f":,{column}", 1)}
    gradients, errors = outputs_at(recording, value, output)
    return sum_of_products({**positions_of(recording), "g": gradients, "x": x}, operands, errors * np.abs(x))


def gated_matrix_gradient(recording: GradientPass, value: Value, index: Index) -> Working:
    """As for a matrix, whose input is the product of two values."""
    output, column = index
    (gate, a), (up, u) = ((name, recording.array(name)[:, column]) for name in value.reads)
    operands = {"g": gradient_address(value, ":", output)}
    operands |= {"a": address_of(gate, ":", column), "u": address_of(up, ":", column)}
    gradients, _ = outputs_at(recording, value, output)
    columns = {**positions_of(recording), "g": gradients, "a": a, "u": u, "a · u": a * u}
    return sum_of_products(columns, operands, np.abs(gradients * a * u))


def bias_gradient(recording: GradientPass, value: Value, index: Index) -> Working:
    """The sum over positions, and heads, of the output's gradient."""
    operands = {"g": gradient_address(value, ":", *index)}
    if value.name == HEAD:
        gradients, errors = outputs_at(recording, value, index[0])
        return sum_of_products({**positions_of(recording), "g": gradients}, operands, errors)
    columns, gradients = over_places(recording, value, index[0])
    return sum_of_products({**columns, "g": gradients}, operands, np.zeros(len(gradients)))


def gain_gradient(recording: GradientPass, value: Value, index: Index) -> Working:
    """The sum over positions, and heads, of the output's gradient times the normalised input."""
    columns, gradients = over_places(recording, value, index[0])
    indices = np.ndindex(recording.array(f"{GRADIENT}{value.name}").shape[:-1])
    vectors = [normalised(recording, value, index_of_vector) for index_of_vector in indices]
    unit = np.array([vector[index[0]] for vector, _, _ in vectors])
    errors = np.abs(gradients) * np.array([lost + abs(vector[index[0]]) for vector, _, lost in vectors])
    operands = {"g": gradient_address(value, ":", *index), "unit": f"the input of {value.name} before its weight"}
    return sum_of_products({**columns, "g": gradients, "unit": unit}, operands, errors)


def over_places(recording: GradientPass, value: Value, output: int) -> tuple[dict[str, Column], Array]:
    """The gradients of one output of a norm or a bias, at all positions, and of all heads if it has any."""
    gradients = recording.array(f"{GRADIENT}{value.name}")[..., output]
    columns = positions_of(recording)
    if gradients.ndim == 2:
        heads, T = gradients.shape
        repeated = {name: [*column] * heads for name, column in columns.items()}
        columns = {"head": [head for head in range(heads) for _ in range(T)], **repeated}
    return columns, gradients.flatten()


def row_gradient(recording: GradientPass, value: Value, index: Index) -> Working:
    """The sum over the positions with a token, or of one position, of the vector's gradient."""
    row, element = index
    ids = range(len(recording.ids)) if value.formula == "position vector" else recording.ids
    at = [position for position, each in enumerate(ids) if each == row]
    gradients = recording.array(f"{GRADIENT}{value.name}")[at, element]
    if not at:
        return Working([Remark(f"The text does not read row {row} of {value.name}.weight.")], 0.0, 0.0)
    columns = {"position": at, "token": [recording.token(position) for position in at], "g": gradients}
    return sum_of_products(columns, {"g": gradient_address(value, ":", element)}, np.zeros(len(at)))


def scaled_row_gradient(recording: GradientPass, value: Value, index: Index) -> Working:
    """As for a row, times the constant that scales the vectors."""
    working, scale = row_gradient(recording, value, index), float(recording.setting(value, "scale"))
    equation = equals(scale * working.value, "gradient =", scale, "·", factor(working.value))
    return Working([*working.steps, equation], equation.value, 2 * scale * working.scale)


# By the backward rule of the value whose module has the weight
OF_WEIGHTS: dict[str, Callable[[GradientPass, Value, Index], Working]] = {
    "transposed linear": matrix_gradient,
    "transposed gated linear": gated_matrix_gradient,
    "normalised": gain_gradient,
    "rows": row_gradient,
    "scaled rows": scaled_row_gradient,
}
