"""GPUs with the figures of their data sheets, and what is known about this machine."""

from __future__ import annotations

from dataclasses import dataclass

from foretell.errors import UsageError, did_you_mean

THIS = "this"


@dataclass(frozen=True)
class Accelerator:
    """A device that trains. peak_flops: dense, in bfloat16; memory in bytes; bandwidth in bytes per second."""

    name: str
    memory: float
    bandwidth: float
    peak_flops: float
    source: str


def _gpu(name: str, teraflops: float, gigabytes: float, terabytes_per_second: float, source: str) -> Accelerator:
    return Accelerator(name, gigabytes * 1e9, terabytes_per_second * 1e12, teraflops * 1e12, source)


# Dense products: data sheets that print the rate with sparsity are halved
ACCELERATORS = {
    gpu.name: gpu
    for gpu in (
        _gpu("a100", 312, 80, 2.039, "NVIDIA A100 80GB SXM, data sheet"),
        _gpu("a100-40gb", 312, 40, 1.555, "NVIDIA A100 40GB SXM, data sheet"),
        _gpu("h100", 989, 80, 3.35, "NVIDIA H100 SXM, data sheet"),
        _gpu("h200", 989, 141, 4.8, "NVIDIA H200 SXM, data sheet"),
        _gpu("l4", 121, 24, 0.3, "NVIDIA L4, data sheet"),
        _gpu("rtx4090", 165.2, 24, 1.008, "NVIDIA Ada architecture white paper, products summed in float32"),
    )
}


def find_accelerator(name: str) -> Accelerator:
    """The GPU of this name; an unknown one is a `UsageError`."""
    if name not in ACCELERATORS:
        known = ", ".join((THIS, *ACCELERATORS))
        raise UsageError(f"--gpu '{name}' is not known{did_you_mean(name, ACCELERATORS)}; known: {known}")
    return ACCELERATORS[name]
