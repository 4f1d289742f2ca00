"""Descriptions of modules for trace, explain, page, budget and memory plan.

A class has its description next to its forward, in the class attribute `description`, which subclasses inherit. If the
configuration chooses the parts of a module, its description is an attribute of the instance. `structure.py` collects
the descriptions of a model. The class attribute `operation` names what computes it in compiled code for few rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from foretell.numerics.activations import ACTIVATIONS

OWN_INPUT = "x"  # in `reads`: the input of the module itself
MEMORY = "memory"  # the input that is the output of an encoder
STATISTIC = "statistic"  # dims of one number per vector
RETURNED = "returned"  # formula of an inner value that the module returns as its output
UNKNOWN_FORMULA = "unknown"  # formula of a value whose class or inputs are not declared
PASSED_BACK = "passed back"  # backward rule: the gradient of each number belongs to the number it equals, too


@dataclass(frozen=True)
class Declared:
    """One value inside a module: the output of a child, or one of a child's inputs.

    dims: the size letters of its shape, as "B T D" or "B H T E"; a product of two is written "H*E".
    reads: the values it is computed from, by their names inside the module, or OWN_INPUT.
    formula: how one number of it is computed. It applies only while the child's own formula is `refines`, because a
        module that replaces the child may compute something else. backward: as in `Description`, for this formula.
    """

    dims: str
    reads: tuple[str, ...] = (OWN_INPUT,)
    formula: str = ""
    refines: str = "identity"
    backward: str = ""


@dataclass(frozen=True)
class Derivation:
    """A value that no module returns, computed from the inputs `needs` of one module's call.

    dims: size letters, or STATISTIC for the module's output dims with 1 as the last.
    formula: as in `Description`.
    """

    compute: Callable[..., Tensor]
    needs: tuple[str, ...]
    dims: str
    formula: str


@dataclass(frozen=True)
class Description:
    """The description of a module.

    formula: the name of the rule by which one number of its output follows from its inputs ("linear", "residual");
        `insight` explains and splits values by this name. Empty if `returns` names a child.
    backward: the name of the rule by which the gradients of its inputs and weights follow from the output's.
    reads: the inner values that the formula reads, if it does not read the inputs.
    written: the formula as text, "x * sigmoid(x)", to explain an activation function.
    returns: the child whose output is the module's own output.
    values: the inner values, by name relative to the module: "query", "core.key".
    chain: the name of a list of children, each of which reads the output of the one before.
    parts: the name and dims of each tensor, if the output is a tuple of tensors.
    is_container: the module is a list of others, or returns no tensor; it has no value.
    inputs: the names of its positional inputs.
    derived: values that the module computes but does not return, by name.
    saved: tensors kept for the backward pass in the precision of matrix products: names from `inputs` or `values`,
        "output", or "inner" for an unnamed tensor of the output's size.
    saved_as_given: inputs kept for the backward pass in their own precision.
    is_float32: the output stays in float32 under autocast, as the residual stream does.
    memory_axes: the letters T or S that count tokens of the memory instead of the text, in all values inside it.
    """

    formula: str = ""
    backward: str = ""
    reads: tuple[str, ...] = ()
    written: str = ""
    returns: str = ""
    values: Mapping[str, Declared] = field(default_factory=dict)
    chain: str = ""
    parts: Mapping[str, str] = field(default_factory=dict)
    is_container: bool = False
    inputs: tuple[str, ...] = (OWN_INPUT,)
    derived: Mapping[str, Derivation] = field(default_factory=dict)
    saved: tuple[str, ...] = ()
    saved_as_given: tuple[str, ...] = ()
    is_float32: bool = False
    memory_axes: str = ""

    def changed(self, **fields: Any) -> Description:
        """A copy with some fields changed, for a subclass."""
        return Description(**{**vars(self), **fields})


UNDECLARED = Description()
PARTS = "parts"  # the operation of a module whose output is an inner value: the operations of all of them, in order
TORCH_OPERATIONS: dict[type[nn.Module], str] = {
    nn.Linear: "matmul",
    nn.Embedding: "embed",
    nn.Identity: "identity",
    **{form.module: "activate" for form in ACTIVATIONS.values()},
}
# Classes without a description, most of them torch's; looked up along the class hierarchy
TORCH_CLASSES: dict[type[nn.Module], Description] = {
    nn.Linear: Description(formula="linear", backward="transposed linear", saved=("x",)),
    nn.Embedding: Description(formula="token vector", backward="rows", inputs=("ids",), is_float32=True),
    nn.Identity: Description(formula="identity", backward=PASSED_BACK),
    nn.ModuleList: Description(is_container=True),
    **{
        form.module: Description(formula="activation", backward="derivative", saved=(form.saved,))
        for form in ACTIVATIONS.values()
    },
}


def describe(module: nn.Module) -> Description:
    """The description of a module: its own, its class's, or its nearest base class's."""
    if isinstance(own := vars(module).get("description"), Description):
        return own
    for kind in type(module).__mro__:
        if isinstance(own := vars(kind).get("description"), Description):
            return own
        if kind in TORCH_CLASSES:
            return TORCH_CLASSES[kind]
    return UNDECLARED


def operation_of(kind: type[nn.Module]) -> str:
    """The operation of a class, or "". It is not inherited, because a subclass may compute something else."""
    return vars(kind).get("operation", TORCH_OPERATIONS.get(kind, ""))
