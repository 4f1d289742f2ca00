"""LoRA updates in peft's layout: adapter_config.json and adapter_model.safetensors.

peft uses the family's names of layers. If a family fuses several of our layers (GPT-2's query, key and value), one of
their updates is several of ours: when reading, each gets its rows of B and a copy of A; when writing, the A's are
stacked and the B's form a block diagonal, so the rank grows and the product is the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.numpy import load_file
from torch import Tensor

from foretell.config.model import ModelConfig
from foretell.convert.families import FAMILIES, choose_family, differences
from foretell.convert.family import Family, Pairing, Transpose, outputs_in_our_order, outputs_in_their_order, pairings
from foretell.errors import CheckpointError, OutputError, UsageError
from foretell.language_model import LanguageModel
from foretell.model.lora import LoRAConfig, lora_layers, set_updates
from foretell.saved_model.config_file import GGUF_PAIRS
from foretell.saved_model.layer_parts import LORA, LoRAPart, add_adapters
from foretell.storage.files import ADAPTER_CONFIG, check_new, new_directory, read_json, write_json
from foretell.storage.manifest import write_manifest
from foretell.storage.safetensors_files import check_finite, read_tensor, save_tensors
from foretell.storage.safetensors_header import read_header

ADAPTER_WEIGHTS = "adapter_model.safetensors"
PREFIX = "base_model.model."
A, B = "lora_A.weight", "lora_B.weight"
# Fields that change what an adapter computes, and the values that we can express
EXPRESSIBLE: dict[str, tuple[Any, ...]] = {
    "peft_type": ("LORA",),
    "bias": ("none",),
    "use_dora": (False, None),
    "modules_to_save": (None, []),
    "layer_replication": (None, []),
    "lora_bias": (False, None),
    "trainable_token_indices": (None, []),
}

Updates = dict[str, tuple[Tensor, Tensor]]  # A (rank, inputs) and B (outputs, rank), by the path of the layer


@dataclass(frozen=True)
class PeftUpdate:
    """The update of one of their layers: A (rank, inputs), B (outputs, rank), and the factor of B A."""

    a: Tensor
    b: Tensor
    scale: float


def fused_layers(family: Family, config: ModelConfig) -> dict[str, Pairing]:
    """Their linear layers by name, each with our layers that it contains."""
    suffix = ".weight"
    return {
        pairing.theirs.removesuffix(suffix): pairing
        for pairing in pairings(family, config)
        if pairing.theirs.endswith(suffix) and len(pairing.shape) == 2
    }


def is_adapter(directory: Path) -> bool:
    return (directory / ADAPTER_CONFIG).is_file()


def base_of(directory: Path) -> str:
    """The base model in an adapter's configuration; a CheckpointError if it is missing."""
    name = read_json(directory / ADAPTER_CONFIG).get("base_model_name_or_path")
    if not isinstance(name, str) or not name:
        raise CheckpointError(
            f"{directory} is an adapter and does not name its base model; give the base as MODEL and --adapter "
            f"{directory} (convert), or foretell.load(base, adapter=...)"
        )
    return name


def add_peft_adapter(model: LanguageModel, directory: Path) -> LanguageModel:
    """The model with the adapter's updates in its decoder, kept separately as the part `lora`.

    Raises CheckpointError for an adapter that is damaged, not LoRA, or for another model.
    """
    settings = read_json(directory / ADAPTER_CONFIG)
    for name, values in EXPRESSIBLE.items():
        if settings.get(name, values[0]) not in values:
            raise CheckpointError(
                f"{directory / ADAPTER_CONFIG} has {name} = {settings[name]!r}, which foretell cannot express"
            )
    theirs = read_updates(directory, settings)
    layers = layers_named(model.config, theirs, directory)
    rank = max(len(update.a) for update in theirs.values())
    updates: Updates = {}
    for name, update in theirs.items():
        updates |= split_update(layers[name], model.config, padded(update, rank), directory)
    lora = LoRAConfig(rank=rank, alpha=float(rank), targets=tuple(updates))  # B includes the factor
    part = add_adapters(model.decoder, lora)
    set_updates(model.decoder, updates)
    model.decoder.train(model.decoder.training)
    tuned = model.without_part(GGUF_PAIRS)  # which do not describe it any more
    return replace(tuned, parts={**tuned.parts, LORA: part})


