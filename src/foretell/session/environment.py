"""The machine that a run is trained on, and what may differ from it when the run is resumed."""

from __future__ import annotations

import logging
import os
import platform
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

import torch

from foretell.config import TrainingConfig, make_section
from foretell.device import DeviceName, DtypeName, choose_device, choose_training_dtype
from foretell.runs.run import RESUMABLE, Run

logger = logging.getLogger(__name__)


def describe_environment(device: torch.device, dtype: torch.dtype) -> dict[str, Any]:
    """Versions and machine, as environment.json has them."""
    return {
        "foretell": version("foretell"),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": version("numpy"),
        "platform": platform.platform(),
        "processor": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "device": device.type,
        "dtype": name_of(dtype),
    }


def name_of(dtype: torch.dtype) -> str:
    """`bfloat16` for torch.bfloat16."""
    return str(dtype).removeprefix("torch.")


def resumed_precision(
    record: dict[str, Any], device_name: DeviceName, dtype_name: DtypeName
) -> tuple[torch.device, torch.dtype]:
    """Device and precision for a resumed run: those of its record unless others are asked for, which is logged."""
    device = choose_device(record["device"] if device_name == "auto" else device_name)
    dtype = choose_training_dtype(record["dtype"] if dtype_name == "auto" else dtype_name, device)
    if (device.type, name_of(dtype)) != (record["device"], record["dtype"]):
        logger.warning(
            f"precision   {device.type} in {name_of(dtype)}, not {record['device']} in {record['dtype']} as before: "
            "the result will differ in the last digits"
        )
    return device, dtype


def resumed_training(run: Run, training: TrainingConfig, given: Mapping[str, Any]) -> TrainingConfig:
    """The settings of a resumed run with others of those that may change, where they are asked for.

    They decide about memory and not about the result, but for rounding; run.json is updated.
    """
    asked = {key: value for key, value in given.items() if key in RESUMABLE}
    changed = make_section(TrainingConfig, {**training.model_dump(), **asked}, "training")
    if changed == training:
        return training
    for key in sorted(asked):
        if getattr(changed, key) != getattr(training, key):
            logger.warning(
                f"{key} {getattr(changed, key)}, not {getattr(training, key)} as before: the result will differ in the "
                "last digits"
            )
    record = run.record()
    record["config"]["training"] = changed.model_dump(mode="json")
    run.replace_record(record)
    return changed


def log_other_machine(run: Run, device: torch.device, dtype: torch.dtype) -> None:
    """Log in what the machine differs from the one that the run was started on, where that changes the last digits."""
    before, now = run.environment(), describe_environment(device, dtype)
    changed = [name for name in ("processor", "threads", "torch") if before.get(name, now[name]) != now[name]]
    if changed:
        seen = ", ".join(f"{name} {now[name]}, not {before[name]}" for name in changed)
        logger.warning(f"machine     {seen} as before: the result may differ in the last digits")
