"""The machine of a training: its description, the precision and settings of a resumed run, peak memory and MFU."""

from __future__ import annotations

import logging
import os
import platform
import resource
import sys
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any, cast

import torch

from foretell.config.section import make_section
from foretell.config.training import TrainingConfig
from foretell.distributed.world import current_world
from foretell.planning.speed import peak_flops
from foretell.runs.record import RESUMABLE, RunRecord
from foretell.runs.run import Run
from foretell.system import DeviceName, DtypeName
from foretell.system.device import choose_device, choose_training_dtype, dtype_name
from foretell.system.installation import cpu_model

logger = logging.getLogger(__name__)
MEASURED_AFTER = 10.0  # seconds of training, so that a short run does not wait for the measurement
RSS_UNIT = 1 if sys.platform == "darwin" else 1024  # bytes per unit of ru_maxrss


def describe_environment(device: torch.device, dtype: torch.dtype) -> dict[str, Any]:
    """Versions and machine, the content of environment.json."""
    return {
        "foretell": version("foretell"),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": version("numpy"),
        "platform": platform.platform(),
        "processor": cpu_model(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "processes": current_world().size,
        "device": device.type,
        "dtype": dtype_name(dtype),
    }


def log_other_machine(run: Run, device: torch.device, dtype: torch.dtype) -> None:
    """Warn if this machine differs from the one that started the run in ways that change the last digits."""
    before, now = run.environment(), describe_environment(device, dtype)
    changed = [
        name for name in ("processor", "threads", "processes", "torch") if before.get(name, now[name]) != now[name]
    ]
    if changed:
        seen = ", ".join(f"{name} {now[name]}, not {before[name]}" for name in changed)
        logger.warning(f"machine     {seen} as before: the result may differ in the last digits")


def resumed_precision(
    record: RunRecord, device_name: DeviceName, wanted: DtypeName
) -> tuple[torch.device, torch.dtype]:
    """Device and precision of a resumed run: from its record, unless others are requested; changes are logged."""
    device = choose_device(record.device if device_name == "auto" else device_name)
    dtype = choose_training_dtype(cast(DtypeName, record.dtype) if wanted == "auto" else wanted, device)
    if (device.type, dtype_name(dtype)) != (record.device, record.dtype):
        logger.warning(
            f"precision   {device.type} in {dtype_name(dtype)}, not {record.device} in {record.dtype} as before: "
            "the result will differ in the last digits"
        )
    return device, dtype


def resumed_training(training: TrainingConfig, given: Mapping[str, Any]) -> TrainingConfig:
    """The settings of a resumed run, with requested changes of the settings that may change.

    These affect memory use, and the result only by rounding.
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
    return changed


class Meter:
    """Peak memory and model FLOPs utilisation (MFU). The device's peak FLOP/s are measured once, when needed."""

    def __init__(self, flops_per_token: int | None, device: torch.device, dtype: torch.dtype):
        self.flops_per_token, self.device, self.dtype = flops_per_token, device, dtype
        self._peak: float | None = None

    def mfu(self, tokens_per_second: float | None, seconds: float) -> float | None:
        """The model's FLOP/s as a share of the device's peak FLOP/s (Chowdhery et al. 2022, appendix B).

        None in the first MEASURED_AFTER `seconds` of training, and if the FLOPs per token are not known.
        """
        if tokens_per_second is None or self.flops_per_token is None or seconds < MEASURED_AFTER:
            return None
        self._peak = self._peak or peak_flops(self.device, self.dtype)
        return round(tokens_per_second * self.flops_per_token / self._peak, 4)

    def peak_memory_bytes(self) -> int:
        """The peak memory so far: of the GPU if one is used, else of the process."""
        if self.device.type == "cuda":
            return torch.cuda.max_memory_allocated(self.device)
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * RSS_UNIT
