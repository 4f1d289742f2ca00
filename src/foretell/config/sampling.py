"""How the next token is chosen."""

from __future__ import annotations

from typing import Annotated, Any, Self

from pydantic import Field, NonNegativeInt, model_validator

from foretell.config.section import Section, raise_first


class SamplingConfig(Section):
    """How the next token is drawn from the logits; the filters run in the order of the fields.

    These defaults are those of `foretell.generate` and of the command line.
    """

    repetition_penalty: float = Field(1.0, ge=0.01, le=100)  # 1: none (Keskar et al. 2019, section 4.1)
    logit_bias: dict[NonNegativeInt, Annotated[float, Field(ge=-(10**4), le=10**4)]] = Field(
        {}
    )  # id: added to its logit
    min_tokens: int = Field(0, ge=0)  # the tokens that end a text are impossible before
    ban: tuple[Annotated[tuple[NonNegativeInt, ...], Field(min_length=1)], ...] = ()  # ids of words never written
    no_repeat_ngram: int | None = Field(None, gt=0)  # no run of this many ids occurs twice; None: any may
    regex: str | None = Field(None, min_length=1)  # the text after the prompt matches this regular expression
    json_schema: dict[str, Any] | None = None  # the text after the prompt is JSON of this schema
    temperature: float = Field(0.8, ge=0)  # 0: always the most likely token; 1: as the model has it
    top_k: int | None = Field(None, gt=0)  # keep the k most likely; None: all
    top_p: float = Field(0.95, gt=0, le=1)  # keep the smallest set with this much probability (Holtzman et al. 2020)
    min_p: float = Field(0.0, ge=0, le=1)  # drop what is less likely than min_p times the most likely
    seed: int = Field(1, ge=0, lt=2**63)

    @model_validator(mode="after")
    def _check(self) -> Self:
        has_both = self.regex is not None and self.json_schema is not None
        raise_first({"regex and json_schema exclude each other; give one of them": has_both})
        return self
