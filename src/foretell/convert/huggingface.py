"""Hugging Face directories: read into a model, and written from one, both by the family's table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from foretell.config import ModelConfig
from foretell.convert.directory import CONFIG, INDEX, WEIGHTS, check_files, find_tensors, read_small_json
from foretell.convert.families import FAMILIES
from foretell.convert.family import Family
from foretell.convert.layout import iter_ours, iter_theirs, pairings
from foretell.convert.reader import FLOATS, StoredTensor, read_tensor
from foretell.convert.settings import read_settings, write_settings
from foretell.errors import CheckpointError, ConfigError, did_you_mean
from foretell.files import write_json
from foretell.language_model import LanguageModel, check_vocabulary, save_tensors
from foretell.model.decoder import Decoder
from foretell.model.init import decoder_with_weights
from foretell.paths import matches, starred
from foretell.text import Tokenizer, load_tokenizer

SHARD_BYTES = 5 * 10**9
HEAD = "lm_head"


def load_huggingface(
    directory: Path, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32, *, name: str = "model"
) -> LanguageModel:
    """Read a model for use. Whatever is wrong with the directory is a `CheckpointError` or `TokenizerError`."""
    check_files(directory)
    family, config, notes = read_config(directory)
    tensors = find_weights(directory, family, config)
    tokenizer = load_tokenizer(directory)
    check_vocabulary(tokenizer, config, directory)
    if config.vocab_size > tokenizer.vocab_size:
        rows = config.vocab_size - tokenizer.vocab_size
        notes.append(f"{rows:,} of the model's {config.vocab_size:,} tokens are not in the tokenizer")
    config = config.replaced(dropout=0.0)
    read = partial(_read, tensors, dtype)
    weights = {path: tensor.to(device) for path, tensor in iter_ours(family, config, read)}
    decoder = decoder_with_weights(config, weights)
    return LanguageModel(decoder.eval(), tokenizer, name, tuple(f"{directory}: {note}" for note in notes))


def _read(tensors: Mapping[str, StoredTensor], dtype: torch.dtype, name: str) -> Tensor:
    return read_tensor(tensors[name], dtype)


def read_config(directory: Path) -> tuple[Family, ModelConfig, list[str]]:
    """The family and the configuration, and what is to be said about the config.json."""
    path = directory / CONFIG
    values = read_small_json(path)
    kind = values.get("model_type")
    if not isinstance(kind, str) or kind not in FAMILIES:
        near = did_you_mean(str(kind)[:80], FAMILIES) or f"; known: {', '.join(FAMILIES)}"
        raise CheckpointError(f"{path} says model_type {str(kind)[:80]!r}, which foretell cannot read{near}")
    try:
        config, notes = read_settings(FAMILIES[kind], values)
    except ConfigError as error:
        raise CheckpointError(f"{path}: {error}") from None
    return FAMILIES[kind], config, [f"{CONFIG}: {note}" for note in notes]


def find_weights(directory: Path, family: Family, config: ModelConfig) -> dict[str, StoredTensor]:
    """The tensors that the configuration asks for, names and shapes checked; nothing is read yet."""
    found = {full_name(family, name): tensor for name, tensor in _needed(directory, family).items()}
    if config.num_layers > len(found):  # before time goes into names for them all
        raise CheckpointError(
            f"{directory} has {len(found)} weights, too few for the configuration's {config.num_layers} layers"
        )
    expected = {pairing.theirs: pairing.shape for pairing in pairings(family, config)}
    for name, shape in expected.items():
        if name not in found:
            raise CheckpointError(f"{directory} has no weight '{name}'")
        if found[name].shape != shape:
            raise CheckpointError(
                f"{directory}: '{name}' has shape {found[name].shape}, the configuration asks for {shape}"
            )
    if config.tie_embeddings:
        _check_tied(family, found)
    for name in found:
        if name not in expected:
            near = did_you_mean(starred(name[:200]), {starred(one) for one in expected})
            raise CheckpointError(f"{directory} has a weight '{name[:80]}' that a {family.name} does not{near}")
    return found


def _needed(directory: Path, family: Family) -> dict[str, StoredTensor]:
    """All tensors but those that are no weights."""
    tensors = find_tensors(directory)
    duplicates = len(tensors) - len({full_name(family, name) for name in tensors})
    if duplicates:
        raise CheckpointError(f"{directory} has {duplicates} weights twice, with and without '{family.prefix}'")
    buffers = family.buffers
    return {
        name: tensor
        for name, tensor in tensors.items()
        if not any(matches(glob, full_name(family, name)) for glob in buffers)
    }


def full_name(family: Family, name: str) -> str:
    """The name with the prefix that files of the trunk alone leave out."""
    return name if name.startswith((family.prefix, f"{HEAD}.")) else f"{family.prefix}{name}"


def _check_tied(family: Family, found: dict[str, StoredTensor]) -> None:
    """A tied head may be in the file a second time; then it is taken out, if it is really the same."""
    head = found.pop(f"{HEAD}.weight", None)
    if head is None:
        return
    embedding = found[f"{family.rows[0].theirs}.weight"]
    dtype = FLOATS.get(embedding.dtype, torch.float32)
    if head.shape != embedding.shape or not torch.equal(read_tensor(head, dtype), read_tensor(embedding, dtype)):
        raise CheckpointError(
            f"{head.file}: '{HEAD}.weight' is not the embedding's, but config.json says tie_word_embeddings; "
            "one of the two is wrong"
        )


def stored_dtype(directory: Path) -> torch.dtype:
    """The precision that the directory's weights have; float32 where they differ."""
    kinds = {FLOATS[tensor.dtype] for tensor in find_tensors(directory).values() if tensor.dtype in FLOATS}
    return kinds.pop() if len(kinds) == 1 else torch.float32


