"""run.json: the configuration, the data and the reasons of a training, with their own SHA-256."""

from __future__ import annotations

import hashlib
import json
import shlex
from pathlib import Path
from types import NoneType
from typing import Any

from pydantic_core import to_jsonable_python

from foretell.config import TrainingConfig
from foretell.errors import CheckpointError
from foretell.files import read_json, to_json, write_json
from foretell.runs.checkpoint import list_checkpoints

RUN = "run.json"
# Settings of the training that a resumed run may change
RESUMABLE = {"gradient_accumulation_steps", "parallel", "checkpoint_activations"}
# Digests of configurations use the names of the first version, so that its checkpoints keep their digests
FIRST_NAMES = {"gradient_accumulation_steps": "accumulation", "final_learning_rate_share": "min_learning_rate"}

# run.json names its format and its own SHA-256; the first version's has neither, so that one of them alone is damage
FORMAT = 2
SEAL = ("format", "sha256")
# The kind of every part of run.json; `from` is missing or null in a run that was not started from a model
JSON_NAMES = {dict: "object", list: "array", str: "string"}
KINDS: dict[str, type] = {"config": dict, "data": list, "size": str, "device": str, "dtype": str}


def write_record(directory: Path, record: dict[str, Any]) -> None:
    """Store the record of a run, with its SHA-256."""
    sealed = {**record, "format": FORMAT}
    write_json(directory / RUN, {**sealed, "sha256": digest_of(sealed)})


def read_record(directory: Path) -> dict[str, Any]:
    """The record that `write_record` stored; damage is a `CheckpointError`."""
    path = directory / RUN
    record = read_json(path)
    if any(key in record for key in SEAL):
        seal = record.pop("sha256", None)
        if record.get("format") != FORMAT or seal != digest_of(record):
            advice = and_advice(directory).replace("is lost", "is damaged")
            raise CheckpointError(
                f"{path} is damaged or was changed: it does not match its own SHA-256; restore it{advice}"
            )
        del record["format"]
    check_kinds(path, record)
    return record


def check_kinds(path: Path, record: dict[str, Any]) -> None:
    """Refuse a record whose parts are missing or of another kind."""
    for key, kind in KINDS.items():
        if key not in record:
            raise CheckpointError(f"{path} has no '{key}'; it is damaged or of another version")
        if not isinstance(record[key], kind):
            raise CheckpointError(f"{path} is damaged: its '{key}' is not a JSON {JSON_NAMES[kind]}")
    start = record.get("from") or {"model": "", "weights_sha256": ""}
    are_right = {
        "data": all(isinstance(name, str) for name in record["data"]),
        "device": record["device"] in ("cpu", "cuda", "mps"),
        "dtype": record["dtype"] in ("float32", "bfloat16"),
        "config": all(isinstance(section, dict | NoneType) for section in record["config"].values()),
        "from": isinstance(start, dict) and all(isinstance(start.get(key), str) for key in ("model", "weights_sha256")),
    }
    for key, is_right in are_right.items():
        if not is_right:
            raise CheckpointError(f"{path} is damaged: its '{key}' is not as training writes it")


def digest_of(record: dict[str, Any]) -> str:
    return hashlib.sha256(to_json(record).encode()).hexdigest()


def configuration_digest(config: dict[str, Any]) -> str:
    """A hash of the configuration in a record, with which a checkpoint is compared.

    It leaves out settings that may change on resuming, and settings at their defaults, so that a later version may add
    one whose default is the earlier behaviour.
    """
    fields = TrainingConfig.model_fields.items()
    defaults = with_first_names(
        to_jsonable_python({key: field.default for key, field in fields if not field.is_required()})
    )
    left_out = with_first_names(dict.fromkeys(RESUMABLE))
    training = {
        key: value
        for key, value in with_first_names(config.get("training", {})).items()
        if key not in left_out and not (key in defaults and value == defaults[key])
    }
    canonical = json.dumps({**config, "training": training}, sort_keys=True)
    return hashlib.sha256(canonical.encode()).hexdigest()[:16]


def with_first_names(training: dict[str, Any]) -> dict[str, Any]:
    """The same settings under the names of the first version, with which configurations are hashed."""
    return {FIRST_NAMES.get(key, key): value for key, value in training.items()}


def advice_without_record(directory: Path) -> str:
    """Advice for a directory whose run.json is lost; empty without checkpoints."""
    checkpoints = list_checkpoints(directory / "checkpoints")
    if not checkpoints:
        return ""
    path = shlex.quote(str(checkpoints[-1].directory))
    return f"its {RUN} is lost, but each checkpoint is a model, as in foretell train DATA --start-from {path}"


def and_advice(directory: Path) -> str:
    """The advice as the end of a message."""
    advice = advice_without_record(directory)
    return f"; {advice}" if advice else ""
