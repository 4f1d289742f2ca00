"""Compiled kernels are kept in a folder that only the user can write to."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import get_args

import pytest

from foretell.model.kernels import compiling
from foretell.model.kernels.compiling import DISUSED, OF_PROCESS, cache_folder, compiled_callback, is_private
from foretell.model.kernels.matmul import Unit, make_kernel


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


def test_the_folder_is_the_users_own(home: Path) -> None:
    folder = cache_folder()
    assert folder.parent == home / "foretell" / "kernels"
    assert folder.stat().st_mode & 0o777 == 0o700
    assert cache_folder() == folder


def test_a_copy_or_another_installation_of_the_same_kernels_has_a_folder(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """numba would not use what is in the first one, so its markers would be wrong."""
    folder = cache_folder()
    copy = Path(shutil.copytree(Path(compiling.__file__).parent, tmp_path / "copy"))
    monkeypatch.setattr(compiling, "__file__", str(copy / "compiling.py"))
    copied = cache_folder()
    os.utime(copy / "compiling.py", (0, 0))
    assert len({folder, copied, cache_folder()}) == 3


def test_a_folder_that_others_can_write_to_is_not_used(home: Path) -> None:
    folder = cache_folder()
    folder.chmod(0o777)
    assert not is_private(folder)
    other = cache_folder()
    assert other != folder
    assert is_private(other)


def test_a_folder_whose_parent_others_can_write_to_is_not_used(home: Path) -> None:
    """They could replace it; not in a sticky folder such as /tmp."""
    folder = cache_folder()
    home.chmod(0o777)
    assert cache_folder() != folder
    home.chmod(0o1777)
    assert cache_folder() == folder


def test_a_link_to_the_folder_that_others_can_replace_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("private", "shared"):
        (tmp_path / name).mkdir()
    (tmp_path / "shared" / "link").symlink_to(tmp_path / "private", target_is_directory=True)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "shared" / "link"))
    folder = cache_folder()
    assert folder.is_relative_to(tmp_path)
    (tmp_path / "shared").chmod(0o777)
    assert cache_folder() != folder


@pytest.mark.skipif(os.name == "posix" and os.getuid() != 0, reason="only root can give a folder away")
def test_a_folder_of_another_user_is_not_used(home: Path) -> None:
    folder = cache_folder()
    os.chown(folder, 12345, -1)
    assert cache_folder() != folder


def test_a_home_that_cannot_be_written_to_gives_a_folder_of_this_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert is_private(cache_folder())


def test_a_relative_cache_home_is_ignored_and_a_missing_home_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CACHE_HOME", "here")
    assert cache_folder().is_relative_to(tmp_path / "home" / ".cache")
    assert not (tmp_path / "here").exists()

    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(compiling.Path, "home", no_home)
    assert cache_folder().name.startswith(OF_PROCESS)


def test_the_folder_of_numbas_variable_is_used_only_if_others_cannot_write_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiling.config, "CACHE_DIR", str(tmp_path / "chosen"))
    folder = cache_folder()
    assert folder.parent == tmp_path / "chosen"
    folder.parent.chmod(0o777)
    assert cache_folder().name.startswith(OF_PROCESS)


def make_version(folder: Path, days: float) -> Path:
    """A folder of compiled code that was last used this many days ago."""
    folder.mkdir(mode=0o700, parents=True)
    (folder / "kernel.nbi").write_text("index")
    used = time.time() - days * 24 * 3600
    os.utime(folder, (used, used))
    return folder


def test_a_new_folder_removes_folders_of_disused_versions(home: Path, tmp_path: Path) -> None:
    kernels = home / "foretell" / "kernels"
    days = DISUSED / (24 * 3600)
    old, recent = make_version(kernels / ("a" * 16), days + 1), make_version(kernels / ("b" * 16), days - 1)
    writable, foreign = make_version(kernels / ("c" * 16), days + 1), make_version(kernels / "notes", days + 1)
    writable.chmod(0o777)
    elsewhere = make_version(tmp_path / "elsewhere", days + 1)
    (kernels / ("d" * 16)).symlink_to(elsewhere, target_is_directory=True)
    own = cache_folder()
    assert not old.exists()
    assert all((folder / "kernel.nbi").exists() for folder in (recent, writable, foreign, elsewhere))
    assert own.is_dir()


def test_only_a_new_folder_removes_others(home: Path) -> None:
    own = cache_folder()
    old = make_version(own.parent / ("a" * 16), 365)
    assert cache_folder() == own
    assert old.exists()


def test_a_folder_that_is_in_use_is_as_young_as_its_last_process(home: Path) -> None:
    own = cache_folder()
    os.utime(own, (0, 0))
    cache_folder()
    assert time.time() - own.stat().st_mtime < 3600


def do_nothing(address):
    """A kernel that is compiled in a moment."""


def test_a_compiled_kernel_is_loaded_the_second_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling, "CACHE", str(tmp_path))
    kernels = [compiled_callback(do_nothing, 1) for _ in range(2)]
    assert [kernel.cache_hits for kernel in kernels] == [0, 1]


@pytest.mark.parametrize("bits", [4, 8, 16, 32])
def test_a_kernel_of_a_matrix_encloses_only_constants(bits: int) -> None:
    """numba finds it by what it encloses, and a compiled function is another one in the next process."""
    for unit in get_args(Unit):
        kernel = make_kernel(bits, unit, 1, bits == 4)
        assert {type(cell.cell_contents) for cell in kernel.__closure__} <= {int, str, bool}


def test_a_kernel_is_compiled_once_it_is_marked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling, "CACHE", str(tmp_path))
    assert not compiling.is_compiled("nothing")
    compiling.mark_as_compiled("nothing")
    assert compiling.is_compiled("nothing")
    assert not compiling.is_compiled("anything")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_a_command_that_compiles_at_once(number: signal.Signals) -> None:
    code = """
import ctypes, signal
from foretell.errors import end_by_signal
from foretell.model.kernels.compiling import ended_by_signals
for number in (signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, end_by_signal)
with ended_by_signals():
    print("compiling", flush=True)
    ctypes.CDLL(None).sleep(60)  # as LLVM: a handler in Python waits for it
"""
    before = signal.getsignal(number)
    with compiling.ended_by_signals():
        assert signal.getsignal(number) == before  # only the handler of commands is replaced
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(number)
        assert process.wait(30) == -number
