"""The file of a saved trace."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from torch import Tensor

from foretell.data.batch import Batch
from foretell.errors import OutputError
from foretell.insight.trace import Trace
from foretell.model.decoder import Decoder
from foretell.training.objective import Objective


def read(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    with safe_open(path, framework="pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}, file.metadata()  # noqa: SIM118


def test_a_saved_trace_has_every_value_under_its_name(decoder: Decoder, ids: Tensor, tmp_path: Path) -> None:
    with Trace(decoder, "**") as trace:
        decoder(ids)
    keys = trace.save(tmp_path / "values.safetensors", {"text": "The cat"})
    values, metadata = read(tmp_path / "values.safetensors")
    assert sorted(values) == sorted(keys) == sorted(trace.names())
    assert all(torch.equal(values[name], trace[name]) for name in trace.names())
    assert json.loads(metadata["derived"]) == [name for name in trace.names() if trace.is_derived(name)]
    assert metadata["text"] == "The cat"
    assert metadata["format"] == "foretell.trace/1"


def test_calls_have_numbered_keys_and_gradients_are_saved(gpt2: Decoder, ids: Tensor, tmp_path: Path) -> None:
    batch = Batch(ids, ids, torch.ones(ids.shape))
    with Trace(gpt2, "trunk.norm", gradients=True) as trace:
        for part in (batch.rows(0, 2), batch.rows(2, 3)):
            Objective(gpt2)(part).sum.backward()
    trace.save(tmp_path / "values.safetensors")
    values, _ = read(tmp_path / "values.safetensors")
    assert sorted(values) == ["grad:trunk.norm#0", "grad:trunk.norm#1", "trunk.norm#0", "trunk.norm#1"]
    assert torch.equal(values["trunk.norm#1"], trace.calls("trunk.norm")[1])
    assert values["grad:trunk.norm#0"].shape == (2, 12, 8)


def test_a_pipe_is_refused_and_a_link_is_followed(gpt2: Decoder, ids: Tensor, tmp_path: Path) -> None:
    with Trace(gpt2, "head") as trace:
        gpt2(ids)
    pipe, link, file = tmp_path / "pipe", tmp_path / "link", tmp_path / "file"
    os.mkfifo(pipe)
    with pytest.raises(OutputError, match="device or a pipe"):
        trace.save(pipe)
    assert pipe.is_fifo()
    link.symlink_to(file)
    trace.save(link)
    assert link.is_symlink()
    assert torch.equal(read(file)[0]["head"], trace["head"])


def test_a_trace_has_the_permissions_of_other_new_files(gpt2: Decoder, ids: Tensor, tmp_path: Path) -> None:
    with Trace(gpt2, "head") as trace:
        gpt2(ids)
    trace.save(tmp_path / "values.safetensors")
    (tmp_path / "other").touch()
    assert (tmp_path / "values.safetensors").stat().st_mode == (tmp_path / "other").stat().st_mode


def test_a_file_that_cannot_be_written_is_an_error_and_leaves_no_file(
    gpt2: Decoder, ids: Tensor, tmp_path: Path
) -> None:
    with Trace(gpt2, "head") as trace:
        gpt2(ids)
    with pytest.raises(OutputError, match=r"nowhere/x\.safetensors"):
        trace.save(tmp_path / "nowhere" / "x.safetensors")
    (tmp_path / "folder").mkdir()
    with pytest.raises(OutputError, match="folder"):
        trace.save(tmp_path / "folder")
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


def test_a_disk_that_is_full_at_the_end_is_an_error_and_leaves_the_old_file(
    gpt2: Decoder, ids: Tensor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Trace(gpt2, "head") as trace:
        gpt2(ids)
    path = tmp_path / "x.safetensors"
    trace.save(path)
    before = path.read_bytes()

    def sync(path: Path) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("foretell.storage.files.sync", sync)
    with pytest.raises(OutputError, match=r"could not write .*x\.safetensors: No space left on device"):
        trace.save(path, {"text": "more"})
    assert path.read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["x.safetensors"]
