"""`Translator`: an encoder-decoder with its vocabularies, and its form on disk."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from pydantic import Field
from torch import Tensor

from foretell.config.quantization import Scheme
from foretell.config.section import Section, make_section
from foretell.data.data_use import DataUse
from foretell.errors import CheckpointError, UsageError
from foretell.finding import check_files, find_model
from foretell.language_model import LanguageModel, MemoryText
from foretell.model.decoder import HEAD
from foretell.model.init import fill_decoder
from foretell.model.quantize_decoder import make_quantization, quantize_decoder
from foretell.model.quantized_linear import TOKEN, quantized_layers
from foretell.saved_model.config_file import check_depth
from foretell.saved_model.part import Part, PartSource, TokenizerPart, register_part
from foretell.saved_model.parts_on_disk import load_parts, save_parts
from foretell.storage.files import printable_name
from foretell.system import DeviceName, DtypeName
from foretell.system.device import choose_device, choose_inference_dtype, dtype_name
from foretell.translation.batches import make_source
from foretell.translation.config import BleuTokenizer, EncoderDecoderConfig
from foretell.translation.encoder_decoder import EncoderDecoder, empty_encoder_decoder, weight_shapes
from foretell.translation.marian import is_marian, read_marian
from foretell.translation.pairs import Vocabulary, make_vocabulary

# The parts of a saved translation model; the last two are optional
MODEL, TARGET, SOURCE, DECODING = "encoder_decoder", "tokenizer", "source_tokenizer", "decoding"
LENGTH_PENALTY = 1.0  # default for models without one
SOURCE_TOKENIZER_FILE = "source_tokenizer.json"


@dataclass(frozen=True)
class Translator:
    """A translation model with the vocabularies of both languages.

    length_penalty: the exponent of Wu's penalty in beam search; None for LENGTH_PENALTY. bleu_tokenizer: chosen by the
    script of the training targets; None if it was not saved.
    """

    model: EncoderDecoder
    vocabulary: Vocabulary
    name: str = "model"
    notes: tuple[str, ...] = ()
    length_penalty: float | None = None
    bleu_tokenizer: BleuTokenizer | None = None
    data_use: DataUse | None = None  # None for a model that did not record its data

    @property
    def device(self) -> torch.device:
        return self.model.device

    @property
    def dtype(self) -> torch.dtype:
        return self.model.dtype

    @property
    def precision(self) -> str:
        """`bfloat16`, or `bfloat16, weights in int8`."""
        schemes = sorted({layer.scheme for layer in quantized_layers(self.model).values()})
        return ", weights in ".join((dtype_name(self.dtype), *schemes))

    def quantize(self, to: Scheme, dtype: torch.dtype) -> Self:
        """Round the linear layers of both stacks to int8 or int4 in place, with the rest in `dtype`; returns the model.

        Token vectors and head are not quantised, because they are shared between the languages and scaled.
        """
        if quantized_layers(self.model):
            raise UsageError(f"{self.name} is quantised already; quantise the model that it was made from")
        quantize_decoder(self.model, make_quantization(self.model, to, keep=(TOKEN, HEAD)))
        self.model.to(dtype)
        return self

    def given(self, text: str) -> LanguageModel:
        """The language model of the target, given a source text; usable wherever a language model is."""
        ids, start = self.vocabulary.encode_source(text), self.vocabulary.target.piece(self.vocabulary.start_id)
        return LanguageModel(
            self.model.given(make_source([ids])),
            self.vocabulary.target.with_start(start),
            self.name,
            memory=MemoryText(tuple(ids), self.vocabulary.source),
        )


def load_translator(
    argument: str | Path,
    device: DeviceName = "auto",
    dtype: DtypeName = "auto",
    *,
    verify: bool | None = False,
    quantize: Scheme | None = None,
) -> Translator:
    """Load a translation model for inference; arguments as for `foretell.load`."""
    if quantize is not None:
        plain = load_translator(argument, device, "float32", verify=verify)
        return plain.quantize(quantize, choose_inference_dtype(dtype, plain.device))
    chosen = choose_device(device)
    directory = find_model(str(argument))
    check_files(directory, in_full=verify)
    read = load_marian if is_marian(directory) else load_saved
    return read(directory, chosen, choose_inference_dtype(dtype, chosen), name=printable_name(argument))


def load_marian(
    directory: Path, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32, *, name: str = "model"
) -> Translator:
    model, vocabulary = read_marian(directory, device, dtype)
    note = f"{directory}: sentencepiece files are not read, so that sentences are token ids, such as '464 3290'"
    return Translator(model, vocabulary, name, (note,))


@register_part
@dataclass(frozen=True)
class EncoderDecoderPart(Part):
    """An encoder-decoder. The keys of its weights are their module paths."""

    kind: ClassVar[str] = MODEL
    is_inside_decoder: ClassVar[bool] = True
    model: EncoderDecoder

    def config(self) -> dict[str, Any]:
        return self.model.shape.model_dump(mode="json")

    def weights(self) -> Mapping[str, Tensor]:
        if quantized_layers(self.model):
            raise UsageError("a quantised translation model cannot be saved; save the plain one, quantise when loading")
        return dict(self.model.named_parameters())

    @classmethod
    def load(cls, values: Mapping[str, Any], source: PartSource) -> Self:
        config = make_section(EncoderDecoderConfig, values)
        check_depth(config, len(source.stored.tensors), source.stored.path)
        config = config if source.for_training else config.replaced(dropout=0.0)
        model = empty_encoder_decoder(config)
        fill_decoder(model, source.read(weight_shapes(config)))
        return cls(model.train(source.for_training))


@register_part
@dataclass(frozen=True)
class SourceTokenizerPart(TokenizerPart):
    """The tokenizer of the source, if it differs from the target's."""

    kind: ClassVar[str] = SOURCE
    file_names: ClassVar[tuple[str, ...]] = (SOURCE_TOKENIZER_FILE,)


