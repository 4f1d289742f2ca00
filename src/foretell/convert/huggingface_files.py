"""A Hugging Face directory without its weights: its files, configuration, tokenizer, and names and shapes of tensors.

Imports no torch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path

from foretell.config.model import ModelConfig
from foretell.config.quantization import QuantizationConfig
from foretell.config.weight_shapes import weight_shapes
from foretell.convert.config_json import read_settings
from foretell.convert.families import FAMILIES, describe_unknown
from foretell.convert.family import Family, pairings
from foretell.errors import CheckpointError, ConfigError, counted, did_you_mean
from foretell.paths import matches, starred
from foretell.saved_model.config_file import NO_TOKENIZER, StoredWeight, check_depth, check_vocabulary
from foretell.storage.files import CONFIG, WEIGHTS, WEIGHTS_INDEX, check_regular, read_json
from foretell.storage.safetensors_header import StoredTensor, check_shapes, read_header
from foretell.text import Tokenizer, has_tokenizer, id_tokenizer, load_tokenizer
from foretell.text.tokenizer_loading import read_end_ids

READ = (".json", ".txt", ".safetensors", ".model", ".jinja")
PICKLES = ("*.bin", "*.bin.index.json", "*.pt", "*.pth", "*.ckpt", "*.h5", "*.msgpack")
HEAD = "lm_head"
OTHER_HEADS = ("score", "classifier", "qa_outputs", "multiple_choice_head", "v_head")  # transformers' and trl's names


@dataclass(frozen=True)
class HuggingFaceFiles:
    """A directory with checked files. tensors: by full names. notes: on ignored content."""

    family: Family
    config: ModelConfig
    tokenizer: Tokenizer
    tensors: Mapping[str, StoredTensor]
    notes: tuple[str, ...]
    quantization: QuantizationConfig | None = None

    def weights(self) -> Iterator[StoredWeight]:
        """Our weights in the order of the modules, in the precision of the files."""
        holders = {path: pairing.theirs for pairing in pairings(self.family, self.config) for path in pairing.ours}
        for path, shape in weight_shapes(self.config).items():
            tensor, count = self.tensors[holders[path]], prod(shape)
            yield StoredWeight(path, shape, count, self.type_of(tensor), tensor.size * count // prod(tensor.shape))

    def type_of(self, tensor: StoredTensor) -> str:
        return tensor.float_name


def read_directory(directory: Path) -> HuggingFaceFiles:
    """Check a directory. A damaged or unsupported one is a `CheckpointError` or `TokenizerError`."""
    check_files(directory)
    family, config, notes = read_config(directory)
    tensors = find_weights(directory, family, config)
    if has_tokenizer(directory):
        tokenizer = load_tokenizer(directory)
    else:
        tokenizer = id_tokenizer(config.vocab_size, read_end_ids(directory))
        notes.append(NO_TOKENIZER)
    check_vocabulary(tokenizer, config, directory)
    if config.vocab_size > tokenizer.vocab_size:
        rows = config.vocab_size - tokenizer.vocab_size
        notes.append(f"{rows:,} of the model's {config.vocab_size:,} tokens are not in the tokenizer")
    return HuggingFaceFiles(family, config, tokenizer, tensors, tuple(f"{directory}: {note}" for note in notes))


def check_files(directory: Path) -> None:
    """Refuse links that lead out of the directory and entries that are not regular files, before reading any."""
    for path in sorted(directory.iterdir()):
        if path.suffix in READ:
            check_regular(path)


def find_tensors(directory: Path) -> dict[str, StoredTensor]:
    """Every tensor of the directory's safetensors: one file, or several listed in an index."""
    if (directory / WEIGHTS).exists():
        return read_header(directory / WEIGHTS)
    if (directory / WEIGHTS_INDEX).exists():
        return read_shards(directory)
    pickles = [path.name for pattern in PICKLES for path in sorted(directory.glob(pattern))]
    if pickles:
        raise CheckpointError(
            f"{directory} has only {pickles[0]}; such a file can run any code when it is opened, so foretell opens "
            f"none: get {WEIGHTS} of the same model"
        )
    raise CheckpointError(f"{directory} has no weights: neither {WEIGHTS} nor {WEIGHTS_INDEX}")


def read_shards(directory: Path) -> dict[str, StoredTensor]:
    """The tensors listed in the index; index and files must agree exactly."""
    path = directory / WEIGHTS_INDEX
    weight_map = read_json(path).get("weight_map")
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


def read_config(directory: Path) -> tuple[Family, ModelConfig, list[str]]:
    """The family, the configuration, and notes on fields of the config.json that were not used."""
    path = directory / CONFIG
    values = read_json(path)
    kind = values.get("model_type")
    if not isinstance(kind, str) or kind not in FAMILIES:
        # No "did you mean": mamba is not llama, although the names are similar
        raise CheckpointError(
            f"{path} has model_type {str(kind)[:80]!r}, which foretell cannot read{describe_unknown(kind, FAMILIES)}"
        )
    try:
        config, notes = read_settings(FAMILIES[kind], values)
    except ConfigError as error:
        raise CheckpointError(f"{path}: {error}") from None
    return FAMILIES[kind], config, [f"{CONFIG}: {note}" for note in notes]


def find_weights(directory: Path, family: Family, config: ModelConfig) -> dict[str, StoredTensor]:
    """The tensors that the configuration requires, with checked names and shapes; no data is read."""
    stored = {full_name(family, name): tensor for name, tensor in _without_buffers(directory, family).items()}
    check_task(directory, stored)
    check_depth(config, len(stored), directory)  # before listing names for an absurd number of layers
    try:
        expected = {pairing.theirs: pairing.shape for pairing in pairings(family, config)}
    except ConfigError as error:
        raise CheckpointError(f"{directory / CONFIG}: {error}") from None
    check_shapes(stored, expected, directory)
    copied = f"{family.head}.weight" if config.tie_embeddings else ""
    for name in stored:
        if name not in expected and name != copied:
            starred_name, known = starred(name[:200]), {starred(each) for each in expected}
            why = f"that a {family.name} does not{did_you_mean(starred_name, known)}"
            if starred_name in known:
                why = f"beyond the {counted(config.num_layers, 'layer')} of its {CONFIG}"
            raise CheckpointError(f"{directory} has a weight '{stored[name].name[:80]}' {why}")
    return stored


def check_task(directory: Path, stored: Mapping[str, StoredTensor]) -> None:
    """Refuse a model with a head for another task than language modelling."""
    for tensor in stored.values():
        if tensor.name.split(".")[0] in OTHER_HEADS:
            raise CheckpointError(
                f"{directory} has the weight '{tensor.name[:80]}', the head of a classifier or another task; foretell "
                "reads language models"
            )


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
    """The name with the prefix, which trunk-only files leave out; transformers 5 has one name for all heads."""
    if name.startswith(f"{HEAD}."):
        return name.replace(HEAD, family.head, 1)
    return name if name.startswith((family.prefix, f"{family.head}.")) else f"{family.prefix}{name}"
