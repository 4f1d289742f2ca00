"""A checkpoint directory and its manifest; the choice of the best checkpoint and of those to keep. Imports no torch."""

from __future__ import annotations

import logging
import math
import re
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from foretell.errors import CheckpointError
from foretell.storage.files import (
    CONFIG,
    REPLACED,
    TOKENIZER_FILE,
    WEIGHTS,
    new_directory,
    read_json,
    remove_directory,
    remove_leftovers,
    replaced_name,
    write_json,
)
from foretell.storage.manifest import MANIFEST, Manifest, write_manifest

OPTIMIZER, TRAINING = "optimizer.safetensors", "training.json"
# A complete checkpoint, or the old one while it is being replaced; earlier versions wrote the last form
NAME = re.compile(rf"(?:{re.escape(REPLACED)})?step-(?:\d{{6}}|[1-9]\d{{6,}})|step-\d{{6,}}\.replaced")
SHARD = re.compile(r"optimizer-(\d{5})-of-(\d{5})\.safetensors")  # the state of one of several processes

logger = logging.getLogger(__name__)
warn_once = cache(logger.warning)  # a command looks for the best and the newest checkpoint several times


@dataclass(frozen=True)
class Checkpoint:
    """One complete checkpoint directory, `step-000123`."""

    directory: Path

    @property
    def step(self) -> int:
        return int(self.directory.name.removesuffix(".replaced").rpartition("-")[2])

    @property
    def final(self) -> Path:
        """Its path when no replacement is under way."""
        return self.directory.with_name(f"step-{self.step:06d}")

    def training(self) -> dict[str, Any]:
        """The training state at the time of saving: step, tokens, seed, losses, fingerprints.

        It decides which checkpoint is the best, so it is always compared with the manifest.
        """
        self.verify(only=(TRAINING,))
        return read_json(self.directory / TRAINING)

    def verify(self, only: tuple[str, ...] = ()) -> None:
        """Compare every file (or only some) with the manifest; a `CheckpointError` names the first that differs."""
        manifest = self.manifest()
        manifest.require(only)
        manifest.check(only or None)

    def replace_json(self, name: str, value: dict[str, Any]) -> None:
        """Replace a JSON file and its entry in the manifest; a crash leaves the checkpoint as it was or replaced."""
        self.verify()  # otherwise the new manifest would accept damage
        with new_directory(self.directory) as temporary:
            shutil.copytree(self.directory, temporary, dirs_exist_ok=True)
            write_json(temporary / name, value)
            write_manifest(temporary, self.manifest().files)  # not what the user put there

    def manifest(self) -> Manifest:
        """The sizes and digests of its files; a `CheckpointError` if the manifest is missing or damaged."""
        if not (self.directory / MANIFEST).exists():
            raise CheckpointError(
                f"{self.directory / MANIFEST} is missing, so the checkpoint cannot be checked; a copy without "
                f"{TRAINING} and {OPTIMIZER} is read as a plain model"
            )
        manifest = Manifest.read(self.directory)
        manifest.require((TRAINING,))
        manifest.require(optimizer_files(manifest.files))
        return manifest

    def own_files(self) -> set[Path]:
        """The files that its manifest names; without a readable manifest, those that every checkpoint has."""
        try:
            names = [MANIFEST, *Manifest.read(self.directory).files]
        except CheckpointError:
            shards = [path.name for path in self.directory.iterdir() if SHARD.fullmatch(path.name)]
            names = [MANIFEST, CONFIG, WEIGHTS, TOKENIZER_FILE, TRAINING, OPTIMIZER, *shards]
        return {self.directory / name for name in names}

    def other_files(self) -> list[Path]:
        """Everything else in its directory, which is the user's."""
        return sorted(set(self.directory.iterdir()) - self.own_files())

    def carry_others(self, directory: Path) -> None:
        """Copy the files of the user into the directory of a new checkpoint."""
        for path in self.other_files():
            if (directory / path.name).exists():  # without a readable manifest, a file of ours
                continue
            copy = shutil.copytree if path.is_dir() else shutil.copy2
            copy(path, directory / path.name)