def write_huggingface(
    directory: Path, model: LanguageModel, family: Family, dtype: torch.dtype, shard_bytes: int = SHARD_BYTES
) -> None:
    """Write a model's files into an existing directory. The family must be able to express it (`check_expressible`)."""
    config = model.decoder.config
    write_weights(directory, iter_theirs(family, config, _weights(model.decoder, dtype)), shard_bytes)
    write_json(directory / CONFIG, config_json(family, config, model.tokenizer, dtype))
    write_tokenizer(directory, model.tokenizer, config)
    for path in directory.glob("*.safetensors"):  # which the library lets only their owner read
        path.chmod((directory / CONFIG).stat().st_mode)


def _weights(decoder: Decoder, dtype: torch.dtype) -> dict[str, Tensor]:
    return {path: weight.detach().to("cpu", dtype) for path, weight in decoder.named_parameters()}


def config_json(family: Family, config: ModelConfig, tokenizer: Tokenizer, dtype: torch.dtype) -> dict[str, Any]:
    """The content of config.json. Special tokens are written out: the families' own defaults are others' ids."""
    ends = list(tokenizer.end_ids)
    return {
        "architectures": [family.architecture],
        "model_type": family.name,
        **write_settings(family, config),
        "bos_token_id": tokenizer.start_id,
        "eos_token_id": ends if len(ends) > 1 else tokenizer.end_id,
        "pad_token_id": None,
        "torch_dtype": str(dtype).removeprefix("torch."),
    }


def write_weights(directory: Path, tensors: Iterator[tuple[str, Tensor]], shard_bytes: int) -> None:
    """One safetensors file, or several with an index where they would be larger than `shard_bytes`."""
    shards = split_into_shards(dict(tensors), shard_bytes)
    metadata = {"format": "pt"}  # without it, transformers refuses the file
    if len(shards) == 1:
        save_tensors(directory / WEIGHTS, shards[0], metadata)
        return
    places: dict[str, str] = {}
    for number, shard in enumerate(shards, start=1):
        name = f"model-{number:05}-of-{len(shards):05}.safetensors"
        save_tensors(directory / name, shard, metadata)
        places |= dict.fromkeys(shard, name)
    total = sum(tensor.nbytes for shard in shards for tensor in shard.values())
    write_json(directory / INDEX, {"metadata": {"total_size": total}, "weight_map": places})


def split_into_shards(tensors: dict[str, Tensor], shard_bytes: int) -> list[dict[str, Tensor]]:
    """The tensors in order, in groups of at most so many bytes; one that is larger has a group of its own."""
    shards: list[dict[str, Tensor]] = [{}]
    size = 0
    for name, tensor in tensors.items():
        if shards[-1] and size + tensor.nbytes > shard_bytes:
            shards.append({})
            size = 0
        shards[-1][name] = tensor
        size += tensor.nbytes
    return shards


def write_tokenizer(directory: Path, tokenizer: Tokenizer, config: ModelConfig) -> None:
    """tokenizer.json, and beside it what transformers needs to build the same tokenizer from it."""
    tokenizer.save(directory / "tokenizer.json")
    special = {"bos_token": tokenizer.start_id, "eos_token": tokenizer.end_id}
    named = {name: tokenizer.piece(number) for name, number in special.items() if number is not None}
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": config.context_length}
    write_json(directory / "tokenizer_config.json", {**settings, "clean_up_tokenization_spaces": False, **named})
