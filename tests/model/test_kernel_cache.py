"""Compiled kernels are kept in a folder that only the user can write to."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from foretell.model.kernels.compiling import cache_folder, is_private


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


def test_the_folder_is_the_users_own(home: Path) -> None:
    folder = cache_folder()
    assert folder.parent == home / "foretell" / "kernels"
    assert folder.stat().st_mode & 0o777 == 0o700
    assert cache_folder() == folder


def test_a_folder_that_others_can_write_to_is_not_used(home: Path) -> None:
    folder = cache_folder()
    folder.chmod(0o777)
    assert not is_private(folder)
    other = cache_folder()
    assert other != folder
    assert is_private(other)


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
