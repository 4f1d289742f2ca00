"""Where a model runs and in which precision: what `auto` means, and a refusal where something is not there."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

import torch

from foretell.errors import UsageError

DeviceName = Literal["auto", "cpu", "cuda", "mps"]
DtypeName = Literal["auto", "float32", "bfloat16"]
# How Linux states the memory of a container, in the second and the first version of control groups
CONTAINER_LIMITS = tuple(Path("/sys/fs/cgroup") / name for name in ("memory.max", "memory/memory.limit_in_bytes"))
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def choose_device(name: DeviceName = "auto") -> torch.device:
    """The named device, or the best one here; a device that is missing is a `UsageError`, never replaced silently."""
    available = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if name == "auto":
        return torch.device(next(kind for kind, is_there in available.items() if is_there))
    if not available[name]:
        there = " and ".join(kind for kind, is_there in available.items() if is_there)
        raise UsageError(f"no {name} device here; there is {there} (--device auto takes the best)")
    return torch.device(name)


def choose_inference_dtype(name: DtypeName, device: torch.device) -> torch.dtype:
    """float32 on a CPU, where it is exact and bfloat16 is not faster for one row; bfloat16 on a GPU."""
    if name == "auto":
        return torch.float32 if device.type == "cpu" else torch.bfloat16
    return DTYPES[name]


def choose_training_dtype(name: DtypeName, device: torch.device) -> torch.dtype:
    """The precision of matrix products in training: bfloat16 where the processor multiplies it faster."""
    if name == "auto":
        return torch.bfloat16 if multiplies_bfloat16(device) else torch.float32
    return DTYPES[name]


def multiplies_bfloat16(device: torch.device) -> bool:
    """Has the processor instructions for bfloat16 products?"""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    if device.type == "cpu":
        features = torch.cpu.get_capabilities()
        return any(features.get(name, False) for name in ("avx512_bf16", "amx_bf16", "bf16"))
    return False


def memory_of(device: torch.device) -> int:
    """Bytes of memory that the device has, used or not; for a CPU what its container allows, where that is less."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([there, *(int(text) for text in map(read_limit, CONTAINER_LIMITS) if text.isdigit())])


def read_limit(path: Path) -> str:
    """What a container's limit says: a number of bytes, `max`, or nothing where there is none."""
    try:
        return path.read_text(encoding="ascii").strip()
    except OSError:
        return ""


def autocast(device: torch.device, dtype: torch.dtype) -> torch.autocast:
    """A context in which matrix products run in `dtype`: bfloat16 by autocast, float32 as they are."""
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=dtype == torch.bfloat16)
