"""Compilation of kernels: the processor's features, the cache of compiled code, and numba's threads.

Importing this module imports numba and starts its threads.
"""

from __future__ import annotations

import atexit
import grp
import hashlib
import os
import pwd
import re
import shutil
import signal
import stat
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numba
import numba.extending
import torch
from numba import cfunc, njit, types
from numba.core import registry

from foretell.errors import end_by_signal
from foretell.storage.files import cache_home

DIGITS = 16  # digits of the hash in the name of a version's folder
DISUSED = 7 * 24 * 3600.0  # seconds; no process is expected to run and compile for longer
OF_PROCESS = "foretell-kernels-"  # prefix of a folder that is removed when its process ends


def target_features() -> frozenset[str]:
    """The processor features that numba compiles for, by LLVM's names, such as `avx512f`.

    NUMBA_CPU_NAME and NUMBA_CPU_FEATURES limit them: haswell and +avx2,+fma compile for AVX2. Setting only the name
    does not limit them, because numba adds the features of this machine.
    """
    target: Any = registry.cpu_target
    _, _, features = target.target_context.codegen().magic_tuple()
    return frozenset(name[1:] for name in features.split(",") if name.startswith("+"))


config: Any = numba.config
intrinsic: Any = numba.extending.intrinsic  # Any: calls in compiled code have other arguments than the definition

FEATURES = target_features()
MAX_THREADS: int = config.NUMBA_NUM_THREADS


def cache_folder() -> Path:
    """The folder in which the compiled code of this installation of the kernels persists.

    numba compares only the path and time stamp of the file with a function, not of the files with the functions that it
    calls. The folder's name depends on all of these, so its markers are valid; even a copy with the same content is
    compiled again. The cache contains code and pickled signatures, so a folder that others can write to or replace is
    not used; then nothing is kept.
    """
    digest = hashlib.sha256()
    for file in sorted(Path(__file__).resolve().parent.glob("*.py")):
        digest.update(f"{file} {file.stat().st_mtime_ns}".encode() + file.read_bytes())
    try:
        chosen = Path(config.CACHE_DIR).absolute() if config.CACHE_DIR else None
        folder = (chosen or cache_home() / "foretell" / "kernels") / digest.hexdigest()[:DIGITS]
        is_new = not folder.exists()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not is_private(folder) or not has_safe_parents(folder):
            return private_folder()
        os.utime(folder)  # record the time of the last use
        if is_new:
            remove_disused(folder)
    except (OSError, RuntimeError):  # RuntimeError: neither HOME nor an entry in the list of users
        return private_folder()
    return folder


def remove_disused(folder: Path) -> None:
    """Remove this user's folders of other versions that have not been used for `DISUSED` seconds.

    Recently used folders stay, because a process that saves a kernel in a removed folder would fail.
    """
    for other in folder.parent.iterdir():
        is_version = re.fullmatch(f"[0-9a-f]{{{DIGITS}}}", other.name) and other.is_dir() and not other.is_symlink()
        try:
            if is_version and is_private(other) and time.time() - other.stat().st_mtime > DISUSED:
                shutil.rmtree(other, ignore_errors=True)
        except FileNotFoundError:  # removed by another process at the same time
            continue


def is_private(folder: Path) -> bool:
    """True if only this user can write to a folder."""
    status = folder.stat()
    return status.st_uid == os.getuid() and not status.st_mode & 0o022 and os.access(folder, os.W_OK)


def has_safe_parents(folder: Path) -> bool:
    """True if no other user except root can replace a folder through the folders or links in its path.

    A sticky folder such as /tmp may be writable, because others cannot rename entries there that they do not own.
    """
    private_group = group_of_this_user_alone()

    def is_safe(state: os.stat_result) -> bool:
        shared = 0o002 if state.st_gid == private_group else 0o022
        return state.st_uid in (0, os.getuid()) and bool(not state.st_mode & shared or state.st_mode & stat.S_ISVTX)

    return all(is_safe(parent.stat()) for parent in {*folder.parents, *folder.resolve().parents})