def read_updates(directory: Path, settings: Mapping[str, Any]) -> dict[str, PeftUpdate]:
    """The updates by the names of their layers."""
    path = directory / ADAPTER_WEIGHTS
    stored = read_header(path)
    weights = {name: read_tensor(tensor, torch.float32) for name, tensor in stored.items()}
    check_finite(weights, path, rows=None)
    names = dict.fromkeys(name.removesuffix(f".{A}").removesuffix(f".{B}") for name in weights)
    updates: dict[str, PeftUpdate] = {}
    for name in names:
        a, b = weights.get(f"{name}.{A}"), weights.get(f"{name}.{B}")
        if a is None or b is None or a.dim() != 2 or b.dim() != 2 or len(a) != b.shape[1]:
            raise CheckpointError(f"{path}: '{name[:80]}' is not a pair of {A} (rank, inputs) and {B} (outputs, rank)")
        module = name.removeprefix(PREFIX)
        updates[module] = PeftUpdate(a, b, scale_of(module, len(a), settings, directory))
    if not updates:
        raise CheckpointError(f"{path} holds no updates")
    return updates


def scale_of(module: str, rank: int, settings: Mapping[str, Any], directory: Path) -> float:
    """alpha / rank, or alpha / sqrt(rank) with use_rslora; `alpha_pattern` has exceptions by name."""
    patterns = settings.get("alpha_pattern") or {}
    alpha = next(
        (value for name, value in patterns.items() if module == name or module.endswith(f".{name}")),
        settings.get("lora_alpha"),
    )
    if not isinstance(alpha, int | float) or isinstance(alpha, bool):
        raise CheckpointError(f"{directory / ADAPTER_CONFIG}: lora_alpha must be a number, not {alpha!r}")
    return alpha / (rank**0.5 if settings.get("use_rslora") else rank)


def layers_named(config: ModelConfig, names: Mapping[str, Any], directory: Path) -> dict[str, Pairing]:
    """Our layers for each of their names, from the first family that can express the model and has all names."""
    for family in FAMILIES.values():
        if not differences(config, family):
            layers = fused_layers(family, config)
            if all(name in layers for name in names):
                return layers
    raise CheckpointError(f"{directory} changes layers that this model does not have, such as '{next(iter(names))}'")


def padded(update: PeftUpdate, rank: int) -> PeftUpdate:
    """Pad an update to a larger rank, and multiply B by its factor."""
    more = rank - len(update.a)
    a = torch.cat([update.a, update.a.new_zeros(more, update.a.shape[1])])  # (rank, inputs)
    b = torch.cat([update.b * update.scale, update.b.new_zeros(len(update.b), more)], dim=1)  # (outputs, rank)
    return PeftUpdate(a, b, 1.0)


def split_update(layer: Pairing, config: ModelConfig, update: PeftUpdate, directory: Path) -> Updates:
    """Their update as updates of our layers: each has its rows of B, and the same A."""
    sizes = [shape[0] for shape in layer.shapes]
    if update.b.shape[0] != sum(sizes) or update.a.shape[1] != layer.shapes[0][1]:
        raise CheckpointError(
            f"{directory}: the update of '{layer.theirs}' is for {update.a.shape[1]} inputs and {update.b.shape[0]} "
            f"outputs, and the model has {layer.shapes[0][1]} and {sum(sizes)}; it belongs to another model"
        )
    paths = [path.removesuffix(".weight") for path in layer.ours]
    parts = outputs_in_our_order(layer, config, update.b)
    return {path: (update.a, part) for path, part in zip(paths, parts, strict=True)}


