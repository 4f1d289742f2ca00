"""Checkpoints: written completely or not at all, every damage reported, and the good ones kept."""

from __future__ import annotations

import math
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from foretell.config.training import TrainingConfig
from foretell.errors import CheckpointError, OutputError
from foretell.language_model import load_model
from foretell.model.decoder import Decoder
from foretell.runs.checkpoint import Checkpoint, best_checkpoint, list_checkpoints, prune
from foretell.runs.training_state import load_optimizer
from foretell.training.optimizer import make_optimizer

Save = Callable[..., Checkpoint]

FILES = [
    "config.json",
    "manifest.json",
    "model.safetensors",
    "optimizer.safetensors",
    "tokenizer.json",
    "training.json",
]


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


# --- round trip ------------------------------------------------------------------------------------------------------


def test_a_checkpoint_has_exactly_these_files(save: Save, folder: Path) -> None:
    assert names(save(123).directory) == FILES
    assert names(folder) == ["step-000123"]


def test_weights_moments_and_training_state_load_bit_identical(
    save: Save, decoder: Decoder, optimizer: torch.optim.Optimizer
) -> None:
    checkpoint = save(7, tokens=96, validation_loss=None)
    checkpoint.verify()
    assert checkpoint.step == 7
    assert checkpoint.training() == {"step": 7, "tokens": 96, "validation_loss": None}
    loaded = load_model(checkpoint.directory, for_training=True).decoder
    other = make_optimizer(loaded, TrainingConfig(steps=1))
    load_optimizer(checkpoint, other, loaded)
    for (path, before), (same_path, after) in zip(decoder.named_parameters(), loaded.named_parameters(), strict=True):
        assert path == same_path
        assert torch.equal(before, after)
        moments, restored = optimizer.state[before], other.state[after]
        assert set(restored) == {"step", "exp_avg", "exp_avg_sq"}
        for name, value in moments.items():
            assert torch.equal(restored[name], value)
            assert restored[name].dtype == value.dtype


def test_moments_are_on_the_device_of_their_weights(save: Save, decoder: Decoder) -> None:
    """The counter of steps too: the fused kernel asks for it on the weight's device."""
    checkpoint = save(7)
    optimizer = torch.optim.AdamW(decoder.to("meta").parameters())
    load_optimizer(checkpoint, optimizer, decoder)
    moments = [value for state in optimizer.state.values() for value in state.values()]
    assert {value.device.type for value in moments} == {"meta"}


def test_an_optimizer_file_that_lacks_a_weight_is_refused(save: Save, decoder: Decoder) -> None:
    checkpoint = save(7)
    decoder.trunk.register_parameter("more", torch.nn.Parameter(torch.zeros(1)))
    with pytest.raises(CheckpointError, match=r"optimizer.safetensors has nothing for 'trunk.more'"):
        load_optimizer(checkpoint, torch.optim.AdamW(decoder.parameters()), decoder)


def test_moments_of_a_weight_that_is_frozen_now_are_refused(save: Save, decoder: Decoder) -> None:
    checkpoint = save(7)
    decoder.embed.requires_grad_(False)
    with pytest.raises(CheckpointError, match=r"moments for 'embed.position.weight', which this run does not train"):
        load_optimizer(checkpoint, torch.optim.AdamW(decoder.parameters()), decoder)


def test_the_same_state_gives_the_same_bytes(save: Save) -> None:
    first = contents(save(7).directory)
    assert contents(save(7).directory) == first


# --- damage ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FILES)
def test_a_flipped_bit_is_reported_with_its_file(name: str, save: Save) -> None:
    checkpoint = save(7)
    path = checkpoint.directory / name
    whole = path.read_bytes()
    choose = random.Random(0)
    for _ in range(40):
        damaged = bytearray(whole)
        damaged[choose.randrange(len(whole))] ^= 1 << choose.randrange(8)
        path.write_bytes(damaged)
        with pytest.raises(CheckpointError) as raised:
            checkpoint.verify()
        # a manifest that has become another can only point at what it no longer describes
        assert str(checkpoint.directory) in str(raised.value)
        assert name == "manifest.json" or str(path) in str(raised.value)
        assert "\n" not in str(raised.value)
    path.write_bytes(whole)
    checkpoint.verify()


@pytest.mark.parametrize("name", FILES)
def test_a_truncated_or_missing_file_is_reported(name: str, save: Save) -> None:
    checkpoint = save(7)
    path = checkpoint.directory / name
    whole = path.read_bytes()
    for kept in (0, 1, 10, -2):
        path.write_bytes(whole[:kept])
        with pytest.raises(CheckpointError, match=name):
            checkpoint.verify()
    path.unlink()
    with pytest.raises(CheckpointError, match=f"{name} is missing"):
        checkpoint.verify()


def test_a_manifest_cannot_name_a_file_elsewhere(save: Save, folder: Path) -> None:
    checkpoint = save(7)
    (folder / "secret").write_text("x")
    manifest = checkpoint.directory / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"config.json"', '"../secret"'))
    with pytest.raises(CheckpointError, match=r"names '../secret', which is not a file of this directory"):
        checkpoint.verify()


