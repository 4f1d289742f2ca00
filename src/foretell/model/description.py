"""How a module class describes itself to those who look at a model: trace, explain, page, budget and memory plan.

A class states its description next to its forward, as the class attribute `description`. `structure.py` collects the
descriptions of all modules of a model. What a subclass does not state it inherits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

OWN_INPUT = "x"  # in `reads`: what the module itself is given
MEMORY = "memory"  # the name of the input that is the output of an encoder
STATISTIC = "statistic"  # dims of one number per vector
RETURNED = "returned"  # formula of a value inside a module that is the module's own output
UNKNOWN_FORMULA = "unknown"  # formula of a value whose class, or whose inputs, nobody has declared


@dataclass(frozen=True)
class Declared:
    """One value inside a module: the output of a child, or one of a child's inputs.

    dims: the size letters of its shape, as "B T D" or "B H T E"; a product of two is written "H*E".
    reads: the values it is computed from, by their names inside the module; OWN_INPUT is what the module is given.
    formula: how one number of it is computed, where that is not what the child's own class says. It counts only if the
        class says `refines`: another module in the place of the child may compute something else.
    """

    dims: str
    reads: tuple[str, ...] = (OWN_INPUT,)
    formula: str = ""
    refines: str = "identity"


@dataclass(frozen=True)
class Derivation:
    """A value that no module returns, computed from the inputs `needs` of one module's call.

    dims: size letters, or STATISTIC: those of the module's output, with 1 for the last. formula: as in `Description`.
    """

    compute: Callable[..., Tensor]
    needs: tuple[str, ...]
    dims: str
    formula: str


@dataclass(frozen=True)
class Description:
    """What a module class says about itself.

    formula: the name of the rule by which one number of its output follows from what it reads ("linear", "residual");
        `insight` explains and splits values by this name. Empty where `returns` names a child.
    reads: the values inside it that the formula reads, where those are not its inputs.
    written: the formula as text, "x * sigmoid(x)", for an explanation of an activation function.
    returns: the child whose output is the module's own output.
    values: the values inside it, by name relative to the module: "query", "core.key".
    chain: the name of a list of children of which each reads the one before.
    parts: where the output is a tuple of tensors, the name and the dims of each.
    is_container: the module is a list of others, or returns no tensor; it has no value of its own.
    inputs: the names of its positional inputs.
    derived: values computed on the way, by name.
    saved: tensors kept for the backward pass in the precision of matrix products: names from `inputs`, names of
        `values`, "output", or "inner" for one of the output's size that has no name.
    saved_as_given: inputs kept for the backward pass in the precision they come in.
    is_float32: the output stays in float32 under autocast, as the residual stream does.
    memory_axes: the letters T or S that count the tokens of the memory, and not of the text, in all values inside it.
    """

    formula: str = ""
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
