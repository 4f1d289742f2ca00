"""`LanguageModel`: a decoder with its tokenizer. `saved_model/` has its format on disk."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from numbers import Integral
from pathlib import Path
from typing import Self

import numpy as np
import torch
from torch import Tensor

from foretell.config.model import ModelConfig
from foretell.config.quantization import QuantizationConfig, Scheme
from foretell.config.section import make_section
from foretell.data.data_use import DataUse
from foretell.errors import CheckpointError, UsageError, as_path, check_type, counted
from foretell.model.decoder import Decoder, log_probabilities, logit_chunks, rows_at_once
from foretell.model.init import decoder_with_weights
from foretell.model.kernels import strict_copy
from foretell.model.quantized_linear import count_weights, plain_weights
from foretell.model.surgery import copy_with
from foretell.saved_model.config_file import DECODER, GGUF_PAIRS, NO_TOKENIZER, QUANTIZATION, TOKENIZER, command_of
from foretell.saved_model.part import DecoderPart, Part, TokenizerPart, merge_adapters
from foretell.saved_model.parts_on_disk import check_replaceable, load_parts, save_parts
from foretell.storage.files import new_directory
from foretell.storage.manifest import write_manifest
from foretell.system.device import choose_device, dtype_name, find_dtype
from foretell.text import Tokenizer, id_tokenizer
from foretell.text.tokenizer import ALLOW_SPECIAL

TokenIds = Sequence[int] | Sequence[Sequence[int]] | np.ndarray | Tensor
ID_FORMS = "ids must be a list of token ids, lists of equal length, or an integer tensor (T,) or (B, T)"
ID_DTYPES = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.uint16, torch.uint32)


@dataclass(frozen=True)
class MemoryText:
    """The source text of an encoder, as ids and their tokenizer."""

    ids: tuple[int, ...]
    tokenizer: Tokenizer

    @property
    def pieces(self) -> list[str]:
        return [self.tokenizer.text_of(token_id) for token_id in self.ids]


def weights_digest(decoder: Decoder) -> str:
    """The SHA-256 of a decoder's weights, in hex: the path and the bits of each tensor, in the model's order."""
    digest = hashlib.sha256()
    for path, weight in decoder.state_dict().items():
        digest.update(path.encode())
        digest.update(weight.cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


@dataclass(frozen=True, repr=False)
class LanguageModel:
    """A decoder and the tokenizer whose ids it was trained on. `foretell.load` makes one."""

    decoder: Decoder
    tokenizer: Tokenizer
    name: str = "model"
    notes: tuple[str, ...] = ()  # content of its files that was ignored or added
    parts: Mapping[str, Part] = field(default_factory=dict)  # further parts of the saved model, such as a head
    memory: MemoryText | None = None  # the source of a decoder that reads an encoder's output
    is_strict: bool = False  # made by `strict`
    data_use: DataUse | None = None  # None for a model that did not record its data

    def __call__(self, ids: TokenIds) -> Tensor:
        """Logits (B, T, V) of the token after each id, on the model's device; with gradients unless under no_grad.

        ids: one text (T,) or several of equal length (B, T), as lists, an array or an integer tensor. Raises UsageError
        for anything else and for ids outside the vocabulary, ContextLengthError for more than `config.context_length`.
        """
        return self.decoder(make_id_tensor(ids, self.config.vocab_size).to(self.device))

    def __repr__(self) -> str:
        config, parameters = self.config, count_weights(self.decoder)
        return (
            f"LanguageModel({self.name!r}: {counted(config.num_layers, 'layer')}, {counted(config.num_heads, 'head')}, "
            f"width {config.width}, context {config.context_length};\n"
            f"  {parameters:,} parameters, {self.precision} on {self.device}; "
            f"tokenizer {self.tokenizer.kind}, {self.tokenizer.vocab_size:,} tokens)"
        )

    @property
    def config(self) -> ModelConfig:
        return self.decoder.config

    @property
    def device(self) -> torch.device:
        return self.decoder.device

    @property
    def dtype(self) -> torch.dtype:
        return self.decoder.dtype

    @property
    def precision(self) -> str:
        """`bfloat16`, or `bfloat16, weights in int8 in groups of 64`."""
        precision = dtype_name(self.dtype)
        settings = self.quantization
        return precision if settings is None else f"{precision}, weights in {settings.scheme}"

    def encode(self, text: str, allow_special: bool = False) -> list[int]:
        """The model's input for a text: the tokenizer's start token, if it has one, then the ids of the text.

        The name of a special token in the text becomes that token only with `allow_special`. Raises TokenizerError for
        a text that the vocabulary cannot write, UsageError for anything but a string.
        """
        check_type("a text", text, str, "a string", "give one text at a time")
        if not allow_special:
            self.tokenizer.note_spelled([text], ALLOW_SPECIAL)
        return self.tokenizer.encode_input(text, allow_special)

    def encode_fitting(self, text: str) -> list[int]:
        """Like `encode`; raises UsageError for no ids, ContextLengthError for a text longer than the context."""
        ids = self.encode(text)
        if not ids:
            raise UsageError("the text is empty; give at least one character")
        self.decoder.check_length(len(ids))
        return ids

    def decode(self, ids: Sequence[int] | Tensor, skip_special: bool = False) -> str:
        """The text of ids (T,); incomplete UTF-8 becomes U+FFFD. Raises TokenizerError for an unknown id."""
        if isinstance(ids, str | bytes) or not isinstance(ids, Iterable):
            raise UsageError(f"ids must be token ids, not {type(ids).__name__}; model.encode(text) makes them")
        return self.tokenizer.decode(ids.tolist() if isinstance(ids, Tensor) else ids, skip_special)

    def texts_of(self, ids: Sequence[int]) -> list[str]:
        """The text of each token of a row."""
        return [self.tokenizer.text_of(token_id) for token_id in ids]

    def values_of(self, ids: Sequence[int]) -> list[float | None]:
        """The value of each token of a row of a series; None for tokens of text, and for missing values."""
        return [None] * len(ids)

    def all_parts(self) -> dict[str, Part]:
        return {TOKENIZER: TokenizerPart(self.tokenizer), DECODER: DecoderPart(self.decoder), **self.parts}

    def on_ids(self) -> Self:
        """The same model with texts of token ids: `encode("464 3290")` is [464, 3290], without a start token."""
        return replace(self, tokenizer=id_tokenizer(self.config.vocab_size, self.tokenizer.end_ids))

    def reading_special(self) -> Self:
        """The same model, which encodes the names of special tokens in a text as these tokens."""
        return replace(self, tokenizer=self.tokenizer.reading(self.tokenizer.special_tokens))

    def with_start(self, name: str) -> Self:
        """The same model with this special token of its tokenizer, such as the end token, before every text.

        Raises TokenizerError for a name that is not a special token.
        """
        return replace(self, tokenizer=self.tokenizer.with_start(name))

    def log_probabilities(self, logits: Tensor) -> Tensor:
        """Logits (..., V) as log-probabilities in nats, in float64, over the tokenizer's ids only.

        A model may have more output rows than tokens; the surplus is left out of the sum. Raises CheckpointError
        for logits that are not finite.
        """
        return log_probabilities(logits[..., : self.tokenizer.vocab_size])

    @torch.no_grad()
    def token_log_probabilities(self, ids: list[int], hidden: Tensor) -> Tensor:
        """The log-probability (T-1,) of each id after the first, in float64, from hidden (T, D) after the last norm."""
        following = torch.tensor([*ids[1:], 0], device=hidden.device)[:, None]  # the last entry is dropped
        parts = zip(logit_chunks(self.decoder, hidden), following.split(rows_at_once(self.decoder)), strict=True)
        return torch.cat([self.log_probabilities(logits).gather(1, part)[:, 0] for logits, part in parts])[:-1]

    def top_tokens(self, logprobs: Tensor, count: int) -> list[TokenProbability]:
        """The `count` most likely tokens of one distribution (V,), most likely first."""
        best = logprobs.topk(min(count, len(logprobs)))
        pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
        return [
            TokenProbability(token, self.tokenizer.text_of(token), math.exp(value), value) for token, value in pairs
        ]

    def to(self, device: str | torch.device | None = None, dtype: str | torch.dtype | None = None) -> Self:
        """Move the weights, in place, and return the model.

        device: auto, cpu, cuda, cuda:1, mps. dtype: float32, bfloat16, float16 or float64, by name or as torch.dtype.
        Raises UsageError for an unknown name and for a device that is missing.
        """
        # Both are checked before anything moves
        target_device = None if device is None else choose_device(device)
        target_dtype = None if dtype is None else find_dtype(dtype)
        self.decoder.to(device=target_device, dtype=target_dtype)
        for part in self.parts.values():
            for weight in part.weights().values():
                weight.data = weight.data.to(device=target_device, dtype=target_dtype)
        return self

    @property
    def quantization(self) -> QuantizationConfig | None:
        """The settings of quantised weights; None for a model with floating-point weights."""
        part = self.parts.get(QUANTIZATION)
        return None if part is None else make_section(QuantizationConfig, part.config(), QUANTIZATION)

    def quantize(self, to: Scheme, group: int | None = None, keep: Sequence[str] = (), head: Scheme = "int8") -> Self:
        """A new model with weights rounded to int8 or int4; this one stays as it is.

        Both share the tensors that are not rounded, so `to` of one moves them in the other as well.

        group: the number of inputs of a row that share a scale; without one the scheme's default, or the largest below
        it that divides all widths. keep: globs of modules whose weights are not rounded. Norms, biases and position
        embeddings never are. head: int4 for a head, and a token embedding tied to it, in int4, where the other layers
        are in int4 too. Raises UsageError for a model that is quantised already and for a glob without
        a match, ConfigError for a group that does not divide a width.
        """
        from foretell.model.quantize_decoder import check_groups, make_quantization

        plain = self.with_float_weights("quantize")
        settings = make_quantization(plain.decoder, to, group, keep, head)
        layers = {path: plain.decoder.get_submodule(path) for path in check_groups(plain.decoder, settings)}
        return replace(plain, decoder=copy_with(plain.decoder, layers)).quantized_in_place(settings)

    def quantized_in_place(self, settings: QuantizationConfig) -> Self:
        """Round the weights in place and return the model. For loading: memory never holds all weights twice."""
        from foretell.saved_model.layer_parts import quantize_in_place

        return replace(self, parts={**self.parts, QUANTIZATION: quantize_in_place(self.decoder, settings)})

    def strict(self) -> Self:
        """The same model with strict forms of its layers, whose logits do not depend on the batch: the same bits for a
        token alone or in any batch, with a cache or without, in parts or whole, on one type of machine. It is slower.

        Raises UsageError without numba, and for a layer that has no strict form.
        """
        return replace(self, decoder=strict_copy(self.decoder), is_strict=True)

    def weights_digest(self) -> str:
        return weights_digest(self.decoder)

    def check_not_quantized(self, action: str) -> None:
        """Raise UsageError for a quantised model; `action` is what was attempted."""
        if self.quantization is not None:
            raise UsageError(
                f"{self.name} is quantised to {self.quantization.to}; {action} the model that it was made from"
            )

    def with_float_weights(self, action: str) -> Self:
        """A model with floating-point weights: this one or, if it came packed, one with the same values in its dtype.

        Raises UsageError for a model that was quantised here; `action` is what was attempted.
        """
        settings = self.quantization
        if settings is None or not settings.forms:
            self.check_not_quantized(action)
            return self
        decoder = decoder_with_weights(self.config, plain_weights(self.decoder)).train(self.decoder.training)
        return replace(self.without_part(QUANTIZATION), decoder=decoder)

    def without_part(self, name: str) -> Self:
        return replace(self, parts={each: part for each, part in self.parts.items() if each != name})

    def to_train(self) -> Self:
        """The start of a training: float weights, and no description of the file, which the trained model is not."""
        return self.with_float_weights("train").without_part(GGUF_PAIRS)

    def save(self, directory: str | Path, dtype: str | torch.dtype | None = None) -> None:
        """Write the model to a directory that `foretell.load` reads, with weights in `dtype` if given.

        The directory appears whole or not at all. An existing directory is replaced if it is a saved model without
        other files; anything else at this path is an OutputError.
        """
        target = as_path("the directory", directory).resolve()
        check_replaceable(target)
        with new_directory(target) as temporary:
            save_parts(temporary, self.all_parts(), None if dtype is None else find_dtype(dtype))
            if self.data_use is not None:
                self.data_use.save(temporary)
            write_manifest(temporary)


@dataclass(frozen=True)
class TokenProbability:
    """One token of the vocabulary with its probability; logprob in nats."""

    id: int
    text: str
    probability: float
    logprob: float


def check_model(model: LanguageModel) -> None:
    """Refuse anything but a LanguageModel: the name of a model has to be loaded first."""
    check_type("the model", model, LanguageModel, "a LanguageModel", "foretell.load makes one")


def decoder_of(model: LanguageModel | Decoder) -> Decoder:
    """The decoder of a model, or the decoder that was given; a UsageError for anything else."""
    if isinstance(model, Decoder):
        return model
    check_model(model)
    return model.decoder


def resolve_position(position: int, length: int) -> int:
    """A position counted from 0; a negative one counts from the end. A UsageError outside the text."""
    check_type("a position", position, Integral, "a whole number")
    if not -length <= position < length:
        known = f"{counted(length, 'token')} (0 to {length - 1})"
        raise UsageError(f"position {position} is outside the text, which has {known}")
    return position % length


def make_id_tensor(ids: TokenIds, vocab_size: int) -> Tensor:
    """Token ids as a tensor (B, T) of int64; a UsageError for anything but ids of the vocabulary."""
    try:
        tensor = torch.as_tensor(ids)
    except (TypeError, ValueError, RuntimeError):
        raise UsageError(f"{ID_FORMS}; model.encode(text) makes them") from None
    if tensor.numel() == 0:
        raise UsageError("no token ids were given; give at least one")
    if tensor.dtype not in ID_DTYPES or tensor.dim() not in (1, 2):
        kind = f"{str(tensor.dtype).removeprefix('torch.')} of shape {tuple(tensor.shape)}"
        raise UsageError(f"{ID_FORMS}, not {kind}")
    tensor = tensor.long()  # before comparing: a bound would wrap around in uint8
    for token in torch.aminmax(tensor):
        if not 0 <= token < vocab_size:
            raise UsageError(f"token id {int(token)} is outside the model's vocabulary (0 to {vocab_size - 1})")
    return tensor.reshape(-1, tensor.shape[-1])  # (B, T)


def load_model(
    directory: Path,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
    *,
    name: str = "model",
    for_training: bool = False,
    keep_adapters: bool | None = None,
) -> LanguageModel:
    """Read a saved model; without `for_training` it has no dropout and is in evaluation mode.

    LoRA updates are merged into the weights unless `keep_adapters`, which is the default for training.
    Without a tokenizer, texts are token ids. Raises `CheckpointError` for a model without a decoder or with a tokenizer
    of another kind; `load_parts` reads any model.
    """
    parts = load_parts(directory, device, dtype, for_training=for_training)
    if not (for_training if keep_adapters is None else keep_adapters):
        parts = merge_adapters(parts)
    decoder, tokenizer = parts.pop(DECODER, None), parts.pop(TOKENIZER, None)
    command = command_of(name, [part.kind for part in parts.values()])
    if not isinstance(decoder, DecoderPart) or not isinstance(tokenizer, TokenizerPart | None):
        advice = f"; use it with: {command}" if command else ""
        raise CheckpointError(
            f"{directory} is not a language model: its parts are {', '.join(parts) or 'missing'}{advice}"
        )
    if tokenizer is None:
        ids_alone = id_tokenizer(decoder.decoder.config.vocab_size)
        notes = () if command else (f"{directory}: {NO_TOKENIZER}",)
        return LanguageModel(decoder.decoder, ids_alone, name, notes, parts, data_use=DataUse.load(directory))
    return LanguageModel(decoder.decoder, tokenizer.tokenizer, name, parts=parts, data_use=DataUse.load(directory))
