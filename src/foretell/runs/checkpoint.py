"""A checkpoint: a saved model and all that training needs to go on as if it had never stopped."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

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
from foretell.language_model import CONFIG, TOKENIZER, WEIGHTS, open_tensors, save_model, save_tensors
from foretell.model.decoder import Decoder
from foretell.text import Tokenizer

OPTIMIZER, TRAINING, MANIFEST = "optimizer.safetensors", "training.json", "manifest.json"
FORMAT = 1
NEEDED = {WEIGHTS, CONFIG, TOKENIZER, OPTIMIZER, TRAINING}
HASH_DIGITS = 64


@dataclass(frozen=True)
class Checkpoint:
    """One complete checkpoint directory, `step-000123`."""

    directory: Path

    @property
    def step(self) -> int:
        return int(self.directory.name.removeprefix("step-").removesuffix(REPLACED))

    def training(self) -> dict[str, Any]:
        """Step, tokens, seed, losses and the tokenizer's fingerprint at the time of saving."""
        return read_json(self.directory / TRAINING)

    def verify(self, only: tuple[str, ...] = ()) -> None:
        """Hash every file (or only some) against the manifest; a `CheckpointError` names the first that differs."""
        for name, expected in read_manifest(self.directory).items():
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


def read_manifest(directory: Path) -> dict[str, dict[str, Any]]:
    """The entry of every file of a checkpoint; a manifest that is not just as it was written is a `CheckpointError`."""
    path = directory / MANIFEST
    manifest = read_json(path)
    files = manifest.get("files")
    if manifest.get("format") != FORMAT or not isinstance(files, dict):
        raise CheckpointError(f"{path} is damaged or of another version")
    for name in files:
        if (directory / name).parent != directory:
            raise CheckpointError(f"{path} names '{name}', which is no file of this checkpoint")
    # Comparing the text notices what JSON does not mind: white space, a key twice, an escaped letter
    if (
        path.read_text(encoding="utf-8") != to_json(manifest)
        or NEEDED - set(files)
        or not all(map(is_entry, files.values()))
    ):
        raise CheckpointError(f"{path} is damaged: it is not as it was written")
    return files


def is_entry(value: Any) -> bool:
    """Does a value of a manifest describe a file?"""
    if not isinstance(value, dict) or value.keys() != {"bytes", "sha256"}:
        return False
    return type(value["bytes"]) is int and isinstance(value["sha256"], str) and len(value["sha256"]) == HASH_DIGITS


def check_file(directory: Path, name: str, expected: dict[str, Any]) -> None:
    """Compare a file with its entry in the manifest."""
    path = directory / name
    if not path.is_file():
        raise CheckpointError(f"{path} is missing")
    try:
        found = describe_file(path)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror or error}") from error
    if found == expected:
        return
    # The hash of another content agrees in 4 of its 64 digits by chance: where most agree, the entry is what changed
    if sum(map(str.__eq__, found["sha256"], expected["sha256"])) > HASH_DIGITS // 2:
        raise CheckpointError(f"{directory / MANIFEST} is damaged: its entry of {name} is not as it was written")
    raise CheckpointError(f"{path} is damaged: its content is not what was saved")


def list_checkpoints(folder: Path) -> list[Checkpoint]:
    """All complete checkpoints, oldest first; one that was being replaced counts where its successor is missing."""
    found = sorted(folder.glob("step-*")) if folder.is_dir() else []
    names = {path.name for path in found}
    return sorted(
        (
            Checkpoint(path)
            for path in found
            if (plain := path.name.removesuffix(REPLACED)).removeprefix("step-").isdigit()
            and (path.name == plain or plain not in names)
        ),
        key=lambda one: one.step,
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


def prune(folder: Path, keep: int, newest: int | None = None) -> None:
    """Delete all but the last `keep` and the best, and what interrupted saves left behind.

    What lies beyond step `newest` goes too: training fell back behind it, since it was damaged, and took its place.
    """
    checkpoints = list_checkpoints(folder)
    valid = [one for one in checkpoints if newest is None or one.step <= newest]
    kept = {one.step for one in valid[-keep:]} | {best_checkpoint(valid).step}
    for checkpoint in checkpoints:
        if checkpoint.step in kept:
            settle(checkpoint)
        else:
            remove_directory(checkpoint.directory)
    remove_leftovers(folder)


def settle(checkpoint: Checkpoint) -> None:
    """Finish what a process that was killed while it replaced a checkpoint left undone."""
    plain = checkpoint.directory.with_name(checkpoint.directory.name.removesuffix(REPLACED))
    if checkpoint.directory != plain:
        checkpoint.directory.rename(plain)
    elif replaced_name(plain).exists():
        remove_directory(replaced_name(plain))
