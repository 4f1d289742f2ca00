"""Load a Hugging Face directory: check its files, and read its configuration and weights by the family's table."""

from __future__ import annotations

import stat
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from foretell.config import ModelConfig
from foretell.convert.config_json import read_settings
from foretell.convert.families import FAMILIES
from foretell.convert.family import Family
from foretell.convert.safetensors_reader import FLOATS, StoredTensor, read_header, read_tensor
from foretell.convert.weights import iter_ours, pairings
from foretell.errors import CheckpointError, ConfigError, did_you_mean
from foretell.files import read_json
from foretell.language_model import NO_TOKENIZER, LanguageModel
from foretell.model.init import decoder_with_weights
from foretell.paths import matches, starred
from foretell.saved_model import check_vocabulary
from foretell.text import has_tokenizer, id_tokenizer, load_tokenizer

CONFIG, WEIGHTS, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
READ = (".json", ".txt", ".safetensors", ".model")
MOST_JSON_BYTES = 2**23
PICKLES = ("*.bin", "*.bin.index.json", "*.pt", "*.pth", "*.ckpt", "*.h5", "*.msgpack")
HEAD = "lm_head"


def load_huggingface(
    directory: Path, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32, *, name: str = "model"
) -> LanguageModel:
    """Load a model for inference. A damaged or unsupported directory is a `CheckpointError` or `TokenizerError`."""
    check_files(directory)
    family, config, notes = read_config(directory)
    tensors = find_weights(directory, family, config)
    if has_tokenizer(directory):
        tokenizer = load_tokenizer(directory)
    else:
        tokenizer = id_tokenizer(config.vocab_size)
        notes.append(NO_TOKENIZER)
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


def stored_dtype(directory: Path) -> torch.dtype:
    """The precision of the directory's weights; float32 if they differ."""
    dtypes = {FLOATS[tensor.dtype] for tensor in find_tensors(directory).values() if tensor.dtype in FLOATS}
    return dtypes.pop() if len(dtypes) == 1 else torch.float32


# --- files -----------------------------------------------------------------------------------------------------------


def check_files(directory: Path) -> None:
    """Refuse links that lead out of the directory, and entries that are not regular files.

    In a download cache, where files are links from snapshots/REVISION to blobs, a link may lead there.
    """
    home = directory.resolve()
    homes = [home, home.parent.parent / "blobs"] if home.parent.name == "snapshots" else [home]
    for path in sorted(directory.iterdir()):
        if path.suffix not in READ:
            continue
        target = path.resolve()
        if path.is_symlink() and not any(target.is_relative_to(allowed) for allowed in homes):
            raise CheckpointError(f"{path} is a link out of its directory, to {target}; copy the file there instead")
        if target.exists() and not stat.S_ISREG(target.stat().st_mode):
            raise CheckpointError(f"{path} is not a regular file")


def read_small_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file, refused if the file is unreasonably large."""
    if path.exists() and path.stat().st_size > MOST_JSON_BYTES:
        raise CheckpointError(f"{path} has {path.stat().st_size:,} bytes, far more than such a file needs")
    return read_json(path)


def find_tensors(directory: Path) -> dict[str, StoredTensor]:
    """Every tensor of the directory's safetensors: one file, or several that an index lists."""
    if (directory / WEIGHTS).exists():
        return read_header(directory / WEIGHTS)
    if (directory / INDEX).exists():
        return read_shards(directory)
    pickles = [path.name for pattern in PICKLES for path in sorted(directory.glob(pattern))]
    if pickles:
        raise CheckpointError(
            f"{directory} has only {pickles[0]}; such a file can run any code when it is opened, so foretell opens "
            f"none: get {WEIGHTS} of the same model"
        )
    raise CheckpointError(f"{directory} has no weights: neither {WEIGHTS} nor {INDEX}")


