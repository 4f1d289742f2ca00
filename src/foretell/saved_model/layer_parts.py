"""The parts of a saved model that replace layers of its decoder: quantised weights and LoRA updates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from torch import Tensor

from foretell.config.quantization import QuantizationConfig
from foretell.config.section import make_section
from foretell.errors import CheckpointError, UsageError
from foretell.model.decoder import Decoder
from foretell.model.lora import LoRAConfig, add_lora, lora_layers, lora_weights, merge_lora
from foretell.model.quantize_decoder import quantize_decoder
from foretell.saved_model.config_file import DECODER, LORA, QUANTIZATION
from foretell.saved_model.part import DecoderPart, Part, PartSource, register_part


@register_part
@dataclass(frozen=True)
class QuantizationPart(Part):
    """The settings of a quantised decoder; the integers and scales are among the decoder's weights."""

    kind: ClassVar[str] = QUANTIZATION
    is_inside_decoder: ClassVar[bool] = True
    settings: QuantizationConfig

    def config(self) -> dict[str, Any]:
        return self.settings.model_dump(mode="json")

    @classmethod
    def load(cls, values: Mapping[str, Any], source: PartSource) -> Self:
        if source.for_training:
            raise UsageError(f"{source.directory} is quantised; train the model that it was made from")
        return cls(make_section(QuantizationConfig, values, QUANTIZATION))

    def prepare(self, decoder: Decoder) -> None:
        quantize_decoder(decoder, self.settings)


@register_part
@dataclass(frozen=True)
class LoRAPart(Part):
    """LoRA updates inside a decoder. In config.json `targets` are the paths of the layers."""

    kind: ClassVar[str] = LORA
    is_inside_decoder: ClassVar[bool] = True
    decoder: Decoder
    settings: LoRAConfig

    def config(self) -> dict[str, Any]:
        return self.settings.model_dump(mode="json") | {"targets": list(lora_layers(self.decoder))}

    def weights(self) -> Mapping[str, Tensor]:
        return lora_weights(self.decoder)

    def merge(self) -> bool:
        merge_lora(self.decoder)
        return True

    @classmethod
    def load(cls, values: Mapping[str, Any], source: PartSource) -> Self:
        settings = make_section(LoRAConfig, values, "lora")
        settings = settings if source.for_training else settings.model_copy(update={"dropout": 0.0})
        decoder = source.parts.get(DECODER)
        if not isinstance(decoder, DecoderPart):
            raise CheckpointError("a saved model with LoRA updates has no decoder; it is damaged")
        try:
            add_lora(decoder.decoder, settings, 0)
        except UsageError as error:  # a path that the decoder does not have
            raise CheckpointError(f"{source.directory}: {error}") from None
        part = cls(decoder.decoder, settings)
        shapes = {path: tuple(weight.shape) for path, weight in part.weights().items()}
        part.decoder.load_state_dict(source.read(shapes), strict=False)
        part.decoder.train(source.for_training)
        return part


def add_adapters(decoder: Decoder, settings: LoRAConfig, seed: int = 0) -> LoRAPart:
    """New updates in a decoder, whose other weights are frozen; see `add_lora`."""
    add_lora(decoder, settings, seed)
    return LoRAPart(decoder, settings)


def quantize_in_place(decoder: Decoder, settings: QuantizationConfig) -> QuantizationPart:
    """Round the weights of a decoder, layer by layer."""
    quantize_decoder(decoder, settings)
    return QuantizationPart(settings)
