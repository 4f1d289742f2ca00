"""The options with which verbs load a language model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from foretell.cli.arguments import Device, Dtype, Quantize, Strict, Verify
from foretell.cli.terminal import open_model

if TYPE_CHECKING:
    from foretell.language_model import LanguageModel


@dataclass(frozen=True)
class ModelOptions:
    """Where a model computes, and how exactly."""

    device: Device = "auto"
    dtype: Dtype = "auto"
    quantize: Quantize = None
    strict: Strict = False
    verify: Verify = False

    def open(
        self, model: str, ids: bool = False, *, allow_special: bool = False, start_token: str | None = None
    ) -> LanguageModel:
        """Load the model of an argument; see `open_model`."""
        return open_model(
            model,
            self.device,
            self.dtype,
            ids,
            allow_special,
            start_token,
            self.strict,
            verify=self.verify,
            quantize=self.quantize,
        )


Options = Annotated[ModelOptions, Parameter(name="*")]
MODEL_DEFAULTS = ModelOptions()
