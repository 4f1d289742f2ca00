"""`look` and `change` in a request: what to return of the inside of a pass, and what to alter, as data."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from annotated_types import Ge, Le, MaxLen, MinLen
from pydantic import BaseModel, ConfigDict, model_validator

Name = Annotated[str, MinLen(1), MaxLen(256)]
Indices = Annotated[list[Annotated[int, Ge(0), Le(2**31)]], MinLen(1), MaxLen(4096)]
Vector = Annotated[list[float], MinLen(1), MaxLen(65_536)]


class Asked(BaseModel):
    """A part of a request without unknown fields: a misspelled one would look like a value that is missing."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class Look(Asked):
    """`look`: the values to return with an answer.

    values: globs of names, as `foretell info --names` lists them. tokens: of the prompt, of the answer, or all.
    positions: only these, counted from 0. lens: this number of tokens that the stream predicts after every block.
    contributions: of every head and layer to the logit of the first new token. receipt: digests from
    which anyone with the model can check the answer.
    """

    values: Annotated[list[Name], MaxLen(64)] = []
    tokens: Literal["prompt", "new", "all"] = "all"
    positions: Indices | None = None
    lens: Annotated[int, Ge(0), Le(20)] = 0
    contributions: bool = False
    receipt: bool = False
    format: Literal["json", "safetensors"] = "json"


class ChangeRequest(Asked):
    """An entry of `change`: one operation on the values that a glob matches.

    scale: multiply (0 switches a part off). add: add a number or a vector. set: replace by a number or a vector.
    patch: replace by the value in a pass over this text. heads, neurons, positions: only there.
    """

    value: Name
    scale: float | None = None
    add: float | Vector | None = None
    set: float | Vector | None = None
    patch: Annotated[str, MinLen(1), MaxLen(65_536)] | None = None
    heads: Indices | None = None
    neurons: Indices | None = None
    positions: Indices | None = None

    @model_validator(mode="after")
    def has_one_operation(self) -> Self:
        if sum(operand is not None for operand in (self.scale, self.add, self.set, self.patch)) != 1:
            raise ValueError("give one of scale, add, set and patch")
        return self
