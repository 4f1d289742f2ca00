"""A model on disk: `model.safetensors` under the module paths, `config.json`, `tokenizer.json`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from foretell.config import ModelConfig, make_section
from foretell.errors import CheckpointError, ConfigError, OutputError, UsageError, did_you_mean
from foretell.files import read_json, write_json
from foretell.model.decoder import Decoder
from foretell.model.init import decoder_with_weights, empty_decoder
from foretell.text import Tokenizer, load_tokenizer

WEIGHTS, CONFIG, TOKENIZER = "model.safetensors", "config.json", "tokenizer.json"
MODEL_TYPE, FORMAT = "foretell", 1


@dataclass(frozen=True)
class LanguageModel:
    """A decoder and the tokenizer whose ids it was trained on."""

    decoder: Decoder
    tokenizer: Tokenizer
    name: str = "model"
    notes: tuple[str, ...] = ()  # what was left out or added when it was read

    @property
    def device(self) -> torch.device:
        return self.decoder.embed.token.weight.device

    @property
    def dtype(self) -> torch.dtype:
        return self.decoder.embed.token.weight.dtype


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
    """Read a saved model. Unless it goes on training, it comes without dropout and in evaluation mode."""
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


@dataclass(frozen=True)
class TokenProbability:
    """One token of the vocabulary with its probability; logprob in nats."""

    id: int
    text: str
    probability: float
    logprob: float


def likeliest(model: LanguageModel, logprobs: Tensor, top: int) -> list[TokenProbability]:
    """The `top` largest of one distribution (V,), largest first."""
    best = logprobs.topk(min(top, len(logprobs)))
    pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
    return [TokenProbability(token, model.tokenizer.text_of(token), math.exp(value), value) for token, value in pairs]


def encode_some(model: LanguageModel, text: str) -> list[int]:
    """What the model reads for a text, which must fit its context; an empty one needs a tokenizer's start token."""
    ids = model.tokenizer.encode_input(text)
    if not ids:
        raise UsageError("the text is empty; give at least one character")
    model.decoder.check_length(len(ids))
    return ids


def check_position(place: int, length: int) -> int:
    """A position from 0, given one that may count from the end."""
    if not -length <= place < length:
        raise UsageError(f"position {place} is outside the text, which has {length} tokens (0 to {length - 1})")
    return place % length
