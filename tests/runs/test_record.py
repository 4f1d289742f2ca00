"""The record of a run: refused where it is incomplete; its configuration has one digest in all versions."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from foretell.config.section import make_section
from foretell.config.training import TrainingConfig
from foretell.errors import CheckpointError
from foretell.runs.record import configuration_digest, read_record, write_record

FROZEN = Path(__file__).parents[1] / "frozen" / "format1" / "run"


def test_an_incomplete_record_is_refused(tmp_path: Path) -> None:
    write_record(tmp_path, {"config": {}})
    with pytest.raises(CheckpointError, match="has no 'data'"):
        read_record(tmp_path)


def test_a_configuration_has_the_same_digest_under_old_and_new_names() -> None:
    config = read_record(FROZEN)["config"]
    checkpoint = json.loads((FROZEN / "checkpoints" / "step-000004" / "training.json").read_text())
    assert configuration_digest(config) == checkpoint["configuration"]
    config["training"] = make_section(TrainingConfig, config["training"]).model_dump(mode="json")
    assert "final_learning_rate_share" in config["training"]
    assert configuration_digest(config) == checkpoint["configuration"]
