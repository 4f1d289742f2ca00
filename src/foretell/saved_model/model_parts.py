"""The parts of a language model: decoder, tokenizer, quantised weights and LoRA updates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

from torch import Tensor

from foretell.config import ModelConfig, make_section
from foretell.errors import CheckpointError, ConfigError, UsageError
from foretell.files import CONFIG, TOKENIZER_FILE
from foretell.model.decoder import Decoder
from foretell.model.init import decoder_with_weights, empty_decoder, fill_decoder, weight_shapes
from foretell.model.lora import LoRAConfig, add_lora, lora_layers, lora_weights, merge_lora
from foretell.model.quantized_linear import QuantizationConfig, quantize_decoder, stored_buffers
from foretell.saved_model.part import Part, PartSource, register_part
from foretell.text import Tokenizer, load_tokenizer

DECODER, TOKENIZER, QUANTIZATION, LORA = "decoder", "tokenizer", "quantization", "lora"


# --- tokenizer -------------------------------------------------------------------------------------------------------


@register_part
@dataclass(frozen=True)
class TokenizerPart(Part):
    """A text tokenizer, in the one file of `file_names`."""

    kind: ClassVar[str] = TOKENIZER
    file_names: ClassVar[tuple[str, ...]] = (TOKENIZER_FILE,)
    tokenizer: Tokenizer

    def save_files(self, directory: Path) -> None:
        self.tokenizer.save(directory / self.file_names[0])

    @classmethod
    def load(cls, values: Mapping[str, Any], source: PartSource) -> Self:
        return cls(load_tokenizer(source.directory / cls.file_names[0]))


# --- decoder ---------------------------------------------------------------------------------------------------------


@register_part
@dataclass(frozen=True)
class DecoderPart(Part):
    """A decoder. Unless it is loaded for training, it has no dropout and is in evaluation mode."""

    kind: ClassVar[str] = DECODER
    is_inside_decoder: ClassVar[bool] = True
    decoder: Decoder

    def config(self) -> dict[str, Any]:
        return self.decoder.config.model_dump(mode="json")

    def weights(self) -> Mapping[str, Tensor]:
        return {**dict(self.decoder.named_parameters()), **stored_buffers(self.decoder)}

    @classmethod
    def load(cls, values: Mapping[str, Any], source: PartSource) -> Self:
        config = make_section(ModelConfig, values)
        check_depth(config, len(source.stored.tensors), source.stored.path)
        tokenizer = source.parts.get(TOKENIZER)
        if isinstance(tokenizer, TokenizerPart):
            check_vocabulary(tokenizer.tokenizer, config, source.directory)
        config = config if source.for_training else config.replaced(dropout=0.0)
        shapes = weight_shapes(config)
        quantization = source.parts.get(QUANTIZATION)
        if isinstance(quantization, QuantizationPart):
            return cls(quantization.load_decoder(config, source).eval())
        decoder = decoder_with_weights(config, source.read(shapes))
        return cls(decoder.train(source.for_training))


def check_vocabulary(tokenizer: Tokenizer, config: ModelConfig, directory: Path) -> None:
    """Refuse a tokenizer with tokens that the model has no row for."""
    if tokenizer.vocab_size > config.vocab_size:
        raise CheckpointError(
            f"{directory}: the tokenizer has {tokenizer.vocab_size} tokens and the model {config.vocab_size}; "
            "they do not belong together"
        )


def check_depth(config: ModelConfig, count: int, where: Path) -> None:
    """Refuse a configuration with more layers than `count` weights, before time is spent on making them."""
    if config.num_layers > count:
        raise CheckpointError(
            f"{where} has {count} weights, too few for the configuration's {config.num_layers} layers"
        )


# --- quantised weights -----------------------------------------------------------------------------------------------


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

    def load_decoder(self, config: ModelConfig, source: PartSource) -> Decoder:
        """A decoder whose quantised weights are read as integers; they are never in memory as floats.

        Settings that do not fit the decoder are a `CheckpointError`.
        """
        decoder = empty_decoder(config)
        try:
            quantize_decoder(decoder, self.settings)
        except (ConfigError, UsageError) as error:
            raise CheckpointError(f"{source.directory / CONFIG}: {error}") from None
        tensors = decoder.state_dict()
        shapes = {path: tuple(tensor.shape) for path, tensor in tensors.items()}
        integers = {path: tensor.dtype for path, tensor in tensors.items() if not tensor.is_floating_point()}
        return fill_decoder(decoder, source.read(shapes, integers))


# --- LoRA updates ----------------------------------------------------------------------------------------------------


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


def merge_adapters(parts: Mapping[str, Part]) -> dict[str, Part]:
    """The parts without LoRA updates, which are merged into the decoder's weights."""
    for part in parts.values():
        if isinstance(part, LoRAPart):
            merge_lora(part.decoder)
    return {name: part for name, part in parts.items() if not isinstance(part, LoRAPart)}
