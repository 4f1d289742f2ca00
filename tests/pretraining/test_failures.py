"""Failures around a training: one line that says what is saved and how to resume, and nothing is lost."""

from __future__ import annotations

import json
import math
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from foretell.config.model import ModelConfig
from foretell.config.section import make_section
from foretell.config.weight_shapes import count_parameters
from foretell.data.batch import make_batch
from foretell.errors import (
    CheckpointError,
    ConfigError,
    DataError,
    DivergedError,
    ForetellError,
    OutputError,
    TrainingError,
)
from foretell.generation.batch_generation import continue_prompt
from foretell.model.cost import saved_bytes_per_token
from foretell.model.decoder import check_logits
from foretell.model.init import make_decoder
from foretell.model.presets import MODERN, preset_config
from foretell.pretraining import task
from foretell.pretraining.pretrain import TextTraining
from foretell.runs.checkpoint import list_checkpoints
from foretell.runs.lock import held
from foretell.runs.record import RunRecord
from foretell.runs.run import Run
from foretell.session.failures import is_out_of_memory, next_divisor
from foretell.session.protocol import run_training
from foretell.session.reporter import Reporter
from foretell.session.session import Session
from foretell.storage.manifest import write_manifest
from foretell.system.device import memory_of, system_text
from foretell.training.objective import Objective

CPU = torch.device("cpu")
SHAPE = {"num_layers": 2, "num_heads": 2, "width": 32, "context_length": 32, "vocab_size": 5}


@pytest.fixture
def run(uninterrupted: Path, tmp_path: Path) -> Path:
    """The run after two steps of four."""
    out = tmp_path / "run"
    shutil.copytree(uninterrupted, out)
    shutil.rmtree(out / "checkpoints" / "step-000004")
    return out


def failure(call: Callable[[], object]) -> ForetellError:
    """The error, of one line, that a call ends with."""
    with pytest.raises(ForetellError) as raised:
        call()
    assert "\n" not in str(raised.value)
    return raised.value


def at_step(monkeypatch: pytest.MonkeyPatch, step: int, happen: Callable[[Session], None]) -> None:
    """Let something happen before a step's line of metrics is written."""
    log = Session.log

    def happening(self: Session, progress: Any) -> None:
        if progress.step == step:
            happen(self)
        log(self, progress)

    monkeypatch.setattr(Session, "log", happening)


# --- memory ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [MemoryError, torch.OutOfMemoryError, RuntimeError])
def test_out_of_memory_names_the_last_checkpoint_and_how_to_resume(
    kind: type[Exception], tiny: Any, run: Path, uninterrupted: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: Session) -> None:
        raise kind("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes.")

    with monkeypatch.context() as patch:
        at_step(patch, 3, full)
        error = failure(lambda: tiny.train(run))
    assert isinstance(error, TrainingError)
    assert "out of memory after step 3, the checkpoint of step 2 is good" in str(error)
    assert str(error).endswith(f"--out {run} --resume auto --training.gradient-accumulation-steps 4")
    tiny.train(run)
    assert tiny.final_state(run) == tiny.final_state(uninterrupted)


def test_other_runtime_errors_are_not_called_out_of_memory(
    tiny: Any, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_: Session) -> None:
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")

    at_step(monkeypatch, 3, broken)
    with pytest.raises(RuntimeError, match="mat1"):
        tiny.train(run)


def test_memory_refused_by_the_system_is_an_error_of_one_line(tiny: Any, run: Path) -> None:
    def train_in_little() -> None:
        def shrink(_: Session) -> None:
            pages = int(Path("/proc/self/statm").read_text().split()[0])
            limit = pages * resource.getpagesize() + 2**24
            resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
            torch.empty(2**28)

        with pytest.MonkeyPatch.context() as patch:
            at_step(patch, 3, shrink)
            tiny.train(run)

    if not Path("/proc/self/statm").exists():
        pytest.skip("only Linux says how much memory a process has")
    assert tiny.in_a_process(train_in_little) == tiny.REFUSED
    assert [checkpoint.step for checkpoint in list_checkpoints(run / "checkpoints")] == [2]


@pytest.mark.parametrize(("number", "above", "divisor"), [(32, 1, 2), (12, 4, 12), (7, 1, 7), (4, 2, 4)])
def test_a_batch_is_cut_into_twice_as_many_equal_parts(number: int, above: int, divisor: int) -> None:
    assert next_divisor(number, above) == divisor


