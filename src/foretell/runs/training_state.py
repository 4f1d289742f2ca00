"""Save and load what a training needs to resume: the model, the optimizer's state, the training state."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from foretell.errors import CheckpointError
from foretell.files import new_directory, write_json
from foretell.manifest import write_manifest
from foretell.runs.checkpoint import OPTIMIZER, TRAINING, Checkpoint
from foretell.saved_model import open_tensors, save_tensors


def save_checkpoint(
    folder: Path,
    step: int,
    write_model: Callable[[Path], None],
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    training: dict[str, Any],
) -> Checkpoint:
    """Write `folder/step-000123` completely or not at all, replacing an older one of the same step.

    `write_model` writes the files of the model into a directory; `model` names the weights in the optimizer's file.
    """
    final = folder / f"step-{step:06d}"
    with new_directory(final) as temporary:
        write_model(temporary)
        save_tensors(temporary / OPTIMIZER, optimizer_tensors(model, optimizer))
        write_json(temporary / TRAINING, training)
        write_manifest(temporary)
    return Checkpoint(final)


def optimizer_tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The optimizer's state of the trained weights as `<weight path>.<moment>` -> tensor."""
    return {
        f"{path}.{moment}": value.detach().cpu().contiguous()
        for path, weight in model.named_parameters()
        if weight.requires_grad
        for moment, value in optimizer.state[weight].items()
    }


def load_optimizer(checkpoint: Checkpoint, optimizer: torch.optim.Optimizer, model: nn.Module) -> None:
    """Restore the optimizer's state of the weights of `model` that are trained, from a checkpoint."""
    path = checkpoint.directory / OPTIMIZER
    moments = read_moments(path)
    trained = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
    if missing := sorted(set(trained) - set(moments)):
        raise CheckpointError(f"{path} has nothing for '{missing[0]}'")
    if unknown := sorted(set(moments) - set(trained)):
        raise CheckpointError(f"{path} has moments for '{unknown[0]}', which this run does not train")
    for name, weight in trained.items():
        optimizer.state[weight] = {moment: value.to(weight.device) for moment, value in moments[name].items()}


def read_moments(path: Path) -> dict[str, dict[str, Tensor]]:
    """The optimizer's file as weight path -> moment -> tensor."""
    moments: dict[str, dict[str, Tensor]] = {}
    with open_tensors(path) as file:
        for key in file.keys():  # noqa: SIM118
            weight, _, moment = key.rpartition(".")
            moments.setdefault(weight, {})[moment] = file.get_tensor(key).clone()
    return moments
