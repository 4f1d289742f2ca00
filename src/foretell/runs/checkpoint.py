"""A checkpoint: a saved model and all that training needs to go on as if it had never stopped."""

from __future__ import annotations

import math
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from foretell.errors import CheckpointError
from foretell.model.decoder import Decoder
from foretell.runs.files import TEMPORARY, new_directory, read_json, sha256, write_json
from foretell.runs.saved_model import open_tensors, save_model, save_tensors
from foretell.text import Tokenizer

OPTIMIZER, TRAINING, MANIFEST = "optimizer.safetensors", "training.json", "manifest.json"
FORMAT = 1


@dataclass(frozen=True)
class Checkpoint:
    """One complete checkpoint directory, `step-000123`."""

    directory: Path

    @property
    def step(self) -> int:
        return int(self.directory.name.removeprefix("step-"))

    def training(self) -> dict[str, Any]:
        """Step, tokens, seed, losses and the tokenizer's fingerprint at the time of saving."""
        return read_json(self.directory / TRAINING)

    def verify(self, only: tuple[str, ...] = ()) -> None:
        """Hash every file (or only some) against the manifest; a `CheckpointError` names the first that differs."""
        manifest = read_json(self.directory / MANIFEST)
        if manifest.get("format") != FORMAT or not isinstance(manifest.get("files"), dict):
            raise CheckpointError(f"{self.directory / MANIFEST} is damaged or of another version")
        for name, expected in manifest["files"].items():
            if not only or name in only:
                check_file(self.directory, name, expected)

    def load_optimizer(self, optimizer: torch.optim.Optimizer, paths: dict[str, Tensor]) -> None:
        """Put the saved moments back beside the parameters, which are given by path."""
        moments = read_moments(self.directory / OPTIMIZER)
        if missing := sorted(set(paths) - set(moments)):
            raise CheckpointError(f"{self.directory / OPTIMIZER} has nothing for '{missing[0]}'")
        for path, parameter in paths.items():
            optimizer.state[parameter] = {moment: value.to(parameter.device) for moment, value in moments[path].items()}


def read_moments(path: Path) -> dict[str, dict[str, Tensor]]:
    """An optimizer's file as parameter path -> moment -> tensor."""
    moments: dict[str, dict[str, Tensor]] = {}
    with open_tensors(path) as file:
        for key in file.keys():  # noqa: SIM118
            parameter, _, moment = key.rpartition(".")
            moments.setdefault(parameter, {})[moment] = file.get_tensor(key).clone()
    return moments


def save_checkpoint(
    folder: Path,
    step: int,
    decoder: Decoder,
    tokenizer: Tokenizer,
    optimizer: torch.optim.Optimizer,
    training: dict[str, Any],
) -> Checkpoint:
    """Write `folder/step-000123` whole or not at all; an older one of the same step is replaced."""
    final = folder / f"step-{step:06d}"
    with new_directory(final) as temporary:
        save_model(temporary, decoder, tokenizer)
        save_tensors(temporary / OPTIMIZER, optimizer_tensors(decoder, optimizer))
        write_json(temporary / TRAINING, training)
        files = {path.name: describe_file(path) for path in sorted(temporary.iterdir())}
        write_json(temporary / MANIFEST, {"format": FORMAT, "files": files})
    return Checkpoint(final)


def optimizer_tensors(decoder: Decoder, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The optimizer's state as `<parameter path>.<moment>` -> tensor."""
    return {
        f"{path}.{moment}": value.detach().cpu().contiguous()
        for path, parameter in decoder.named_parameters()
        for moment, value in optimizer.state[parameter].items()
    }


def describe_file(path: Path) -> dict[str, Any]:
    """A file's entry in the manifest."""
    return {"bytes": path.stat().st_size, "sha256": sha256(path)}


def check_file(directory: Path, name: str, expected: Any) -> None:
    """Compare a file with its entry in the manifest."""
    path = directory / name
    if path.parent != directory:
        raise CheckpointError(f"{directory / MANIFEST} names '{name}', which is no file of this checkpoint")
    if not path.is_file():
        raise CheckpointError(f"{path} is missing")
    if describe_file(path) != expected:
        raise CheckpointError(f"{path} is damaged: its content is not what was saved")


def list_checkpoints(folder: Path) -> list[Checkpoint]:
    """All complete checkpoints, oldest first."""
    found = folder.glob("step-*") if folder.is_dir() else []
    return sorted(
        (Checkpoint(path) for path in found if path.name.removeprefix("step-").isdigit()), key=lambda one: one.step
    )


def best_checkpoint(checkpoints: list[Checkpoint]) -> Checkpoint:
    """The one with the lowest validation loss; of those without any, the last."""
    return min(checkpoints, key=lambda one: (validation_loss(one), -one.step))


def validation_loss(checkpoint: Checkpoint) -> float:
    """The validation loss when the checkpoint was written, infinity where none is readable."""
    try:
        value = checkpoint.training().get("validation_loss")
    except CheckpointError:
        return float("inf")
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else float("inf")


def prune(folder: Path, keep: int) -> None:
    """Delete all but the last `keep` and the best, and what interrupted saves left behind."""
    checkpoints = list_checkpoints(folder)
    kept = {one.step for one in checkpoints[-keep:]} | {best_checkpoint(checkpoints).step}
    for checkpoint in checkpoints:
        if checkpoint.step not in kept:
            shutil.rmtree(checkpoint.directory)
    for leftover in folder.glob(f"{TEMPORARY}*"):
        shutil.rmtree(leftover, ignore_errors=True)
