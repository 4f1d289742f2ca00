"""`QuantizationConfig`: the storage format of quantised weights."""

from __future__ import annotations

from collections import Counter
from typing import Any, Literal

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer

from foretell.config.section import Section

Scheme = Literal["int8", "int4"]
# The tensors of a stored matrix, under the path of its layer
MATRIX_TENSORS = ("integers", "scales", "minima", "scale_units", "minimum_units")
FormName = Literal["q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q4_k", "q5_k", "q6_k"]  # GGUF's types of blocks


class QuantizationConfig(Section):
    """The storage format of a decoder's weights.

    forms: the form of every stored matrix by its path, for a model that came packed; empty if the fields before it
    describe all matrices. `to` and `group` then describe the most frequent form.
    """

    to: Scheme
    group: int = Field(gt=1)  # inputs of one row that share a scale
    head: Scheme = "int8"  # of the head, and of the token embedding if the head is tied to it
    keep: tuple[str, ...] = ()  # globs of module paths whose weights are not rounded
    calibrated: bool = False  # the integers were chosen for the layers' inputs on a text
    forms: dict[str, FormName] = Field(default_factory=dict)

    @classmethod
    def packed(cls, forms: dict[str, FormName], table: str) -> QuantizationConfig:
        """The settings of matrices that came in these forms; `table` is the path of the token embedding."""
        kind = Counter(forms.values()).most_common(1)[0][0]
        return cls(to=scheme_of(kind), group=group_of(kind), head=scheme_of(forms.get(table, "q8_0")), forms=forms)

    @model_serializer(mode="wrap")
    def _without_empty_forms(self, values_of: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {name: value for name, value in values_of(self).items() if name != "forms" or value}

    @property
    def scheme(self) -> str:
        """`int8 in groups of 64`, or `q4_1 (210), q8_0 (1)`."""
        if self.forms:
            return ", ".join(f"{form} ({count})" for form, count in Counter(self.forms.values()).most_common())
        return f"{self.to}{' (head too)' if self.head == 'int4' else ''} in groups of {self.group}"

    def __str__(self) -> str:
        how = "calibrated" if self.calibrated else "rounded to nearest"
        return f"{self.scheme}, {'as in its file' if self.forms else how}"


def scheme_of(form: FormName) -> Scheme:
    return "int4" if form.startswith("q4") else "int8"


def group_of(form: FormName) -> int:
    return 16 if form == "q6_k" else 32
