"""Export of a model as a Hugging Face directory, with a parity check; and the table of export formats."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import tokenizers
import torch
from torch import Tensor

from foretell.config.model import ModelConfig
from foretell.config.section import check_known
from foretell.convert.config_json import write_settings
from foretell.convert.families import FAMILIES, Families, choose_family
from foretell.convert.family import Family, check_weights, iter_ours, iter_theirs
from foretell.convert.gguf.export import PACKED, PRECISIONS, export_gguf
from foretell.convert.gguf.metadata import ARCHITECTURES
from foretell.convert.huggingface_files import read_config
from foretell.convert.parity import ReadBack, check_parity, report_head, rounding
from foretell.errors import OutputError, UsageError, as_path
from foretell.language_model import LanguageModel, check_model
from foretell.model.init import decoder_with_weights
from foretell.storage.files import (
    CONFIG,
    TOKENIZER_FILE,
    VOCABULARY_LIMIT,
    WEIGHTS,
    WEIGHTS_INDEX,
    check_new,
    new_directory,
    read_text,
    write_json,
)
from foretell.storage.manifest import EXPORT_REPORT, describe_files
from foretell.storage.safetensors_files import save_tensors
from foretell.system.device import WEIGHT_DTYPES, dtype_name
from foretell.text import Tokenizer
from foretell.textbook.attention import Matrix
from foretell.textbook.family import load_weights

SHARD_BYTES = 5 * 10**9
DTYPES = {name: WEIGHT_DTYPES[name] for name in ("float32", "float16", "bfloat16")}


def export_huggingface(
    model: LanguageModel, target: Path, dtype: torch.dtype = torch.float32, family_name: str | None = None
) -> dict[str, Any]:
    """Write a float32 model on the CPU as a new Hugging Face directory; returns the content of its report.

    By default, the first family that can express the model is chosen. Raises ConfigError for a configuration or weight
    that the family cannot express, and OutputError for a missed bound; nothing is written in these cases.
    """
    model = model.with_float_weights("convert")
    check_new(target)
    config = model.decoder.config
    family = choose_family(config, family_name)
    check_weights(family, config, model.decoder.state_dict())
    written = rounded(model, dtype)
    with new_directory(target) as directory:
        write_huggingface(directory, written, family, dtype)
        report = {
            **report_head(family, dtype_name(dtype)),
            **check_parity(read_back(directory), written),
            "rounding": rounding(model, written) if dtype != torch.float32 else None,
            "notes": notes(family.tokenizer_class),
            "files": describe_files(directory.iterdir()),
        }
        write_json(directory / EXPORT_REPORT, report)
    return report


def rounded(model: LanguageModel, dtype: torch.dtype) -> LanguageModel:
    """The model, in float32, with its weights rounded as they will be on disk; overflow is an `OutputError`."""
    weights = {path: weight.detach().to(dtype) for path, weight in model.decoder.named_parameters()}
    for path, weight in weights.items():
        if not weight.isfinite().all():
            name = dtype_name(dtype)
            raise OutputError(f"'{path}' holds values that are not finite in {name}; give another dtype")
    if dtype == torch.float32:
        return model
    decoder = decoder_with_weights(model.decoder.config, {path: weight.float() for path, weight in weights.items()})
    return LanguageModel(decoder.eval(), model.tokenizer, model.name)


def notes(tokenizer_class: str | None) -> list[str]:
    if tokenizer_class is None:
        return []
    return [
        f"transformers 5 builds its own {tokenizer_class} and ignores the tokenizer in this directory; "
        "PreTrainedTokenizerFast.from_pretrained reads it"
    ]


def write_huggingface(
    directory: Path, model: LanguageModel, family: Family, dtype: torch.dtype, shard_bytes: int = SHARD_BYTES
) -> None:
    """Write a model's files into an existing directory. The family must be able to express it (`choose_family`)."""
    config = model.decoder.config
    weights = {path: weight.detach().to("cpu", dtype) for path, weight in model.decoder.named_parameters()}
    write_weights(directory, iter_theirs(family, config, weights), shard_bytes)
    write_json(directory / CONFIG, config_json(family, config, model.tokenizer, dtype))
    write_tokenizer(directory, model.tokenizer, config)
    for path in directory.glob("*.safetensors"):  # the library creates them readable only by their owner
        path.chmod((directory / CONFIG).stat().st_mode)


def config_json(family: Family, config: ModelConfig, tokenizer: Tokenizer, dtype: torch.dtype) -> dict[str, Any]:
    """The content of config.json. Special tokens are explicit, because the families' defaults differ."""
    ends = list(tokenizer.end_ids)
    return {
        "architectures": [family.architecture],
        "model_type": family.name,
        **write_settings(family, config),
        "bos_token_id": tokenizer.start_id,
        "eos_token_id": ends if len(ends) > 1 else tokenizer.end_id,
        "pad_token_id": None,
        "torch_dtype": dtype_name(dtype),
    }