def group_of_this_user_alone() -> int | None:
    """The user's private group, which has the user's name, if there is one; new folders are then writable for it."""
    try:
        is_private = grp.getgrgid(os.getgid()).gr_name == pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return None
    return os.getgid() if is_private else None


def private_folder() -> Path:
    """A new folder for this process only, which is removed when the process ends."""
    folder = Path(tempfile.mkdtemp(prefix=OF_PROCESS))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def start_threads() -> None:
    """Start numba's threads; torch keeps its number of threads.

    torch has a separate copy of OpenMP, but starting numba's threads sets the number of threads of both.
    """
    threads = torch.get_num_threads()
    numba.get_num_threads()
    if torch.get_num_threads() != threads:
        torch.set_num_threads(threads)


start_threads()
CACHE = str(cache_folder())
Program = Callable[[int], None]  # takes the address of its arguments


# Functions linked into their callers compile in half the time without Python wrappers and cached files
INNER: dict[str, Any] = {"nogil": True, "error_model": "numpy", "no_cpython_wrapper": True, "no_cfunc_wrapper": True}


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a function of numbers, vectors and records for calls from compiled code."""
    return njit(**INNER)(function)


def inlined(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a function into its callers: for inner parts of a kernel that take less time than a call."""
    return njit(**INNER, forceinline=True)(function)


def merged(function: Callable[..., Any]) -> Callable[..., Any]:
    """Copy a function into the source of its caller: for a part of a program with a single caller."""
    return njit(**INNER, inline="always")(function)


def compiled_parallel(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a function with `prange` loops, which run on all threads, at its first call; later processes load it."""
    with cache_in_folder():
        dispatcher = njit(nogil=True, error_model="numpy", parallel=True)(function)
        dispatcher.enable_caching()
        return dispatcher


def compiled_callback(function: Callable[..., None], arguments: int) -> Any:
    """Compile a function of `arguments` integers, which is called by its `address`; later processes load it.

    It is compiled separately from its callers, so only kernels that are used are compiled.
    """
    signature = types.void(*[types.int64] * arguments)
    with cache_in_folder(), ended_by_signals():
        return cfunc(signature, cache=True, error_model="numpy")(function)


@cache
def compiled_program(program: Program) -> Any:
    """Compile a program for `run_on_threads`, once per process."""
    return compiled_callback(program, arguments=1)


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """Let SIGTERM and SIGHUP end the process at once: a Python handler would wait for LLVM, up to 40 s.

    A training's handler stays, because it saves first.
    """
    is_main = threading.current_thread() == threading.main_thread()
    handled = [each for each in (signal.SIGTERM, signal.SIGHUP) if is_main and signal.getsignal(each) is end_by_signal]
    for number in handled:
        signal.signal(number, signal.SIG_DFL)
    try:
        yield
    finally:
        for number in handled:
            signal.signal(number, end_by_signal)


def compile_now(dispatcher: Any, arguments: int) -> None:
    """Compile or load a function of `arguments` integers before its first call."""
    with cache_in_folder(), ended_by_signals():
        dispatcher.compile((types.int64,) * arguments)


def is_kept() -> bool:
    """True if the code that this process compiles is kept for later processes."""
    return not Path(CACHE).name.startswith(OF_PROCESS)


def marker(name: str) -> Path:
    """The empty file whose existence shows that a kernel is in the cache for this type of processor.

    A look-up in numba's cache needs the function, its signature and part of the compilation.
    """
    target: Any = registry.cpu_target
    digest = hashlib.sha256(f"{name} {target.target_context.codegen().magic_tuple()}".encode()).hexdigest()
    return Path(CACHE) / f"{digest[:DIGITS]}.compiled"


def mark_as_compiled(name: str) -> None:
    """Record that a kernel is in the cache."""
    marker(name).touch()


def is_compiled(name: str) -> bool:
    """True if a kernel is in the cache."""
    return marker(name).exists()


@contextmanager
def cache_in_folder() -> Iterator[None]:
    """Compile with the cache in `CACHE`, even if other code in this process has set another one."""
    given, config.CACHE_DIR = config.CACHE_DIR, CACHE
    try:
        yield
    finally:
        config.CACHE_DIR = given