def is_complete(checkpoint: Checkpoint, steps: int, minutes: float | None) -> bool:
    """True for the last checkpoint of a training of `steps`, or of `minutes` (its share done is 1)."""
    if minutes is None:
        return checkpoint.step >= steps
    return checkpoint.training().get("progress", {}).get("share", 0.0) >= 1


def is_checkpoint(directory: Path) -> bool:
    """True for a directory that training saved, even without its manifest."""
    return any((directory / name).exists() for name in (TRAINING, OPTIMIZER)) or any(directory.glob("optimizer-*-of-*"))


def optimizer_files(names: Iterable[str]) -> list[str]:
    """The files with the optimizer's state among these names, completed to all shards if one is there."""
    matches = [match for match in map(SHARD.fullmatch, names) if match]
    if not matches:
        return [OPTIMIZER]
    size = max(int(match[2]) for match in matches)
    return [f"optimizer-{number:05}-of-{size:05}.safetensors" for number in range(1, size + 1)]


def list_checkpoints(folder: Path) -> list[Checkpoint]:
    """All complete checkpoints, oldest first; one that was being replaced counts if its successor is missing."""
    paths = [path for path in folder.iterdir() if NAME.fullmatch(path.name)] if folder.is_dir() else []
    checkpoints = list(map(Checkpoint, paths))
    final_steps = {each.step for each in checkpoints if each.directory == each.final}
    listed = [each for each in checkpoints if each.directory == each.final or each.step not in final_steps]
    return sorted(listed, key=lambda checkpoint: checkpoint.step)


def newest_intact(checkpoints: list[Checkpoint]) -> Checkpoint | None:
    """The last one that matches its manifest, or None; each damaged one is a warning in the log."""
    for checkpoint in reversed(checkpoints):
        try:
            checkpoint.verify()
        except CheckpointError as error:
            warn_once(f"{error}; other checkpoints are preferred")
            continue
        return checkpoint
    return None


def best_checkpoint(checkpoints: list[Checkpoint]) -> Checkpoint:
    """The checkpoint with the lowest validation loss; without any validation loss, the last."""
    return min(checkpoints, key=lambda checkpoint: (validation_loss(checkpoint), -checkpoint.step))


def validation_loss(checkpoint: Checkpoint) -> float:
    """The validation loss of a checkpoint, infinity if it has none; damage is a warning in the log, and infinity."""
    try:
        value = checkpoint.training().get("validation_loss")
    except CheckpointError as error:
        warn_once(f"{error}; other checkpoints are preferred")
        return float("inf")
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else float("inf")


def prune(folder: Path, keep: int, newest: int | None = None, every: int = 1) -> None:
    """Keep the best, the newest, and others whose step is a multiple of `every`, up to `keep` in all; delete the rest.

    Also deletes leftovers of interrupted saves, and checkpoints after step `newest`, found damaged on resuming. A
    checkpoint with files of the user is kept.
    """
    checkpoints = list_checkpoints(folder)
    valid = [checkpoint for checkpoint in checkpoints if newest is None or checkpoint.step <= newest]
    regular = [checkpoint.step for checkpoint in valid[:-1] if checkpoint.step % every == 0]
    kept = {*regular[max(0, len(regular) + 1 - keep) :], valid[-1].step, best_checkpoint(valid).step}
    for checkpoint in checkpoints:
        if checkpoint.step in kept:
            settle(checkpoint)
        elif not checkpoint.other_files():
            remove_directory(checkpoint.directory)
    remove_leftovers(folder, is_locked=True)


def settle(checkpoint: Checkpoint) -> None:
    """Finish the replacement of a checkpoint during which the process was killed."""
    if checkpoint.directory != checkpoint.final:
        checkpoint.directory.rename(checkpoint.final)
    elif replaced_name(checkpoint.final).exists():
        remove_directory(replaced_name(checkpoint.final))
