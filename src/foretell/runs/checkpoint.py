"""A checkpoint: a saved model and all that training needs to resume, in one directory."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from foretell.errors import CheckpointError
from foretell.files import (
    REPLACED,
    new_directory,
    read_json,
    remove_directory,
    remove_leftovers,
    replaced_name,
    sha256,
    to_json,
    write_json,
)
from foretell.saved_model import open_tensors, save_tensors

OPTIMIZER, TRAINING, MANIFEST = "optimizer.safetensors", "training.json", "manifest.json"
FORMAT = 1


@dataclass(frozen=True)
class Checkpoint:
    """One complete checkpoint directory, `step-000123`."""

    directory: Path

    @property
    def step(self) -> int:
        return int(self.directory.name.removeprefix("step-").removesuffix(REPLACED))

    def training(self) -> dict[str, Any]:
        """The training state at the time of saving: step, tokens, seed, losses, fingerprints."""
        return read_json(self.directory / TRAINING)

    def verify(self, only: tuple[str, ...] = ()) -> None:
        """Compare every file (or only some) with the manifest; a `CheckpointError` names the first that differs."""
        files = read_manifest(self.directory)
        for name in only:
            if name not in files:
                raise CheckpointError(f"{self.directory / MANIFEST} is damaged: it does not name {name}")
        for name, expected in files.items():
            if not only or name in only:
                check_file(self.directory, name, expected)

    def load_optimizer(self, optimizer: torch.optim.Optimizer, model: nn.Module) -> None:
        """Restore the optimizer's state of the weights of `model` that are trained."""
        path = self.directory / OPTIMIZER
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
        files = {path.name: describe_file(path) for path in sorted(temporary.iterdir())}
        write_json(temporary / MANIFEST, {"format": FORMAT, "files": files})
    return Checkpoint(final)


def optimizer_tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The optimizer's state of the trained weights as `<weight path>.<moment>` -> tensor."""
    return {
        f"{path}.{moment}": value.detach().cpu().contiguous()
        for path, weight in model.named_parameters()
        if weight.requires_grad
        for moment, value in optimizer.state[weight].items()
    }


def describe_file(path: Path) -> dict[str, Any]:
    """A file's entry in the manifest."""
    return {"bytes": path.stat().st_size, "sha256": sha256(path)}


def read_manifest(directory: Path) -> dict[str, dict[str, Any]]:
    """The entry of every file of a checkpoint; a manifest that is not as it was written is a `CheckpointError`."""
    path = directory / MANIFEST
    manifest = read_json(path)
    files = manifest.get("files")
    if manifest.get("format") != FORMAT or not isinstance(files, dict):
        raise CheckpointError(f"{path} is damaged or of another version")
    for name in files:
        if (directory / name).parent != directory:
            raise CheckpointError(f"{path} names '{name}', which is not a file of this checkpoint")
    # Comparing the text also detects damage that JSON ignores: white space, a repeated key, an escaped letter
    if path.read_text(encoding="utf-8") != to_json(manifest) or not {OPTIMIZER, TRAINING} <= files.keys():
        raise CheckpointError(f"{path} is damaged: it is not as it was written")
    return files


def check_file(directory: Path, name: str, expected: dict[str, Any]) -> None:
    """Compare a file with its entry in the manifest."""
    path = directory / name
    if not path.is_file():
        raise CheckpointError(f"{path} is missing: {directory / MANIFEST} names it")
    try:
        actual = describe_file(path)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror or error}") from error
    if actual != expected:
        raise CheckpointError(f"{path} is damaged: it does not match its entry in {directory / MANIFEST}")


def list_checkpoints(folder: Path) -> list[Checkpoint]:
    """All complete checkpoints, oldest first; one that was being replaced counts if its successor is missing."""
    paths = sorted(folder.glob("step-*")) if folder.is_dir() else []
    names = {path.name for path in paths}
    return sorted(
        (
            Checkpoint(path)
            for path in paths
            if (plain := path.name.removesuffix(REPLACED)).removeprefix("step-").isdigit()
            and (path.name == plain or plain not in names)
        ),
        key=lambda checkpoint: checkpoint.step,
    )


def best_checkpoint(checkpoints: list[Checkpoint]) -> Checkpoint:
    """The checkpoint with the lowest validation loss; without any validation loss, the last."""
    return min(checkpoints, key=lambda checkpoint: (validation_loss(checkpoint), -checkpoint.step))


def validation_loss(checkpoint: Checkpoint) -> float:
    """The validation loss of a checkpoint, infinity if it has none that can be read."""
    try:
        value = checkpoint.training().get("validation_loss")
    except CheckpointError:
        return float("inf")
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else float("inf")


def prune(folder: Path, keep: int, newest: int | None = None) -> None:
    """Delete all but the last `keep` and the best, and what interrupted saves left behind.

    Checkpoints after step `newest` are deleted too: they were damaged, and training resumed from an earlier one.
    """
    checkpoints = list_checkpoints(folder)
    valid = [checkpoint for checkpoint in checkpoints if newest is None or checkpoint.step <= newest]
    kept = {checkpoint.step for checkpoint in valid[-keep:]} | {best_checkpoint(valid).step}
    for checkpoint in checkpoints:
        if checkpoint.step in kept:
            settle(checkpoint)
        else:
            remove_directory(checkpoint.directory)
    remove_leftovers(folder)


def settle(checkpoint: Checkpoint) -> None:
    """Finish the replacement of a checkpoint where the process was killed meanwhile."""
    plain = checkpoint.directory.with_name(checkpoint.directory.name.removesuffix(REPLACED))
    if checkpoint.directory != plain:
        checkpoint.directory.rename(plain)
    elif replaced_name(plain).exists():
        remove_directory(replaced_name(plain))
