"""The settings for drawing the next token."""

from __future__ import annotations

from typing import Self

from pydantic import model_validator

from foretell.config.sampling_options import SamplingFields
from foretell.config.section import Section, raise_first


class SamplingConfig(SamplingFields, Section):
    """Settings for drawing the next token from the logits. Fields and defaults are listed in `sampling_options.py`."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        has_both = self.regex is not None and self.json_schema is not None
        raise_first({"regex and json_schema exclude each other; give one of them": has_both})
        return self
