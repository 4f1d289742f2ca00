"""Save and load what a training needs to resume: the model, the optimizer's state, the training state."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from foretell.distributed.world import ALONE, World
from foretell.errors import CheckpointError
from foretell.files import new_directory, write_json
from foretell.manifest import write_manifest
from foretell.runs.checkpoint import OPTIMIZER, TRAINING, Checkpoint, optimizer_files
from foretell.runs.optimizer_files import load_into, read_places, save_shards
from foretell.safetensors_files import save_tensors


@dataclass(frozen=True)
class CheckpointParts:
    """The contents of a checkpoint.

    `write_model` writes the files of the model into a directory; `model` names the weights in the optimizer's file;
    `training` is the content of training.json.
    """

    write_model: Callable[[Path], None]
    model: nn.Module
    optimizer: torch.optim.Optimizer
    training: dict[str, Any]


def save_checkpoint(folder: Path, step: int, parts: CheckpointParts, world: World = ALONE) -> Checkpoint:
    """Write `folder/step-000123` completely or not at all, replacing an older one of the same step.

    All processes call it, and return when it is written.
    """
    final = folder / f"step-{step:06d}"
    if world.is_first:
        with new_directory(final) as temporary:
            world.decide(lambda: str(temporary))
            write_parts(temporary, parts, world)
            write_json(temporary / TRAINING, parts.training)
            write_manifest(temporary)
    else:
        write_parts(Path(world.decide(str)), parts, world)
    return Checkpoint(Path(world.decide(lambda: str(final))))


def write_parts(directory: Path, parts: CheckpointParts, world: World) -> None:
    """Write the model and the optimizer's state: the first process what is whole, each one its shards."""
    parts.write_model(directory)
    tensors = optimizer_tensors(parts.model, parts.optimizer)
    if any(isinstance(tensor, DTensor) for tensor in tensors.values()):
        save_shards(directory, tensors, world.rank, world.size)
    elif world.is_first:
        save_tensors(directory / OPTIMIZER, {key: value.cpu().contiguous() for key, value in tensors.items()})
    world.wait()  # until all shards are there


def optimizer_tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The optimizer's state of the trained weights as `<weight path>.<moment>` -> tensor."""
    return {
        f"{path}.{moment}": value.detach()
        for path, weight in model.named_parameters()
        if weight.requires_grad
        for moment, value in optimizer.state[weight].items()
    }


def load_optimizer(checkpoint: Checkpoint, optimizer: torch.optim.Optimizer, model: nn.Module) -> None:
    """Restore the optimizer's state of the weights of `model` that are trained, from a checkpoint.

    Of weights in shards each process reads its part; any number of processes can have written it.
    """
    stored, _ = read_places(checkpoint.directory)
    trained = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
    names = optimizer_files(each.name for each in checkpoint.directory.iterdir())
    path, known = checkpoint.directory / names[0], {key.rpartition(".")[0] for key in stored}
    if missing := sorted(set(trained) - known):
        raise CheckpointError(f"{path} has nothing for '{missing[0]}'")
    if unknown := sorted(known - set(trained)):
        raise CheckpointError(f"{path} has moments for '{unknown[0]}', which this run does not train")
    tensors = {key: empty_moment(key, entry.size, trained) for key, entry in stored.items()}
    load_into(checkpoint.directory, tensors)
    for key, tensor in tensors.items():
        name, _, moment = key.rpartition(".")
        optimizer.state[trained[name]][moment] = tensor.to(trained[name].device)


def empty_moment(key: str, size: torch.Size, trained: Mapping[str, Tensor]) -> Tensor:
    """A tensor to read a moment into, spread over the processes like its weight; or a number."""
    weight = trained[key.rpartition(".")[0]]
    if size and size != weight.shape:
        raise CheckpointError(f"the checkpoint's '{key}' is {tuple(size)}, and the weight {tuple(weight.shape)}")
    return torch.empty_like(weight, requires_grad=False) if size and isinstance(weight, DTensor) else torch.empty(size)