def read_shards(directory: Path) -> dict[str, StoredTensor]:
    """The tensors that the index lists; index and files must agree exactly."""
    path = directory / INDEX
    weight_map = read_small_json(path).get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(file, str) for file in weight_map.values()):
        raise CheckpointError(f"{path} has no weight_map from names to files")
    files = sorted(set(weight_map.values()))
    for file in files:
        if file != Path(file).name or "\\" in file or not file.endswith(".safetensors"):
            raise CheckpointError(f"{path} names {file[:80]!r}, which is not a safetensors file in its directory")
    tensors = {(file, name): tensor for file in files for name, tensor in read_header(directory / file).items()}
    listed = {(file, name) for name, file in weight_map.items()}
    for file, name in sorted(listed ^ tensors.keys()):
        where = "is in the index and not in the file" if (file, name) in listed else "is in the file, not in the index"
        raise CheckpointError(f"{directory / file}: '{name[:80]}' {where}")
    return {name: tensor for (_, name), tensor in tensors.items()}


# --- configuration and weights ---------------------------------------------------------------------------------------


def read_config(directory: Path) -> tuple[Family, ModelConfig, list[str]]:
    """The family, the configuration, and notes on fields of the config.json that were not used."""
    path = directory / CONFIG
    values = read_small_json(path)
    kind = values.get("model_type")
    if not isinstance(kind, str) or kind not in FAMILIES:
        near = did_you_mean(str(kind)[:80], FAMILIES) or f"; known: {', '.join(FAMILIES)}"
        raise CheckpointError(f"{path} has model_type {str(kind)[:80]!r}, which foretell cannot read{near}")
    try:
        config, notes = read_settings(FAMILIES[kind], values)
    except ConfigError as error:
        raise CheckpointError(f"{path}: {error}") from None
    return FAMILIES[kind], config, [f"{CONFIG}: {note}" for note in notes]


def find_weights(directory: Path, family: Family, config: ModelConfig) -> dict[str, StoredTensor]:
    """The tensors that the configuration asks for, with names and shapes checked; no data is read yet."""
    stored = {full_name(family, name): tensor for name, tensor in _without_buffers(directory, family).items()}
    if config.num_layers > len(stored):  # before listing the names of an absurd number of layers
        raise CheckpointError(
            f"{directory} has {len(stored)} weights, too few for the configuration's {config.num_layers} layers"
        )
    try:
        expected = {pairing.theirs: pairing.shape for pairing in pairings(family, config)}
    except ConfigError as error:
        raise CheckpointError(f"{directory / CONFIG}: {error}") from None
    for name, shape in expected.items():
        if name not in stored:
            raise CheckpointError(f"{directory} has no weight '{name}'")
        if stored[name].shape != shape:
            raise CheckpointError(
                f"{directory}: '{name}' has shape {stored[name].shape}, the configuration asks for {shape}"
            )
    if config.tie_embeddings:
        _remove_tied_head(family, stored)
    for name in stored:
        if name not in expected:
            near = did_you_mean(starred(name[:200]), {starred(known) for known in expected})
            raise CheckpointError(f"{directory} has a weight '{name[:80]}' that a {family.name} does not{near}")
    return stored


def _without_buffers(directory: Path, family: Family) -> dict[str, StoredTensor]:
    """All tensors except the family's buffers; a weight both with and without the prefix is refused."""
    tensors = find_tensors(directory)
    duplicates = len(tensors) - len({full_name(family, name) for name in tensors})
    if duplicates:
        raise CheckpointError(f"{directory} has {duplicates} weights twice, with and without '{family.prefix}'")
    return {
        name: tensor
        for name, tensor in tensors.items()
        if not any(matches(glob, full_name(family, name)) for glob in family.buffers)
    }


def full_name(family: Family, name: str) -> str:
    """The name with the prefix that files of the bare trunk leave out."""
    return name if name.startswith((family.prefix, f"{HEAD}.")) else f"{family.prefix}{name}"


def _remove_tied_head(family: Family, stored: dict[str, StoredTensor]) -> None:
    """Drop the head that some files hold next to the tied embedding; refuse it if it differs."""
    head = stored.pop(f"{HEAD}.weight", None)
    if head is None:
        return
    embedding = stored[f"{family.rows[0].theirs}.weight"]
    dtype = FLOATS.get(embedding.dtype, torch.float32)
    if head.shape != embedding.shape or not torch.equal(read_tensor(head, dtype), read_tensor(embedding, dtype)):
        raise CheckpointError(
            f"{head.file}: '{HEAD}.weight' is not the embedding, but config.json has tie_word_embeddings; "
            "one of the two is wrong"
        )