def test_the_message_of_a_full_gpu_is_recognised() -> None:
    assert is_out_of_memory(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"))
    assert not is_out_of_memory(ValueError("out of memory"))


# --- too large -------------------------------------------------------------------------------------------------------


def test_a_model_too_large_for_any_machine_is_refused_at_once(tiny: Any, tmp_path: Path) -> None:
    request = tiny.request(tmp_path / "x")
    object.__setattr__(request, "size", "gpt3-175b")
    object.__setattr__(request, "overrides", {"training": {"steps": 1}})

    error = failure(lambda: run_training(TextTraining(request, continue_prompt), Reporter()))
    assert "173,986,713,600 parameters need 2.8 TB for weights, gradients and optimizer" in str(error)
    assert "take a smaller size" in str(error)
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("layers", [2, 96, 2**14])
def test_parameters_of_very_many_layers_are_counted_without_making_them(layers: int) -> None:
    config = preset_config("tiny", vocab_size=100)
    one, two = (count_parameters(config.replaced(num_layers=count)) for count in (1, 2))
    assert count_parameters(config.replaced(num_layers=layers)) == one + (layers - 1) * (two - one)


@pytest.mark.parametrize(
    "shape",
    [
        {},
        {"activation": "relu"},
        {"feedforward": "none"},
        {"norm": "none"},
        {"num_kv_heads": 1, "head_width": 8},
        MODERN,
        {**MODERN, "feedforward": "mlp"},
        {**MODERN, "num_kv_heads": 1, "qk_norm": False},
    ],
)
def test_the_memory_estimate_of_a_batch_is_a_lower_bound(shape: dict[str, Any]) -> None:
    config = make_section(ModelConfig, {**SHAPE, **shape})
    objective = Objective(make_decoder(config, seed=1)).train()
    kept = (bytes_kept(objective, rows=3) - bytes_kept(objective, rows=1)) / (2 * config.context_length)
    assert 0.4 * kept < saved_bytes_per_token(config) < kept


def bytes_kept(objective: Objective, rows: int) -> int:
    """What the forward pass of so many rows keeps for the backward one."""
    kept: dict[int, torch.Tensor] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    batch = make_batch(np.zeros((rows, objective.decoder.config.context_length + 1), dtype=np.int64))
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor), torch.autocast("cpu"):
        objective(batch)
    return sum(tensor.untyped_storage().nbytes() for tensor in kept.values())


def test_the_memory_of_a_container_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "memory.max").write_text("1000000\n")
    monkeypatch.setattr("foretell.system.device.CONTAINER_LIMITS", (tmp_path / "memory.max", tmp_path / "missing"))
    assert memory_of(CPU) == 1_000_000
    (tmp_path / "memory.max").write_text("max\n")
    assert memory_of(CPU) > 2**28
    assert system_text(tmp_path / "missing") == ""


def test_divergence_says_what_is_saved(tiny: Any, tmp_path: Path) -> None:
    error = failure(lambda: tiny.train(tmp_path / "x", learning_rate=1e30))
    assert isinstance(error, DivergedError)
    assert "no weight was changed; there is no checkpoint yet" in str(error)


def test_logits_that_overflow_are_a_divergence(tiny: Any, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def overflow(_: Session) -> None:
        check_logits(torch.tensor([math.inf, 0.0]))

    at_step(monkeypatch, 3, overflow)
    error = failure(lambda: tiny.train(run))
    assert isinstance(error, DivergedError)
    assert "logits are not finite" in str(error)
    assert "Start again with a lower training.learning_rate" in str(error)


def test_training_that_is_refused_leaves_no_folder(tmp_path: Path) -> None:
    with held(tmp_path / "runs" / "x"):
        pass
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "runs").mkdir()
    with held(tmp_path / "runs" / "x"):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["runs"]


# --- disk ------------------------------------------------------------------------------------------------------------