# --- a save that fails or is cut short -------------------------------------------------------------------------------


def assert_intact(folder: Path, steps: list[int]) -> None:
    assert [checkpoint.step for checkpoint in list_checkpoints(folder)] == steps
    for checkpoint in list_checkpoints(folder):
        checkpoint.verify()


def save_under(faults: Any, operations: int, kind: type[BaseException], save: Save, step: int) -> BaseException | None:
    with faults.after(operations, kind):
        try:
            save(step)
        except BaseException as error:
            return error
    return None


@pytest.mark.parametrize("step", [2, 1], ids=["a new step", "a step saved before"])
def test_a_full_disk_at_any_operation_leaves_the_old_checkpoints_and_no_partial_one(
    step: int, save: Save, folder: Path, faults: Any
) -> None:
    save(1)
    operations = 0
    while (error := save_under(faults, operations, OSError, save, step)) is not None:
        assert isinstance(error, OutputError)
        assert "No space left on device" in str(error)
        assert "\n" not in str(error)
        steps = [checkpoint.step for checkpoint in list_checkpoints(folder)]
        assert steps in ([1], [1, 2])  # the last operation only makes sure that the new name lasts
        assert_intact(folder, steps)
        # until the new name is sure to last, the old checkpoint is kept next to it
        assert {name.removeprefix(".replaced-foretell-") for name in names(folder)} == {
            f"step-{step:06d}" for step in steps
        }
        shutil.rmtree(folder / "step-000002", ignore_errors=True)
        operations += 1
    assert operations > 15
    assert_intact(folder, sorted({1, step}))


@pytest.mark.parametrize("step", [3, 2], ids=["a new step", "a step saved before"])
def test_killing_the_process_at_any_operation_leaves_complete_checkpoints(
    step: int, save: Save, folder: Path, faults: Any
) -> None:
    save(1)
    save(2)
    operations = 0
    while save_under(faults, operations, faults.Killed, save, step) is not None:
        steps = [checkpoint.step for checkpoint in list_checkpoints(folder)]
        assert steps in ([1, 2], [1, 2, 3])
        assert_intact(folder, steps)
        prune(folder, keep=5)
        assert names(folder) == [f"step-{number:06d}" for number in steps]
        shutil.rmtree(folder / "step-000003", ignore_errors=True)
        save(2)
        operations += 1
    assert operations > 15
    assert_intact(folder, sorted({1, 2, step}))


# --- which ones are kept ---------------------------------------------------------------------------------------------


def test_only_complete_checkpoints_are_listed_in_the_order_of_their_steps(save: Save, folder: Path) -> None:
    for step in (1_000_000, 20, 3):
        save(step)
    (folder / ".tmp-foretell-step-000009-77").mkdir()
    (folder / "step-later").mkdir()
    assert [checkpoint.step for checkpoint in list_checkpoints(folder)] == [3, 20, 1_000_000]
    assert list_checkpoints(folder / "missing") == []


@pytest.mark.parametrize(
    ("losses", "best"),
    [
        ([2.0, 1.0, 1.5], 2),
        ([2.0, 1.0, 1.0], 3),
        ([None, None, None], 3),
        ([None, 5.0, None], 2),
        ([math.nan, 5.0, 6.0], 2),
        ([1.0, math.nan, -math.inf], 1),
    ],
)
def test_the_best_checkpoint_is_the_latest_with_the_lowest_validation_loss(
    losses: list[float | None], best: int, save: Save, folder: Path
) -> None:
    for step, loss in enumerate(losses, start=1):
        save(step, validation_loss=loss)
    assert best_checkpoint(list_checkpoints(folder)).step == best


def test_a_checkpoint_with_an_unreadable_loss_is_not_the_best(save: Save, folder: Path) -> None:
    save(1, validation_loss=2.0)
    (save(2, validation_loss=1.0).directory / "training.json").write_text("{")
    assert best_checkpoint(list_checkpoints(folder)).step == 1


@pytest.mark.parametrize(("keep", "kept"), [(1, [2, 6]), (2, [2, 5, 6]), (4, [2, 3, 4, 5, 6]), (9, [1, 2, 3, 4, 5, 6])])
def test_pruning_keeps_the_last_few_and_the_best(keep: int, kept: list[int], save: Save, folder: Path) -> None:
    for step, loss in enumerate([3.0, 1.0, 2.0, 2.5, 4.0, 5.0], start=1):
        save(step, validation_loss=loss)
    prune(folder, keep)
    assert_intact(folder, kept)


def test_pruning_keeps_the_regular_ones_between_those_that_were_the_best(save: Save, folder: Path) -> None:
    for step, loss in enumerate([3.0, 2.0, 4.0, 5.0, 1.5, 1.0, 6.0], start=1):
        save(step, validation_loss=loss)
    prune(folder, keep=3, every=2)
    assert_intact(folder, [4, 6, 7])
    prune(folder, keep=9, every=2)
    assert_intact(folder, [4, 6, 7])


