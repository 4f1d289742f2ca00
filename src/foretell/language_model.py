"""A decoder with its tokenizer, and its form on disk.

A saved model is a directory with `model.safetensors` (keys are module paths), `config.json` and `tokenizer.json`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from foretell.config import ModelConfig, make_section
from foretell.device import DeviceName, choose_device
from foretell.errors import CheckpointError, ConfigError, OutputError, UsageError, did_you_mean
from foretell.files import new_directory, read_json, write_json
from foretell.model.decoder import Decoder
from foretell.model.init import decoder_with_weights, empty_decoder
from foretell.text import Tokenizer, load_tokenizer
from foretell.text.tokenizer import CHAT_TEMPLATE

WEIGHTS, CONFIG, TOKENIZER = "model.safetensors", "config.json", "tokenizer.json"
MODEL_TYPE, FORMAT = "foretell", 1

TokenIds = Sequence[int] | Sequence[Sequence[int]] | np.ndarray | Tensor
ID_FORMS = "ids must be a list of token ids, lists of equal length, or an integer tensor (T,) or (B, T)"
ID_DTYPES = (torch.int64, torch.int32, torch.int16, torch.uint8)
DEVICES: dict[str, DeviceName] = {"auto": "auto", "cpu": "cpu", "cuda": "cuda", "mps": "mps"}
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16, "float64": torch.float64}


@dataclass(frozen=True, repr=False)
class LanguageModel:
    """A decoder and the tokenizer whose ids it was trained on. `foretell.load` makes one."""

    decoder: Decoder
    tokenizer: Tokenizer
    name: str = "model"
    notes: tuple[str, ...] = ()  # what was left out or added when it was read

    def __call__(self, ids: TokenIds) -> Tensor:
        """Logits (B, T, V) of the token after each id, on the model's device and with gradients unless torch is told.

        ids: one text (T,) or several of equal length (B, T), as lists, an array or an integer tensor. Raises UsageError
        for anything else and for ids outside the vocabulary, ContextLengthError for more than `config.context_length`.
        """
        return self.decoder(make_id_tensor(ids, self.config.vocab_size).to(self.device))

    def __repr__(self) -> str:
        config, parameters = self.config, sum(parameter.numel() for parameter in self.decoder.parameters())
        precision = str(self.dtype).removeprefix("torch.")
        return (
            f"LanguageModel({self.name!r}: {config.num_layers} layers, {config.num_heads} heads, width {config.width}, "
            f"context {config.context_length};\n"
            f"  {parameters:,} parameters, {precision} on {self.device}; "
            f"tokenizer {self.tokenizer.kind}, {self.tokenizer.vocab_size:,} tokens)"
        )

    @property
    def config(self) -> ModelConfig:
        """The decoder's shape."""
        return self.decoder.config

    @property
    def device(self) -> torch.device:
        return self.decoder.embed.token.weight.device

    @property
    def dtype(self) -> torch.dtype:
        return self.decoder.embed.token.weight.dtype

    def encode(self, text: str, allow_special: bool = False) -> list[int]:
        """The ids that the model reads for a text: the tokenizer's start token, if it has one, then the text's.

        The name of a special token in the text becomes that token only with `allow_special`. Raises TokenizerError for
        a text that the vocabulary cannot write.
        """
        return self.tokenizer.encode_input(text, allow_special)

    def encode_fitting(self, text: str) -> list[int]:
        """Like `encode`; raises UsageError where there is nothing to read, ContextLengthError where it is too long."""
        ids = self.encode(text)
        if not ids:
            raise UsageError("the text is empty; give at least one character")
        self.decoder.check_length(len(ids))
        return ids

    def decode(self, ids: Sequence[int] | Tensor, skip_special: bool = False) -> str:
        """The text of ids (T,); incomplete UTF-8 becomes U+FFFD. Raises TokenizerError for an unknown id."""
        return self.tokenizer.decode(ids.tolist() if isinstance(ids, Tensor) else ids, skip_special)

    def log_probabilities(self, logits: Tensor) -> Tensor:
        """Logits (..., V) as log-probabilities in nats, in float64, over the tokenizer's ids alone.

        A model may have more rows than its tokenizer has tokens; those are left out of the sum.
        """
        return logits[..., : self.tokenizer.vocab_size].double().log_softmax(-1)

    def top_tokens(self, logprobs: Tensor, count: int) -> list[TokenProbability]:
        """The `count` most likely tokens of one distribution (V,), most likely first."""
        best = logprobs.topk(min(count, len(logprobs)))
        pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
        return [
            TokenProbability(token, self.tokenizer.text_of(token), math.exp(value), value) for token, value in pairs
        ]

    def to(self, device: str | torch.device | None = None, dtype: str | torch.dtype | None = None) -> Self:
        """Move the weights, in place, and return the model.

        device: auto, cpu, cuda, cuda:1, mps. dtype: float32, bfloat16, float16 or float64, or torch's object of it.
        Raises UsageError for an unknown name and for a device that is missing.
        """
        # Both are checked before anything moves
        target_device = None if device is None else find_device(device)
        target_dtype = None if dtype is None else find_dtype(dtype)
        self.decoder.to(device=target_device, dtype=target_dtype)
        return self

    def save(self, directory: str | Path, dtype: str | torch.dtype | None = None) -> None:
        """Write the model as a directory that `foretell.load` reads, weights in `dtype` where one is given.

        The directory appears whole or not at all. One that exists is replaced if it is a saved model and holds nothing
        else; anything else there is an OutputError.
        """
        target = Path(directory).resolve()
        check_replaceable(target)
        with new_directory(target) as temporary:
            save_model(temporary, self.decoder, self.tokenizer, None if dtype is None else find_dtype(dtype))


