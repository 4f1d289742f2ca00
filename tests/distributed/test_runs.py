"""Runs of many processes: their checkpoints, resuming them, and what uses a sharded model."""

from __future__ import annotations

import json
import pickle
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from foretell.cli.main import run as run_command
from foretell.errors import CheckpointError
from foretell.generation.batch_generation import continue_prompt
from foretell.language_model import load_model
from foretell.loading import load
from foretell.pretraining.pretrain import TextTraining
from foretell.runs.checkpoint import Checkpoint
from foretell.runs.run import Run
from foretell.runs.training_state import read_places
from foretell.session.protocol import run_training
from foretell.session.reporter import Reporter
from foretell.storage.manifest import write_manifest

BOUND = 1e-5  # of weights after two steps on another number of processes


def scenarios():
    """The module of the scenarios."""
    import importlib.util

    spec = importlib.util.spec_from_file_location("scenarios", Path(__file__).parent / "scenarios.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("size", [2, pytest.param(4, marks=pytest.mark.long)])
@pytest.mark.parametrize("parallel", ["fsdp", "ddp"])
def test_a_resumed_run_is_bit_identical_on_as_many_processes(results, size: int, parallel: str) -> None:
    outcome = results(size)["runs"][parallel]
    assert set(outcome["whole"]) == set(outcome["resumed"])
    same = {name for name in outcome["whole"] if outcome["whole"][name] == outcome["resumed"][name]}
    assert {name for name in outcome["whole"] if name.endswith(".safetensors")} <= same


def test_a_checkpoint_of_shards_is_a_saved_model_with_a_file_of_moments_per_process(results, folder: Path) -> None:
    results(2)
    checkpoint = folder / "fsdp-2/checkpoints/step-000006"
    moments = ["optimizer-00001-of-00002.safetensors", "optimizer-00002-of-00002.safetensors"]
    others = ["config.json", "data_use.safetensors", "manifest.json", "model.safetensors", "tokenizer.json"]
    others += ["training.json"]
    assert sorted(path.name for path in checkpoint.iterdir()) == sorted([*moments, *others])
    whole, parts = load_file(checkpoint / "model.safetensors"), [load_file(checkpoint / name) for name in moments]
    weight = "trunk.blocks.0.attention.query.weight"
    rows = [len(part[f"{weight}.momentum"]) for part in parts]
    assert rows == [len(whole[weight]) // 2] * 2
    assert load_model(checkpoint).decoder(torch.tensor([[1, 2, 3]])).isfinite().all()


@pytest.mark.parametrize(
    ("parallel", "size"), [("fsdp", 2), pytest.param("fsdp", 4, marks=pytest.mark.long), ("ddp", 2)]
)
def test_a_run_is_resumed_on_one_process_within_a_bound(
    results, folder: Path, tmp_path: Path, parallel: str, size: int
) -> None:
    results(size)
    module, optimizer = scenarios(), {"fsdp": "muon", "ddp": "adamw"}[parallel]
    before, again = folder / f"{parallel}-{size}", tmp_path / "again"
    module.forget_steps_after(before, again, 4)
    run_training(
        TextTraining(module.request(again, parallel=parallel, optimizer=optimizer), continue_prompt),
        Reporter(),
        resume=True,
    )
    expected, actual = (load_file(run / "checkpoints/step-000006/model.safetensors") for run in (before, again))
    assert list(expected) == list(actual)
    assert max(float((expected[path] - actual[path]).abs().max()) for path in expected) < BOUND
    assert (again / "checkpoints/step-000006/optimizer.safetensors").is_file()


@pytest.mark.long
def test_copies_and_shards_learn_the_same(results, folder: Path) -> None:
    results(2), results(4)
    lines = [json.loads((folder / f"fsdp-{size}/metrics.jsonl").read_text().splitlines()[-1]) for size in (2, 4)]
    for key in ("step", "tokens", "learning_rate"):
        assert lines[0][key] == lines[1][key]
    for key in ("loss", "validation_loss", "gradient_norm"):
        assert lines[0][key] == pytest.approx(lines[1][key], rel=1e-5)


@pytest.mark.parametrize("size", [2, pytest.param(4, marks=pytest.mark.long)])
def test_trace_mask_check_evaluation_and_generation_work_in_a_sharded_model(results, size: int) -> None:
    differences = results(size)["looking_inside"]
    assert {"trace", "evaluation", "generation", "evaluation shared by shards"} < differences.keys()
    assert {name: value for name, value in differences.items() if value != 0.0} == {}


# --- damage ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def checkpoint(results, folder: Path, tmp_path: Path) -> Checkpoint:
    """A checkpoint of shards that a test may damage."""
    results(2)
    shutil.copytree(folder / "fsdp-2/checkpoints/step-000006", tmp_path / "step-000006")
    return Checkpoint(tmp_path / "step-000006")


def test_a_missing_shard_is_found(checkpoint: Checkpoint) -> None:
    checkpoint.verify()
    (checkpoint.directory / "optimizer-00002-of-00002.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"optimizer-00002-of-00002\.safetensors is missing"):
        checkpoint.verify()


def test_a_manifest_without_one_of_the_shards_is_damaged(checkpoint: Checkpoint) -> None:
    path = checkpoint.directory / "manifest.json"
    values = json.loads(path.read_text())
    del values["files"]["optimizer-00002-of-00002.safetensors"]
    path.write_text(json.dumps(values, indent=2) + "\n")
    with pytest.raises(CheckpointError, match=r"does not name optimizer-00002-of-00002\.safetensors"):
        checkpoint.verify()


# --- pickles ---------------------------------------------------------------------------------------------------------


class Malicious:
    """An object whose pickle writes a file when it is read."""

    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self):
        return Path.write_text, (self.path, "executed")


@pytest.mark.parametrize("is_named", [False, True])
def test_a_pickle_in_the_place_of_torchs_metadata_is_never_read(
    results, folder: Path, tmp_path: Path, is_named: bool
) -> None:
    results(2)
    module, run, mark = scenarios(), tmp_path / "run", tmp_path / "mark"
    module.forget_steps_after(folder / "fsdp-2", run, 4)
    directory = run / "checkpoints/step-000004"
    (directory / ".metadata").write_bytes(pickle.dumps(Malicious(mark)))
    if is_named:
        write_manifest(directory)
    run_training(
        TextTraining(module.request(run, parallel="fsdp", optimizer="muon"), continue_prompt), Reporter(), resume=True
    )
    assert Run.open(run).last_intact().step == 6
    assert not mark.exists()
    pickle.loads((directory / ".metadata").read_bytes() if directory.exists() else pickle.dumps(Malicious(mark)))
    assert mark.exists()  # torch's own reader would have executed it


@pytest.mark.parametrize(
    ("chunks", "message"),
    [
        ("[]", "does not name the parts"),
        ('{"KEY": {"offsets": [-1, 0], "size": [16, 16]}}', "does not name the parts"),
        ('{"KEY": {"offsets": [9, 0], "size": [16, 16]}}', "does not fit the whole"),
        ('{"KEY": {"offsets": [0], "size": [16]}}', "does not fit the whole"),
    ],
)
def test_a_damaged_header_of_a_shard_is_one_line(checkpoint: Checkpoint, chunks: str, message: str) -> None:
    path = checkpoint.directory / "optimizer-00001-of-00002.safetensors"
    tensors = load_file(path)
    key = "trunk.blocks.0.attention.query.weight.momentum"
    save_file(tensors, path, metadata={"chunks": chunks.replace("KEY", key)})
    with pytest.raises(CheckpointError, match=message):
        read_places(checkpoint.directory)


def test_a_sharded_run_is_resumed_alone_and_exported_as_a_user_would(
    results, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results(2)
    monkeypatch.chdir(tmp_path)
    scenarios().forget_steps_after(folder / "fsdp-2", Path("again"), 4)
    assert run_command(["train", "--out", "again", "--resume"]) == 0
    assert run_command(["convert", "again@last", "exported", "--to", "huggingface"]) == 0
    exported = load("exported")
    own = load("again@last")
    ids = torch.tensor([[1, 2, 3]])
    torch.testing.assert_close(exported.decoder(ids), own.decoder(ids))
