"""Compilation of the kernels that a model needs before their first use: in this process, or in the background.

Compilation takes about ten seconds, once per version of the kernels and type of processor. A generation does not wait
for it: if kernels are missing in the cache, it uses torch's, and a background process compiles them for the next
generation. FORETELL_KERNELS=wait compiles them first; FORETELL_KERNELS=off never uses them.

`python -m foretell.model.kernels.warming NAME...` is the background process.
"""

from __future__ import annotations

import fcntl
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any, cast

from foretell.errors import UsageError
from foretell.model.decoder import Decoder
from foretell.model.kernels import compiling, threads
from foretell.model.kernels.fast_decoder import tell_once
from foretell.model.kernels.fast_linear import can_pack, form_of, stored_matrix
from foretell.model.kernels.lowering import Lowering, lower_block
from foretell.model.kernels.matmul import (
    FACTOR_TYPES,
    Kernel,
    Unit,
    compiled_kernel,
    compute_linear,
    fastest_unit,
    units_with,
)
from foretell.model.kernels.operations import run_program
from foretell.model.kernels.softmax_sums import sum_rows
from foretell.model.kernels.strict_layers import activate_all, attend_all
from foretell.model.quantized_linear import Int8Matrix, QuantizedMatrix
from foretell.model.transformer import Block

MODE = "FORETELL_KERNELS"  # background (the default), wait or off
NICENESS = 10  # niceness of the background process, which must not slow the generation
LAYERS, PASS, THREADS = "linear layers", "passes over few tokens", "threads"
FACTOR_NAMES = [str(dtype).removeprefix("torch.") for dtype in FACTOR_TYPES]
ACTIVATIONS, STRICT, SOFTMAX = "activations", "strict attention", "sums of softmax"

logger = logging.getLogger(__name__)


def kernel_mode() -> str:
    """The value of FORETELL_KERNELS. Raises UsageError for an unknown one."""
    mode = os.environ.get(MODE) or "background"
    if mode not in ("background", "wait", "off"):
        raise UsageError(f"{MODE}={mode!r} is unknown; use background, wait or off")
    return mode


def needed_kernels(decoder: Decoder, is_strict: bool = False) -> list[str]:
    """The names of the compiled kernels that a decoder, or its strict copy, uses on this machine."""
    layers = [module for module in decoder.modules() if can_pack(module)]
    if not layers:
        return []
    stores = map(stored_matrix, layers)
    kinds = dict.fromkeys(map(properties, stores))
    matrices = [
        name_of((bits, unit, factors, has_minima))
        for bits, group, factors, has_minima in kinds
        for unit in units_with(bits, fastest_unit(bits, group, has_minima))
    ]
    blocks = [] if is_strict else [module for module in decoder.modules() if isinstance(module, Block)]
    is_fused = any(isinstance(lower_block("", block, decoder.config.width), Lowering) for block in blocks)
    rest = [STRICT, ACTIVATIONS] if is_strict else [PASS, ACTIVATIONS] if is_fused else []
    return [*dict.fromkeys(matrices), LAYERS, THREADS, *rest, SOFTMAX]


def properties(store: Any) -> tuple[int, int, int, bool]:
    """Bits per weight, weights per scale (0: no scales), type of the factors and presence of minima in a matrix."""
    if isinstance(store, QuantizedMatrix):
        group, factors, has_minima = form_of(store)
        return 8 if isinstance(store, Int8Matrix) else 4, group, FACTOR_TYPES[factors], has_minima
    return store.weight.dtype.itemsize * 8, 0, 0, False


def name_of(kernel: Kernel) -> str:
    """`4 bits, dots, float16 scales and minima`."""
    bits, unit, factors, has_minima = kernel
    scales = f", {FACTOR_NAMES[factors]} scales{' and minima' if has_minima else ''}" if bits < 16 else ""
    return f"{bits} bits, {unit}{scales}"


def kernel_named(name: str) -> Kernel:
    """The inverse of `name_of`."""
    bits, unit, *scales = name.split(", ")
    words = scales[0].split() if scales else [FACTOR_NAMES[0]]
    return int(bits.removesuffix(" bits")), cast(Unit, unit), FACTOR_NAMES.index(words[0]), "minima" in words


def compile_kernel(name: str) -> None:
    """Compile a kernel, or load it if it is in the cache, and mark it as compiled."""
    if name in PROGRAMS:
        PROGRAMS[name]()
    else:
        compiled_kernel(*kernel_named(name))
    compiling.mark_as_compiled(name)


PROGRAMS: dict[str, Callable[[], Any]] = {
    LAYERS: partial(compiling.compiled_program, compute_linear),
    PASS: partial(compiling.compiled_program, run_program),
    THREADS: partial(compiling.compile_now, threads.start, 3),
    ACTIVATIONS: partial(compiling.compiled_program, activate_all),
    STRICT: partial(compiling.compiled_program, attend_all),
    SOFTMAX: partial(compiling.compiled_program, sum_rows),
}


def compile_kernels(names: Iterable[str]) -> Iterator[str]:
    """Compile kernels, or load them; yields each name afterwards."""
    for name in names:
        compile_kernel(name)
        yield name


def are_ready(decoder: Decoder, wait: bool = False, is_strict: bool = False) -> bool:
    """True if all kernels of a decoder are compiled; otherwise compiles them, here (`wait`) or in the background."""
    return are_compiled(needed_kernels(decoder, is_strict), wait)


def are_compiled(names: Iterable[str], wait: bool = False) -> bool:
    """True if these kernels are compiled; otherwise compiles them, here (`wait`) or in the background."""
    mode = kernel_mode()
    missing = [name for name in names if not compiling.is_compiled(name)]
    if mode == "off" or not missing:
        return mode != "off"
    if wait or mode == "wait":
        logger.info(f"compiling kernels ({'; '.join(missing)}): about ten seconds, once")
        for _ in compile_kernels(missing):
            pass
        return True
    if compiling.is_kept():
        compile_in_background(tuple(missing))
    else:
        tell_once(f"no kernels: this user has no folder for compiled code; {MODE}=wait compiles them in each process")
    return False


# --- the background process ------------------------------------------------------------------------------------------

STARTED: list[subprocess.Popen[bytes]] = []  # Python warns about a dropped Popen whose process is still running


def is_compiling() -> bool:
    """True while a process started by this process compiles kernels."""
    return any(process.poll() is None for process in STARTED)


@cache
def compile_in_background(names: tuple[str, ...]) -> None:
    """Start a process that compiles kernels into the cache and outlives this one."""
    if not sys.executable:
        return
    source = str(Path(__file__).parents[3])  # the folder that contains the package
    search = os.pathsep.join(filter(None, (source, os.environ.get("PYTHONPATH"))))
    command = [sys.executable, "-P", "-m", __name__, *names]  # -P: no module from the working directory
    nowhere = subprocess.DEVNULL
    try:
        process = subprocess.Popen(
            command,
            stdin=nowhere,
            stdout=nowhere,
            stderr=nowhere,
            env={**os.environ, "PYTHONPATH": search},
            start_new_session=True,
        )
    except OSError as error:
        logger.warning(f"cannot compile kernels in the background: {error.strerror}")
        return
    STARTED.append(process)
    logger.info("compiling kernels in the background; this generation runs without them, the next one uses them")


def main(names: list[str]) -> None:
    """Compile kernels, unless another process is doing so."""
    os.nice(NICENESS)
    folder = os.open(compiling.CACHE, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)  # until the process ends
    except OSError:
        return
    for _ in compile_kernels(names):
        pass


if __name__ == "__main__":
    main(sys.argv[1:])
