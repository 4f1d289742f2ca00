"""Numbers that are computed from recorded values: norms, divisors, terms of a softmax, probabilities and losses."""

from __future__ import annotations

from collections.abc import Iterator

from foretell.model.structure import IDS, Source, Structure, Value
from foretell.numerics.norms import NORMS

VECTORS = ("D", "E", "F", "H*E", "G*E")  # the last dimension of a vector
ATTENTION_WEIGHT = "attention weight"  # the formula of a row of a softmax

OF_HEAD = (  # name, dimensions, formula
    ("probabilities", ("B", "T", "V"), "probability"),
    ("probabilities.exponentials", ("B", "T", "V"), "exponential of a logit"),
    ("probabilities.divisor", ("B", "T"), "sum over the vocabulary"),
    ("logprobs", ("B", "T", "V"), "log-probability"),
    ("entropy", ("B", "T"), "entropy"),
    ("loss", ("B", "T"), "loss"),
    ("loss.mean", ("B",), "mean loss"),
)
OF_LOGITS = {name: Value(name, "head", Source.DERIVED, dims, ("head", IDS), formula) for name, dims, formula in OF_HEAD}


def implied_values(structure: Structure) -> dict[str, Value]:
    """The descriptions of implied values by name."""
    further = (implied for value in structure.values.values() for implied in implied_by(value, structure))
    return OF_LOGITS | {value.name: value for value in further}


def implied_by(value: Value, structure: Structure) -> Iterator[Value]:
    """`<vector>.vector_norm`, `<norm>.divisor`, and of attention weights `.terms`, `.exponentials` and `.divisor`."""

    def implied(suffix: str, dims: tuple[str, ...], formula: str, read: str = value.name) -> Value:
        return Value(f"{value.name}.{suffix}", value.module, Source.DERIVED, dims, (read,), formula)

    if value.dims[:1] == ("B",) and value.dims[-1] in VECTORS:
        yield implied("vector_norm", value.dims[:-1], "vector norm")
    if value.formula == ATTENTION_WEIGHT:
        yield implied("terms", (*value.dims, "E"), "term of a score")
        yield implied("exponentials", value.dims, "exponential of a score")
        yield implied("divisor", value.dims[:-1], "sum over the keys")
    for norm in NORMS.values():
        spread = structure.values.get(f"{value.name}.{norm.spread}")
        if value.formula == norm.formula and spread is not None:
            yield implied("divisor", spread.dims, "divisor of a norm", spread.name)
