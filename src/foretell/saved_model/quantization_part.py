"""Quantised weights of a decoder as a part of a saved model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from torch import Tensor

from foretell.config import ModelConfig, make_section
from foretell.errors import CheckpointError, ConfigError, UsageError
from foretell.files import CONFIG
from foretell.model.decoder import Decoder
from foretell.model.init import empty_decoder, fill_decoder
from foretell.model.quantized_linear import QuantizationConfig, quantize_decoder
from foretell.saved_model.part import PartSource, register_part

QUANTIZATION = "quantization"


@register_part
@dataclass(frozen=True)
class QuantizationPart:
    """How the weights of a decoder are stored as integers, which are in the decoder's module tree and its weights."""

    kind: ClassVar[str] = QUANTIZATION
    is_inside_decoder: ClassVar[bool] = True
    file_names: ClassVar[tuple[str, ...]] = ()
    settings: QuantizationConfig

    def config(self) -> dict[str, Any]:
        return self.settings.model_dump(mode="json")

    def weights(self) -> Mapping[str, Tensor]:
        return {}

    def save_files(self, directory: Path) -> None:
        """It has no files."""

    @classmethod
    def load(cls, values: Mapping[str, Any], source: PartSource) -> QuantizationPart:
        if source.for_training:
            raise UsageError(f"{source.directory} is quantised; train the model that it was made from")
        return cls(make_section(QuantizationConfig, values, QUANTIZATION))

    def load_decoder(self, config: ModelConfig, source: PartSource) -> Decoder:
        """A decoder whose quantised weights are read as integers; they are never in memory as floats."""
        decoder = self.empty_decoder(config, source.directory)
        tensors = decoder.state_dict()
        shapes = {path: tuple(tensor.shape) for path, tensor in tensors.items()}
        integers = {path: tensor.dtype for path, tensor in tensors.items() if not tensor.is_floating_point()}
        return fill_decoder(decoder, source.read(shapes, integers))

    def empty_decoder(self, config: ModelConfig, directory: Path) -> Decoder:
        """A quantised decoder without weights; settings that do not fit the decoder are a `CheckpointError`."""
        decoder = empty_decoder(config)
        try:
            quantize_decoder(decoder, self.settings)
        except (ConfigError, UsageError) as error:
            raise CheckpointError(f"{directory / CONFIG}: {error}") from None
        return decoder