class DecodingConfig(Section):
    """The entry of the decoding in config.json."""

    length_penalty: float | None = Field(None, ge=0, le=10)
    bleu_tokenizer: BleuTokenizer | None = None


@register_part
@dataclass(frozen=True)
class DecodingPart(Part):
    """The length penalty that was chosen on held-out pairs, and the tokenizer of BLEU."""

    kind: ClassVar[str] = DECODING
    settings: DecodingConfig

    def config(self) -> dict[str, Any]:
        return self.settings.model_dump(exclude_none=True)

    @classmethod
    def load(cls, values: Mapping[str, Any], source: PartSource) -> Self:
        return cls(make_section(DecodingConfig, values, source.name))


def save_translator(directory: Path, translator: Translator) -> None:
    """Write a model's files into an existing directory."""
    vocabulary = translator.vocabulary
    parts: dict[str, Part] = {MODEL: EncoderDecoderPart(translator.model), TARGET: TokenizerPart(vocabulary.target)}
    if not vocabulary.is_shared:
        parts[SOURCE] = SourceTokenizerPart(vocabulary.source)
    settings = DecodingConfig(length_penalty=translator.length_penalty, bleu_tokenizer=translator.bleu_tokenizer)
    if settings != DecodingConfig():
        parts[DECODING] = DecodingPart(settings)
    save_parts(directory, parts)


def load_saved(
    directory: Path,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
    *,
    name: str = "model",
    for_training: bool = False,
) -> Translator:
    """Read a saved translation model; without `for_training`, in evaluation mode and without dropout."""
    parts = load_parts(directory, device, dtype, for_training=for_training)
    model, target, source = parts.get(MODEL), parts.get(TARGET), parts.get(SOURCE, parts.get(TARGET))
    if not isinstance(model, EncoderDecoderPart):
        raise CheckpointError(f"{name} is not a translation model: its parts are {', '.join(parts)}")
    if not isinstance(target, TokenizerPart) or not isinstance(source, TokenizerPart):
        raise CheckpointError(f"{directory} has no tokenizer; it is damaged")
    vocabulary = make_vocabulary(source.tokenizer, target.tokenizer)
    check_sizes(vocabulary, model.model.shape, directory)
    decoding = parts.get(DECODING)
    return Translator(
        model.model,
        vocabulary,
        name,
        data_use=DataUse.load(directory),
        **(decoding.config() if isinstance(decoding, DecodingPart) else {}),
    )


def check_sizes(vocabulary: Vocabulary, config: EncoderDecoderConfig, directory: Path) -> None:
    """Refuse tokenizers with more tokens than the model has rows."""
    sizes = (config.source_vocab_size or config.vocab_size, config.vocab_size)
    for tokenizer, size in zip((vocabulary.source, vocabulary.target), sizes, strict=True):
        if tokenizer.vocab_size > size:
            raise CheckpointError(
                f"{directory}: a tokenizer has {tokenizer.vocab_size} tokens and the model {size}; they do not belong "
                "together"
            )
