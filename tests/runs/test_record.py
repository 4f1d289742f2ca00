"""The record of a run: refused where it is incomplete or without its SHA-256; its configuration keeps its digest."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from foretell.errors import CheckpointError
from foretell.runs.record import RUN, configuration_digest, read_record, write_record
from foretell.runs.run import Run

FROZEN = sorted((Path(__file__).parents[1] / "frozen" / "tasks" / "runs").iterdir())


def test_an_incomplete_record_is_refused(tmp_path: Path) -> None:
    write_record(tmp_path, {"config": {}})
    with pytest.raises(CheckpointError, match="has no 'data'"):
        read_record(tmp_path)


@pytest.mark.parametrize("missing", [["sha256"], ["format"], ["format", "sha256"]])
def test_a_record_without_its_hash_is_refused(missing: list[str], tmp_path: Path) -> None:
    record = json.loads((FROZEN[0] / RUN).read_text(encoding="utf-8"))
    (tmp_path / RUN).write_text(json.dumps({key: record[key] for key in record if key not in missing}))
    with pytest.raises(CheckpointError, match="is of the first version: it does not match its own SHA-256"):
        read_record(tmp_path)


@pytest.mark.parametrize("directory", FROZEN, ids=lambda path: path.name)
def test_a_configuration_keeps_its_digest(directory: Path) -> None:
    checkpoint = Run(directory).at("last")
    assert configuration_digest(read_record(directory)["config"]) == checkpoint.training()["configuration"]
