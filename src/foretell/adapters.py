"""Adapters as parts of a saved model: the LoRA updates of a decoder, kept apart from the weights they change."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from torch import Tensor

from foretell.config import make_section
from foretell.errors import CheckpointError, UsageError
from foretell.model.decoder import Decoder
from foretell.model.lora import LoRAConfig, add_lora, lora_layers, lora_weights, merge_lora
from foretell.saved_model.decoder_part import DECODER, DecoderPart
from foretell.saved_model.part import Part, PartSource, register_part

LORA = "lora"


@register_part
@dataclass(frozen=True)
class LoRAPart:
    """LoRA updates inside a decoder. In config.json `targets` are the paths of the layers."""

    kind: ClassVar[str] = LORA
    is_inside_decoder: ClassVar[bool] = True
    file_names: ClassVar[tuple[str, ...]] = ()
    decoder: Decoder
    settings: LoRAConfig

    def config(self) -> dict[str, Any]:
        return self.settings.model_dump(mode="json") | {"targets": list(lora_layers(self.decoder))}

    def weights(self) -> Mapping[str, Tensor]:
        return lora_weights(self.decoder)

    def save_files(self, directory: Path) -> None:
        """Updates have no other files."""

    @classmethod
    def load(cls, values: Mapping[str, Any], source: PartSource) -> LoRAPart:
        settings = make_section(LoRAConfig, values, "lora")
        settings = settings if source.for_training else settings.model_copy(update={"dropout": 0.0})
        decoder = decoder_of(source.parts)
        try:
            part = add_adapters(decoder, settings)
        except UsageError as error:  # a path that the decoder does not have
            raise CheckpointError(f"{source.directory}: {error}") from None
        shapes = {path: tuple(weight.shape) for path, weight in part.weights().items()}
        decoder.load_state_dict(source.read(shapes), strict=False)
        decoder.train(source.for_training)
        return part


def add_adapters(decoder: Decoder, settings: LoRAConfig, seed: int = 0) -> LoRAPart:
    """New updates in a decoder, whose other weights are frozen; see `add_lora`."""
    add_lora(decoder, settings, seed)
    return LoRAPart(decoder, settings)


def decoder_of(parts: Mapping[str, Part]) -> Decoder:
    """The decoder of a saved model; a CheckpointError where it has none."""
    part = parts.get(DECODER)
    if not isinstance(part, DecoderPart):
        raise CheckpointError("a saved model with LoRA updates has no decoder; it is damaged")
    return part.decoder


def merge_adapters(parts: Mapping[str, Part]) -> dict[str, Part]:
    """The parts without LoRA updates, which are merged into the decoder's weights."""
    for part in parts.values():
        if isinstance(part, LoRAPart):
            merge_lora(part.decoder)
    return {name: part for name, part in parts.items() if not isinstance(part, LoRAPart)}
