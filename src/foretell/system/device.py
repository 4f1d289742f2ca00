"""Device and precision: the choices of `auto`, an error for a missing device, and contexts of execution."""

from __future__ import annotations

import os
import sys
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import torch
from torch import Tensor

from foretell.errors import UsageError, did_you_mean
from foretell.system import DtypeName

# The memory limit of a Linux container, in control groups version 2 and version 1
CONTAINER_LIMITS = tuple(Path("/sys/fs/cgroup") / name for name in ("memory.max", "memory/memory.limit_in_bytes"))
CPU_INFO = Path("/proc/cpuinfo")
# Variables that limit the instructions of oneDNN, torch's bfloat16 backend, and their values that exclude bfloat16
ISA_LIMITS = ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA")
WITHOUT_BFLOAT16 = ("SSE41", "AVX", "AVX2", "AVX2_VNNI", "AVX512_CORE", "AVX512_CORE_VNNI")
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
WEIGHT_DTYPES = {**DTYPES, "float16": torch.float16, "float64": torch.float64}


def choose_device(device: str | torch.device = "auto") -> torch.device:
    """A device by its name, such as cpu or cuda:1, or the best available one.

    Raises `UsageError` for an unknown name and for a device that is missing.
    """
    available = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    kind, _, index = str(device).partition(":")
    check_name("device", kind, ("auto", *sorted(available)))
    if kind == "auto":
        kind = next(kind for kind, is_available in available.items() if is_available)
    if not available[kind]:
        names = " and ".join(kind for kind, is_available in available.items() if is_available)
        raise UsageError(f"no {kind} device is available; available: {names} (--device auto takes the best)")
    if index and not (index.isdigit() and (kind != "cuda" or int(index) < torch.cuda.device_count())):
        raise UsageError(f"no device '{device}' here")
    return torch.device(kind, int(index)) if index else torch.device(kind)


def dtype_name(dtype: str | torch.dtype) -> str:
    """`bfloat16` for torch.bfloat16."""
    return str(dtype).removeprefix("torch.")


def find_dtype(dtype: str | torch.dtype) -> torch.dtype:
    """A dtype of weights by its name; raises `UsageError` for any other."""
    name = dtype_name(dtype)
    check_name("dtype", name, tuple(WEIGHT_DTYPES))
    return WEIGHT_DTYPES[name]


def choose_inference_dtype(dtype: DtypeName | torch.dtype, device: torch.device) -> torch.dtype:
    """The named dtype; `auto`: bfloat16 on a GPU, float32 on a CPU, where bfloat16 is not faster for one row."""
    name = dtype_name(dtype)
    check_name("dtype", name, ("auto", *DTYPES))
    return DTYPES.get(name, torch.float32 if device.type == "cpu" else torch.bfloat16)


def choose_training_dtype(name: DtypeName, device: torch.device) -> torch.dtype:
    """The dtype of matmuls in training; `auto` is bfloat16 if the processor has instructions for it."""
    check_name("dtype", name, ("auto", *DTYPES))
    if name == "auto":
        return torch.bfloat16 if multiplies_bfloat16(device) else torch.float32
    return DTYPES[name]


def check_name(what: str, name: str, known: tuple[str, ...]) -> None:
    """Refuse an unknown name: the command line checks its options, but names from Python arrive unchecked."""
    if name not in known:
        raise UsageError(f"unknown {what} {name!r}{did_you_mean(str(name), known)}; known: {', '.join(known)}")


def multiplies_bfloat16(device: torch.device) -> bool:
    """True if the processor has instructions for bfloat16 matmuls, which oneDNN may use."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    if device.type != "cpu" or any(os.environ.get(name, "").upper() in WITHOUT_BFLOAT16 for name in ISA_LIMITS):
        return False
    features = torch.cpu.get_capabilities()
    return any(features.get(name, False) for name in ("avx512_bf16", "amx_bf16", "bf16"))


def is_amd() -> bool:
    """True if Linux or Windows reports a processor made by AMD."""
    return "AuthenticAMD" in (system_text(CPU_INFO) or os.environ.get("PROCESSOR_IDENTIFIER", ""))


def memory_of(device: torch.device) -> int:
    """Total memory of the device in bytes; for a CPU at most the limit of its container."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    installed = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([installed, *(int(text) for text in map(system_text, CONTAINER_LIMITS) if text.isdigit())])


def system_text(path: Path) -> str:
    """The text of a file of the operating system; empty if there is none."""
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError:
        return ""


def to_device(tensor: Tensor, device: torch.device | str) -> Tensor:
    """The tensor on a device. A copy to a GPU is made from pinned memory, so that the host does not wait for it."""
    if torch.device(device).type == "cuda" and tensor.device.type == "cpu":
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)


def autocast(device: torch.device, dtype: torch.dtype) -> torch.autocast:
    """A context in which matmuls run in `dtype`: bfloat16 by autocast, float32 without."""
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=dtype == torch.bfloat16)


def eagerly() -> AbstractContextManager[object]:
    """Run compiled modules uncompiled inside the block, where every new shape would need a compilation."""
    is_loaded = "torch._dynamo" in sys.modules  # otherwise nothing is compiled, and importing it takes seconds
    return torch.compiler.set_stance("force_eager") if is_loaded else nullcontext()
