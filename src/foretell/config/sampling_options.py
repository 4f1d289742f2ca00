"""The sampling options, listed once, with their bounds, defaults and help.

`SamplingConfig`, the keywords of `foretell.generate` and the options of the command line follow from this list; the
filters run in its order. It imports no pydantic, so that `foretell generate --help` stays fast.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, TypedDict

from annotated_types import Ge, Gt, Le, Lt, MinLen

if TYPE_CHECKING:
    from pydantic import BaseModel as Fields  # so that type checkers see the arguments of SamplingConfig
else:
    Fields = object

Id = Annotated[int, Ge(0)]
LogitBias = Annotated[float, Ge(-(10**4)), Le(10**4)]


class SamplingFields(Fields):
    """The fields of `SamplingConfig`. The text in an annotation is the help on the command line."""

    repetition_penalty: Annotated[float, Ge(0.01), Le(100), "Above 1, tokens that occurred become less likely"] = 1.0
    frequency_penalty: Annotated[
        float, Ge(-2), Le(2), "Subtracted from a token's logit for each time it was generated"
    ] = 0.0
    presence_penalty: Annotated[float, Ge(-2), Le(2), "Subtracted once from the logit of each generated token"] = 0.0
    logit_bias: Annotated[dict[Id, LogitBias], "TOKEN=NUMBER, added to its logit; may be repeated"] = {}  # noqa: RUF012
    min_tokens: Annotated[int, Ge(0), "The text cannot end before this many tokens"] = 0
    ban: Annotated[tuple[Annotated[tuple[Id, ...], MinLen(1)], ...], "Never write this word; may be repeated"] = ()
    no_repeat_ngram: Annotated[int | None, Gt(0), "No run of this many tokens occurs twice"] = None
    regex: Annotated[str | None, MinLen(1), "The continuation matches this regular expression"] = None
    json_schema: Annotated[dict[str, Any] | None, "The continuation is JSON of the schema in this file"] = None
    temperature: Annotated[float, Ge(0), "The sampling temperature; 0 always takes the most likely token"] = 0.8
    top_k: Annotated[int | None, Gt(0), "Keep the k most likely tokens"] = None
    top_p: Annotated[float, Gt(0), Le(1), "Keep the most likely tokens up to this total probability"] = 0.95
    min_p: Annotated[float, Ge(0), Le(1), "Drop tokens below this share of the most likely token's probability"] = 0.0
    seed: Annotated[int, Ge(0), Lt(2**63), "The same seed and prompts give the same text"] = 1


class SamplingOptions(TypedDict, total=False):
    """Sampling options as keywords of `foretell.generate`, where tokens and words may be texts.

    logit_bias: token texts or ids, and what is added to their logits. ban: words as text, or as ids.
    """

    repetition_penalty: float
    frequency_penalty: float
    presence_penalty: float
    logit_bias: Mapping[str | int, float]
    min_tokens: int
    ban: Sequence[str | Sequence[int]]
    no_repeat_ngram: int | None
    regex: str | None
    json_schema: dict[str, Any] | None
    temperature: float
    top_k: int | None
    top_p: float
    min_p: float
    seed: int