def test_removing_the_directory_ends_training_and_it_is_not_made_again(
    tiny: Any, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_step(monkeypatch, 3, lambda session: shutil.rmtree(session.run.directory))
    error = failure(lambda: tiny.train(run))
    assert f"{run} is gone" in str(error)
    assert "there is nothing to resume from" in str(error)
    assert not run.exists()


def test_removing_the_checkpoints_does_not_stop_training(tiny: Any, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    at_step(monkeypatch, 3, lambda session: shutil.rmtree(session.run.checkpoints, True))
    tiny.train(run)
    assert [checkpoint.step for checkpoint in list_checkpoints(run / "checkpoints")] == [4]


def test_a_refused_write_leaves_the_old_checkpoint_and_no_partial_one(tiny: Any, run: Path) -> None:
    """The system's own refusal, in the middle of a file."""

    def train_with_small_files() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
        tiny.train(run)

    assert tiny.in_a_process(train_with_small_files) == tiny.REFUSED
    assert sorted(path.name for path in (run / "checkpoints").iterdir()) == ["step-000002"]
    list_checkpoints(run / "checkpoints")[0].verify()


def test_a_full_disk_names_the_good_checkpoint_and_how_to_resume(
    tiny: Any, run: Path, uninterrupted: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(28, os.strerror(28))

    with monkeypatch.context() as patch:
        patch.setattr("foretell.storage.safetensors_files.save_file", refuse)
        error = failure(lambda: tiny.train(run))
    assert "No space left on device" in str(error)
    assert "the checkpoint of step 2 is good; resume with: " in str(error)
    assert "foretell train --out" in str(error)
    tiny.train(run)
    assert tiny.final_state(run) == tiny.final_state(uninterrupted)


# --- what can be resumed ---------------------------------------------------------------------------------------------


@pytest.fixture
def in_use(run: Path) -> Iterator[Path]:
    """A run in which another process trains."""

    code = (
        f"import fcntl, os, sys; fcntl.flock(os.open({str(run)!r}, os.O_RDONLY), fcntl.LOCK_EX); "
        "print('held', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield run
        process.kill()


def test_two_processes_never_train_in_one_directory(tiny: Any, in_use: Path) -> None:
    error = failure(lambda: tiny.train(in_use))
    assert isinstance(error, OutputError)
    assert "another process is training in" in str(error)


def test_the_lock_is_released_afterwards(tiny: Any, run: Path) -> None:
    tiny.train(run)
    with held(run):
        pass


def test_a_changed_configuration_is_refused(tiny: Any, run: Path) -> None:
    record = json.loads((run / "run.json").read_text())
    record["config"]["training"]["learning_rate"] *= 2
    (run / "run.json").write_text(json.dumps(record))
    error = failure(lambda: tiny.train(run))
    assert isinstance(error, CheckpointError)
    assert "run.json is damaged, was changed, or is of the first version" in str(error)
    values = {key: value for key, value in record.items() if key not in ("format", "sha256")}
    Run(run).replace_record(RunRecord.from_json(values))
    error = failure(lambda: tiny.train(run))
    assert isinstance(error, CheckpointError)
    assert "run.json is not the configuration" in str(error)


def test_a_checkpoint_without_a_configuration_digest_is_refused(tiny: Any, run: Path) -> None:
    (checkpoint,) = (run / "checkpoints").glob("step-*2")
    state = json.loads((checkpoint / "training.json").read_text())
    del state["configuration"]
    (checkpoint / "training.json").write_text(json.dumps(state))
    write_manifest(checkpoint)
    error = failure(lambda: tiny.train(run))
    assert isinstance(error, CheckpointError)
    assert f"run.json is not the configuration that {checkpoint} was trained with" in str(error)


def test_a_changed_token_is_refused(tiny: Any, run: Path) -> None:
    shard = run / "tokens" / "train-00000.npy"
    content = bytearray(shard.read_bytes())
    content[-2] ^= 1
    shard.write_bytes(content)
    error = failure(lambda: tiny.train(run))
    assert isinstance(error, DataError)
    assert str(shard) in str(error)


def test_another_machine_is_logged(tiny: Any, run: Path) -> None:
    environment = json.loads((run / "environment.json").read_text())
    (run / "environment.json").write_text(json.dumps({**environment, "threads": 64}))
    assert any(f"threads {torch.get_num_threads()}, not 64" in line for line in tiny.train(run))


def test_a_run_without_its_environment_file_resumes(tiny: Any, run: Path) -> None:
    (run / "environment.json").unlink()
    tiny.train(run)
    assert list_checkpoints(run / "checkpoints")[-1].step == 4


def test_an_interrupted_preparation_refuses_other_data(tiny: Any, tmp_path: Path) -> None:
    out = tmp_path / "run"
    out.mkdir()
    (out / "preparing.json").write_text('{"data": ["dogs.txt"]}')
    error = failure(lambda: tiny.train(out))
    assert "was made from dogs.txt; give the same data again" in str(error)


def test_non_finite_weights_are_never_saved(tiny: Any, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    @torch.no_grad()
    def spoil(session: Session) -> None:
        session.task.model.get_parameter("trunk.norm.weight")[0] = float("inf")

    monkeypatch.setattr(task, "SAMPLE_TOKENS", 0)
    monkeypatch.setattr(Session, "evaluate", lambda self, progress: None)  # its loss would be refused before
    at_step(monkeypatch, 4, spoil)
    error = failure(lambda: tiny.train(run))
    assert "step 4: 'trunk.norm.weight' is not finite; not saved" in str(error)
    assert [checkpoint.step for checkpoint in list_checkpoints(run / "checkpoints")] == [2]


def test_reversed_bands_of_a_rope_scaling_are_refused() -> None:
    scaling = {"type": "llama3", "factor": 8.0, "low_frequency_factor": 4.0, "high_frequency_factor": 4.0}
    with pytest.raises(ConfigError, match="high_frequency_factor 4 must be above low_frequency_factor 4"):
        preset_config("tiny", vocab_size=10, rope_scaling=scaling)
    preset_config("tiny", vocab_size=10, rope_scaling={**scaling, "type": "linear"})