@dataclass(frozen=True)
class TokenProbability:
    """One token of the vocabulary with its probability; logprob in nats."""

    id: int
    text: str
    probability: float
    logprob: float


def resolve_position(position: int, length: int) -> int:
    """A position from 0, given one that may count from the end; a UsageError outside the text."""
    if not -length <= position < length:
        raise UsageError(f"position {position} is outside the text, which has {length} tokens (0 to {length - 1})")
    return position % length


def make_id_tensor(ids: TokenIds, vocab_size: int) -> Tensor:
    """Token ids as a tensor (B, T) of int64; a UsageError where they are not ids of the vocabulary."""
    try:
        tensor = torch.as_tensor(ids)
    except (TypeError, ValueError, RuntimeError):
        raise UsageError(f"{ID_FORMS}; model.encode(text) makes them") from None
    if tensor.numel() == 0:
        raise UsageError("no token ids were given; give at least one")
    if tensor.dtype not in ID_DTYPES or tensor.dim() not in (1, 2):
        kind = f"{str(tensor.dtype).removeprefix('torch.')} of shape {tuple(tensor.shape)}"
        raise UsageError(f"{ID_FORMS}, not {kind}")
    for token in torch.aminmax(tensor):
        if not 0 <= token < vocab_size:
            raise UsageError(f"token id {int(token)} is outside the model's vocabulary (0 to {vocab_size - 1})")
    return tensor.long().reshape(-1, tensor.shape[-1])  # (B, T)


def find_device(device: str | torch.device) -> torch.device:
    """The device of a name such as cuda:1; a UsageError where the name is unknown or the device is missing."""
    kind, _, index = str(device).partition(":")
    if kind not in DEVICES:
        raise UsageError(f"unknown device '{device}'{did_you_mean(kind, DEVICES)}; known: {', '.join(DEVICES)}")
    chosen = choose_device(DEVICES[kind])
    if index and not (index.isdigit() and (chosen.type != "cuda" or int(index) < torch.cuda.device_count())):
        raise UsageError(f"no device '{device}' here")
    return torch.device(chosen.type, int(index)) if index else chosen


def find_dtype(dtype: str | torch.dtype) -> torch.dtype:
    """The precision of a name; a UsageError where weights cannot have it."""
    name = str(dtype).removeprefix("torch.")
    if name not in DTYPES:
        raise UsageError(f"unknown dtype '{name}'{did_you_mean(name, DTYPES)}; known: {', '.join(DTYPES)}")
    return DTYPES[name]


def check_replaceable(directory: Path) -> None:
    """Refuse to write a saved model over anything but a saved model or an empty directory."""
    if not directory.exists():
        return
    if not directory.is_dir():
        raise OutputError(f"{directory} is a file; give the name of a directory")
    names = {path.name for path in directory.iterdir()}
    if other := sorted(names - {WEIGHTS, CONFIG, TOKENIZER, CHAT_TEMPLATE}):
        raise OutputError(f"{directory} exists and holds more than a saved model ('{other[0]}'); give another name")
    if names and not is_saved_model(directory):
        raise OutputError(f"{directory} exists and is not a saved model; give another name")


def is_saved_model(directory: Path) -> bool:
    """True where config.json is that of a saved model."""
    try:
        return read_json(directory / CONFIG).get("model_type") == MODEL_TYPE
    except CheckpointError:
        return False