def write_weights(directory: Path, tensors: Iterator[tuple[str, Tensor]], shard_bytes: int) -> None:
    """One safetensors file, or several with an index if it would be larger than `shard_bytes`."""
    shards = split_into_shards(dict(tensors), shard_bytes)
    metadata = {"format": "pt"}  # transformers refuses a file without it
    if len(shards) == 1:
        save_tensors(directory / WEIGHTS, shards[0], metadata)
        return
    weight_map: dict[str, str] = {}
    for index, shard in enumerate(shards, start=1):
        name = f"model-{index:05}-of-{len(shards):05}.safetensors"
        save_tensors(directory / name, shard, metadata)
        weight_map |= dict.fromkeys(shard, name)
    total = sum(tensor.nbytes for shard in shards for tensor in shard.values())
    write_json(directory / WEIGHTS_INDEX, {"metadata": {"total_size": total}, "weight_map": weight_map})


def split_into_shards(tensors: dict[str, Tensor], shard_bytes: int) -> list[dict[str, Tensor]]:
    """Group the tensors in order, with at most `shard_bytes` per group; a larger tensor has its own group."""
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
    """tokenizer.json, and tokenizer_config.json, from which transformers builds the same tokenizer."""
    tokenizer.save(directory / "tokenizer.json")
    special = {"bos_token": tokenizer.start_id, "eos_token": tokenizer.end_id}
    named = {name: tokenizer.piece(token_id) for name, token_id in special.items() if token_id is not None}
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": config.context_length}
    write_json(directory / "tokenizer_config.json", {**settings, "clean_up_tokenization_spaces": False, **named})


def stored_arrays(directory: Path) -> dict[str, Matrix]:
    """All weights of a directory by their stored names, read by the textbook."""
    files = sorted(directory.glob("*.safetensors"))
    return {name: array for file in files for name, array in load_weights(file).items()}


def read_back(directory: Path) -> ReadBack:
    """Configuration, weights and tokenizer from disk, read by other libraries than those that wrote them."""
    family, config, _ = read_config(directory)
    arrays = stored_arrays(directory)
    if not arrays:
        raise OutputError(f"{directory} has no {WEIGHTS}")
    ours = iter_ours(family, config, lambda name: torch.from_numpy(arrays[name]))
    return ReadBack(
        config,
        {path: tensor.numpy() for path, tensor in ours},
        tokenizers.Tokenizer.from_str(read_text(directory / TOKENIZER_FILE, VOCABULARY_LIMIT)),
        f"safetensors {version('safetensors')}, tokenizers {version('tokenizers')}, the textbook in NumPy",
    )


@dataclass(frozen=True)
class Exporter:
    """An export format: its precisions by name, and the default for weights stored in each dtype."""

    export: Callable[..., dict[str, Any]]
    precisions: Mapping[str, Any]
    defaults: Mapping[torch.dtype, str]
    families: Families

    def check_precision(self, format_name: str, name: str) -> None:
        """Raise `UsageError` for a precision that the format does not have."""
        if name not in list(self.precisions):
            raise UsageError(f"{format_name} writes {', '.join(self.precisions)}, not {name}")

    def precision_for(self, model: LanguageModel, name: str | None, stored: torch.dtype) -> Any:
        """The named precision, by default the model's; `stored` is the dtype of its floats on disk."""
        is_packed = PACKED in self.precisions and model.quantization is not None
        return self.precisions[name or (PACKED if is_packed else self.defaults[stored])]


def export(
    model: LanguageModel,
    target: str | Path,
    to: Literal["huggingface", "gguf"] = "huggingface",
    *,
    dtype: str | None = None,
    family: str | None = None,
) -> dict[str, Any]:
    """Write a model for other programs, read it back, compare the two, and return the report (export-report.json).

    target: the new directory, or the new file for gguf. dtype: float32, float16 or bfloat16; for gguf f32, f16, q8_0 or
    packed; by default the model's. family: by default a suitable one. Raises UsageError, and OutputError if the target
    exists.
    """
    check_model(model)
    check_known(to, tuple(EXPORTERS), "format")
    path = as_path("the target", target)
    exporter = EXPORTERS[to]
    if dtype is not None:
        exporter.check_precision(to, dtype)
    return exporter.export(model, path, exporter.precision_for(model, dtype, model.dtype), family)


EXPORTERS: dict[str, Exporter] = {
    "huggingface": Exporter(export_huggingface, DTYPES, {dtype: name for name, dtype in DTYPES.items()}, FAMILIES),
    "gguf": Exporter(
        export_gguf,
        {name: name for name in (*PRECISIONS, PACKED)},
        {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "f32"},
        ARCHITECTURES,
    ),
}
