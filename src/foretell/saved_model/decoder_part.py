"""A decoder as a part of a saved model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from torch import Tensor

from foretell.config import ModelConfig, make_section
from foretell.errors import CheckpointError
from foretell.model.decoder import Decoder
from foretell.model.init import decoder_with_weights, weight_shapes
from foretell.model.quantized_linear import stored_buffers
from foretell.saved_model.part import PartSource, StoredWeights, register_part
from foretell.saved_model.quantization_part import QUANTIZATION, QuantizationPart
from foretell.saved_model.tokenizer_part import TOKENIZER, TokenizerPart
from foretell.text import Tokenizer

DECODER = "decoder"


@register_part
@dataclass(frozen=True)
class DecoderPart:
    """A decoder. Unless it is loaded for training, it comes without dropout and in evaluation mode."""

    kind: ClassVar[str] = DECODER
    is_inside_decoder: ClassVar[bool] = True
    file_names: ClassVar[tuple[str, ...]] = ()
    decoder: Decoder

    def config(self) -> dict[str, Any]:
        return self.decoder.config.model_dump(mode="json")

    def weights(self) -> Mapping[str, Tensor]:
        return {**dict(self.decoder.named_parameters()), **stored_buffers(self.decoder)}

    def save_files(self, directory: Path) -> None:
        """A decoder has no other files."""

    @classmethod
    def load(cls, values: Mapping[str, Any], source: PartSource) -> DecoderPart:
        config = make_section(ModelConfig, values)
        check_depth(config, source.stored)
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


def check_depth(config: ModelConfig, stored: StoredWeights) -> None:
    """Refuse many more layers than the file has weights for, before time is spent on making them."""
    count = len(stored.tensors)
    if config.num_layers > count:
        raise CheckpointError(
            f"{stored.path} has {count} weights, too few for the configuration's {config.num_layers} layers"
        )