def save_model(directory: Path, decoder: Decoder, tokenizer: Tokenizer, dtype: torch.dtype | None = None) -> None:
    """Write a model's files into an existing directory, weights in `dtype` where one is given."""
    weights = {path: weight.detach().to("cpu", dtype).contiguous() for path, weight in decoder.named_parameters()}
    save_tensors(directory / WEIGHTS, weights)
    config = {"model_type": MODEL_TYPE, "format": FORMAT, **decoder.config.model_dump(mode="json")}
    write_json(directory / CONFIG, config)
    tokenizer.save(directory / TOKENIZER)


def load_model(
    directory: Path,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
    *,
    name: str = "model",
    for_training: bool = False,
) -> LanguageModel:
    """Read a saved model; without `for_training` it has no dropout and is in evaluation mode."""
    config = load_config(directory)
    tokenizer = load_tokenizer(directory / TOKENIZER)
    check_vocabulary(tokenizer, config, directory)
    check_depth(config, directory / WEIGHTS)
    config = config if for_training else config.replaced(dropout=0.0)
    decoder = decoder_with_weights(config, load_weights(config, directory / WEIGHTS, device, dtype))
    return LanguageModel(decoder.train(for_training), tokenizer, name)


def check_vocabulary(tokenizer: Tokenizer, config: ModelConfig, directory: Path) -> None:
    """Refuse a tokenizer with tokens that the model has no row for."""
    if tokenizer.vocab_size > config.vocab_size:
        raise CheckpointError(
            f"{directory}: the tokenizer has {tokenizer.vocab_size} tokens and the model {config.vocab_size}; "
            "they do not belong together"
        )


def load_config(directory: Path) -> ModelConfig:
    """The model's configuration; a file of another program or another format is refused."""
    values = read_json(directory / CONFIG)
    found, version = values.pop("model_type", None), values.pop("format", None)
    if found != MODEL_TYPE or version != FORMAT:
        raise CheckpointError(
            f"{directory / CONFIG} says model_type {found!r}, format {version!r}; this version reads "
            f"{MODEL_TYPE!r}, format {FORMAT}"
        )
    try:
        return make_section(ModelConfig, values)
    except ConfigError as error:
        raise CheckpointError(f"{directory / CONFIG}: {error}") from None


def check_depth(config: ModelConfig, path: Path) -> None:
    """Refuse many more layers than a file has weights for, before time goes into making them."""
    with open_tensors(path) as file:
        weights = len(file.keys())
    if config.num_layers > weights:
        raise CheckpointError(
            f"{path} has {weights} weights, too few for the configuration's {config.num_layers} layers"
        )


def load_weights(
    config: ModelConfig, path: Path, device: torch.device | str, dtype: torch.dtype
) -> dict[str, torch.Tensor]:
    """The weights of a decoder from a safetensors file, by path; names and shapes are checked first."""
    expected = {name: tuple(weight.shape) for name, weight in empty_decoder(config).named_parameters()}
    with open_tensors(path) as file:
        shapes = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
        check_weights(expected, shapes, path)
        return {name: file.get_tensor(name).to(device, dtype) for name in shapes}


def check_weights(expected: Mapping[str, tuple], found: Mapping[str, tuple], path: Path) -> None:
    """Refuse a file whose tensors are not just those that a model has."""
    for name, shape in expected.items():
        if name not in found:
            raise CheckpointError(f"{path} has no weight '{name}'")
        if found[name] != shape:
            raise CheckpointError(f"{path}: '{name}' has shape {found[name]}, the configuration asks for {shape}")
    for name in found:
        if name not in expected:
            raise CheckpointError(f"{path} has a weight '{name}' that the model does not{did_you_mean(name, expected)}")


def save_tensors(path: Path, tensors: dict[str, Tensor], metadata: dict[str, str] | None = None) -> None:
    """Write tensors as safetensors; a full disk or a missing right is an `OutputError`."""
    try:
        path.touch()
        mode = path.stat().st_mode
        save_file(tensors, path, metadata=metadata)
        path.chmod(mode)  # which the library takes from all but the owner
    except (OSError, SafetensorError) as error:
        raise OutputError(f"could not write {path}: {error}") from error


def open_tensors(path: Path):
    """Open a safetensors file, memory-mapped; anything else under that name is a `CheckpointError`."""
    try:
        return safe_open(path, framework="pt")
    except FileNotFoundError:
        raise CheckpointError(f"{path} is missing") from None
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{path} is damaged or no safetensors file: {error}") from None
