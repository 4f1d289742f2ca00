"""The record of a run: refused where it is incomplete or without its SHA-256; its configuration keeps its digest."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from foretell.errors import CheckpointError
from foretell.runs.record import RUN, RunRecord, read_record, sealed, write_record
from foretell.runs.run import Run

FROZEN = sorted((Path(__file__).parents[1] / "frozen" / "tasks" / "runs").iterdir())


def test_an_incomplete_record_is_refused(tmp_path: Path) -> None:
    (tmp_path / RUN).write_text(json.dumps(sealed({"config": {}})))
    with pytest.raises(CheckpointError, match="is damaged or of another version: missing key 'data'"):
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
    assert read_record(directory).configuration_digest == checkpoint.training()["configuration"]


@pytest.mark.parametrize("directory", FROZEN, ids=lambda path: path.name)
def test_a_record_is_written_as_it_was_read(directory: Path, tmp_path: Path) -> None:
    write_record(tmp_path, read_record(directory))
    assert (tmp_path / RUN).read_bytes() == (directory / RUN).read_bytes()


def test_only_a_training_with_a_time_budget_has_a_limit_of_steps() -> None:
    untimed = RunRecord(config={}, data=[], size="toy", device="cpu", dtype="float32")
    assert "most_steps" not in untimed.to_json()
    assert list(untimed.model_copy(update={"minutes": 2}).to_json())[-4:] == [
        "minutes",
        "most_steps",
        "device",
        "dtype",
    ]


def test_entries_of_the_kind_of_training_are_among_the_others() -> None:
    entries = {"config": {}, "data": [], "size": "toy", "season": None, "columns": ["a"], "device": "cpu"}
    record = RunRecord.from_json(entries | {"dtype": "float32"})
    assert record.task == {"season": None, "columns": ["a"]}
    assert record.to_json().items() >= entries.items()