def test_pruning_removes_leftovers_of_interrupted_saves_and_nothing_else(save: Save, folder: Path) -> None:
    save(1)
    (folder / ".tmp-foretell-step-000002-77").mkdir()
    (folder / ".tmp-foretell-step-000002-77" / "model.safetensors").write_text("half")
    (folder / "notes.txt").write_text("mine")
    prune(folder, keep=1)
    assert names(folder) == ["notes.txt", "step-000001"]


def test_pruning_ignores_checkpoints_after_the_newest(save: Save, folder: Path) -> None:
    """Training that resumed from before a damaged checkpoint must not lose the good ones to it."""
    for step, loss in enumerate([3.0, 2.0, 2.5, 1.0], start=1):
        save(step, validation_loss=loss)
    prune(folder, keep=1, newest=3)
    assert_intact(folder, [2, 3])


@pytest.mark.parametrize("name", [".replaced-foretell-step-000001", "step-000001.replaced"])
def test_a_checkpoint_being_replaced_counts_until_its_successor_exists(name: str, save: Save, folder: Path) -> None:
    save(1)
    (folder / "step-000001").rename(folder / name)
    assert [(checkpoint.directory.name, checkpoint.step) for checkpoint in list_checkpoints(folder)] == [(name, 1)]
    prune(folder, keep=1)
    assert names(folder) == ["step-000001"]


@pytest.mark.parametrize("name", ["step-1", "step-000001-keep", "step-000001.mine", "Xstep-000001", "step-"])
def test_a_folder_of_the_user_is_not_a_checkpoint(name: str, save: Save, folder: Path) -> None:
    save(1)
    shutil.copytree(folder / "step-000001", folder / name)
    assert [checkpoint.directory.name for checkpoint in list_checkpoints(folder)] == ["step-000001"]
    prune(folder, keep=1)
    assert names(folder) == sorted(["step-000001", name])


def test_what_the_user_put_into_a_checkpoint_survives_its_replacement(save: Save, folder: Path) -> None:
    directory = save(1).directory
    (directory / "notes.txt").write_text("mine")
    (directory / "plots").mkdir()
    (directory / "plots" / "a.svg").write_text("mine")
    for replace in (lambda: save(1), lambda: Checkpoint(directory).replace_json("training.json", {"step": 1})):
        replace()
        assert (directory / "notes.txt").read_text() == (directory / "plots" / "a.svg").read_text() == "mine"
        assert "notes.txt" not in Checkpoint(directory).manifest().files
        Checkpoint(directory).verify()


def test_a_checkpoint_with_files_of_the_user_is_not_pruned(save: Save, folder: Path) -> None:
    for step, loss in enumerate([3.0, 2.0, 1.0], start=1):
        save(step, validation_loss=loss)
    (folder / "step-000001" / "notes.txt").write_text("mine")
    prune(folder, keep=1)
    assert names(folder) == ["step-000001", "step-000003"]
    assert_intact(folder, [1, 3])


def test_a_damaged_manifest_does_not_bring_old_files_into_the_new_checkpoint(save: Save, folder: Path) -> None:
    directory = save(1).directory
    (directory / "manifest.json").write_text("{")
    (directory / "optimizer-00001-of-00002.safetensors").write_text("a shard of two processes")
    save(1)
    assert sorted(path.name for path in directory.iterdir()) == sorted(FILES)


@pytest.mark.parametrize("name", FILES)
def test_appended_bytes_are_reported(name: str, save: Save) -> None:
    checkpoint = save(7)
    with (checkpoint.directory / name).open("ab") as file:
        file.write(b"\n")
    with pytest.raises(CheckpointError, match=f"{name} is damaged"):
        checkpoint.verify()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"format": 1', '"format":  1'),
        ('"config.json"', '"confug.json"'),
        ('"sha256": "', '"sha256": "0'),
        ('"bytes": ', '"bytes": 1'),
    ],
)
def test_a_damaged_entry_of_the_manifest_is_reported(old: str, new: str, save: Save) -> None:
    checkpoint = save(7)
    path = checkpoint.directory / "manifest.json"
    path.write_text(path.read_text().replace(old, new, 1))
    with pytest.raises(CheckpointError, match=r"manifest.json( is damaged| names it)|its entry in .*manifest.json"):
        checkpoint.verify()


@pytest.mark.parametrize("name", FILES[2:])
def test_a_file_that_the_manifest_does_not_name_is_not_trusted(name: str, save: Save) -> None:
    checkpoint = save(7)
    path = checkpoint.directory / "manifest.json"
    path.write_text(path.read_text().replace(f'"{name}"', '"config.json"'))
    with pytest.raises(CheckpointError, match="damaged"):
        checkpoint.verify(only=(name,))


def test_an_unreadable_file_is_one_line(save: Save, monkeypatch: pytest.MonkeyPatch) -> None:
    def unreadable(path: Path) -> str:
        raise OSError(5, "Input/output error")

    checkpoint = save(7)
    monkeypatch.setattr("foretell.storage.manifest.sha256", unreadable)
    with pytest.raises(CheckpointError, match="cannot be read: Input/output error"):
        checkpoint.verify()