def export_peft(
    model: LanguageModel, target: Path, dtype: torch.dtype = torch.float32, family_name: str | None = None
) -> dict[str, Any]:
    """Write the LoRA updates of a model as a new directory in peft's layout, read them back and compare.

    The model must be loaded without merging its updates. Returns the family, the layers and the largest difference of
    an update. Raises UsageError for a model without updates, ConfigError if no family can express the model.
    """
    model.check_not_quantized("convert")
    check_new(target)
    part = model.parts.get(LORA)
    if not isinstance(part, LoRAPart):
        raise UsageError(f"{model.name} has no LoRA updates; convert the whole model to huggingface")
    if part.settings.also_trained:
        raise UsageError(
            f"{model.name} also trained {', '.join(part.settings.also_trained)}, which an adapter does not contain; "
            "convert the whole model to huggingface"
        )
    family = choose_family(model.config, family_name)
    theirs = dict(fuse_updates(part, family, model.config))
    with new_directory(target) as directory:
        write_json(directory / ADAPTER_CONFIG, adapter_config(part.settings, theirs, family))
        tensors = {f"{PREFIX}{name}.{A}": update.a for name, update in theirs.items()}
        tensors |= {f"{PREFIX}{name}.{B}": update.b for name, update in theirs.items()}
        tensors = {name: tensor.detach().to("cpu", dtype).contiguous() for name, tensor in tensors.items()}
        save_tensors(directory / ADAPTER_WEIGHTS, tensors, {"format": "pt"})
        difference = largest_difference(directory, part, family, model.config) if dtype == torch.float32 else None
        write_manifest(directory)
    return {"family": family.name, "layers": list(theirs), "rank": part.settings.rank, "difference": difference}


def fuse_updates(part: LoRAPart, family: Family, config: ModelConfig) -> Iterator[tuple[str, PeftUpdate]]:
    """Our updates as updates of their layers, by name."""
    layers = lora_layers(part.decoder)
    for name, pairing in fused_layers(family, config).items():
        ours = [layers.pop(path.removesuffix(".weight"), None) for path in pairing.ours]
        a: list[Tensor] = [layer.lora_a for layer in ours if layer is not None]
        b = [
            torch.zeros(outputs, 0) if layer is None else layer.lora_b  # without an update: rows of zeros
            for layer, (outputs, _) in zip(ours, pairing.shapes, strict=True)
        ]
        if a:
            rows = torch.block_diag(*b).split([outputs for outputs, _ in pairing.shapes])
            yield name, PeftUpdate(torch.cat(a), outputs_in_their_order(pairing, config, rows), part.settings.scale)
    if layers:
        raise OutputError(f"{family.name} has no layer for '{next(iter(layers))}'")


def adapter_config(settings: LoRAConfig, updates: Mapping[str, PeftUpdate], family: Family) -> dict[str, Any]:
    """The content of adapter_config.json; layers with other ranks than the common one are in the patterns."""
    others = {name: len(update.a) for name, update in updates.items() if len(update.a) != settings.rank}
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": None,
        "inference_mode": True,
        "r": settings.rank,
        "lora_alpha": settings.alpha,
        "lora_dropout": settings.dropout,
        "target_modules": list(updates),
        "rank_pattern": others,
        "alpha_pattern": {name: settings.scale * rank for name, rank in others.items()},
        "bias": "none",
        # Conv1D, whose matrices are (inputs, outputs)
        "fan_in_fan_out": any(Transpose() in row.transforms for row in family.rows),
        "use_rslora": False,
        "use_dora": False,
        "modules_to_save": None,
    }


@torch.no_grad()
def largest_difference(directory: Path, part: LoRAPart, family: Family, config: ModelConfig) -> float:
    """The largest difference between elements of our B A and of the written one, read by safetensors' NumPy reader."""
    arrays = load_file(directory / ADAPTER_WEIGHTS)
    layers = lora_layers(part.decoder)
    differences = [0.0]
    for name, pairing in fused_layers(family, config).items():
        if f"{PREFIX}{name}.{A}" in arrays:
            written = torch.from_numpy(arrays[f"{PREFIX}{name}.{B}"] @ arrays[f"{PREFIX}{name}.{A}"])
            parts = outputs_in_our_order(pairing, config, written)
            paths = [path.removesuffix(".weight") for path in pairing.ours]
            differences += [
                float((theirs - (layers[path].lora_b @ layers[path].lora_a if path in layers else 0)).abs().max())
                for path, theirs in zip(paths, parts, strict=True)
            ]
    return max(differences)
