"""Files and folders that are there whole or not at all."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from foretell.errors import CheckpointError, Interrupted, OutputError, UsageError, as_path
from foretell.storage import files
from foretell.storage.files import (
    GENERATOR,
    TEMPORARY,
    check_new,
    check_target,
    check_writable,
    new_directory,
    new_files,
    read_json,
    remove_leftovers,
    write_json,
    write_text,
)
from foretell.typesetting.numbers import format_bytes


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_json_survives_a_round_trip(tmp_path: Path) -> None:
    value = {"a": [1, 2.5, None], "ü": {"b": "x\ny"}}
    write_json(tmp_path / "x.json", value)
    assert read_json(tmp_path / "x.json") == value
    assert names(tmp_path) == ["x.json"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is not readable JSON"),
        (b'{"a": 1', "is not readable JSON"),
        (b"\xff\xfe", "is not a text file in UTF-8"),
        (b"[" * 100_000, "is not readable JSON"),
        (b"[1]", "does not hold a JSON object"),
    ],
)
def test_a_file_without_a_json_object_is_one_line(content: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=message) as raised:
        read_json(path)
    assert str(raised.value).startswith(str(path))
    assert "\n" not in str(raised.value)


def test_a_missing_file_and_a_folder_in_its_place_are_one_line(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="is missing"):
        read_json(tmp_path / "x.json")
    with pytest.raises(CheckpointError, match="is not a regular file"):
        read_json(tmp_path)


def test_a_failed_write_leaves_the_old_text(tmp_path: Path, faults: Any) -> None:
    path = tmp_path / "x.txt"
    write_text(path, "old")
    operations = 0
    while True:
        with faults.after(operations, OSError):
            try:
                write_text(path, "new")
            except OutputError as error:
                assert str(error) == f"could not write {path}: No space left on device"
        if not faults.happened:
            break
        operations += 1
        assert names(tmp_path) == ["x.txt"]
        assert path.read_text() in ("old", "new")
    assert operations >= 3
    assert path.read_text() == "new"


@pytest.fixture
def journal(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is synchronised and what is renamed, in order."""
    lines: list[str] = []

    def noted(word: str, operation: Callable, place: Callable[[Any], Path]) -> Callable:
        def run(path: Path, *rest: Path) -> Any:
            result = operation(path, *rest)
            lines.append(f"{word} {place((path, *rest)).name}")
            return result

        return run

    monkeypatch.setattr(files, "sync", noted("sync", files.sync, lambda paths: paths[0]))
    monkeypatch.setattr(Path, "rename", noted("appears", Path.rename, lambda paths: paths[1]))
    monkeypatch.setattr(Path, "replace", noted("appears", Path.replace, lambda paths: paths[1]))
    return lines


@pytest.mark.parametrize("error", [KeyboardInterrupt, Interrupted("stopped by SIGTERM", 143)])
def test_a_signal_while_a_text_is_written_leaves_the_old_one_alone(
    tmp_path: Path, monkeypatch: Any, error: Any
) -> None:
    def stop(_: Path) -> None:
        raise error

    path = tmp_path / "x.txt"
    path.write_text("old")
    monkeypatch.setattr(files, "sync", stop)
    with pytest.raises((KeyboardInterrupt, Interrupted)):
        write_text(path, "new")
    assert (names(tmp_path), path.read_text()) == (["x.txt"], "old")


def test_a_disk_that_refuses_every_write_is_named_with_the_file(tmp_path: Path, monkeypatch: Any) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(30, "Read-only file system", "another name")

    for method in ("write_text", "unlink"):
        monkeypatch.setattr(Path, method, refuse)
    with pytest.raises(OutputError, match=f"^could not write {tmp_path}/x.txt: Read-only file system$"):
        write_text(tmp_path / "x.txt", "new")


def test_a_folder_that_cannot_be_written_is_refused_before_any_work(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("os.access", lambda folder, mode: folder != tmp_path)
    for check in (check_new, check_target, check_writable):
        with pytest.raises(OutputError, match=f"the folder {tmp_path} cannot be written; give another one"):
            check(tmp_path / "x")
    (tmp_path / "inside").mkdir()
    check_new(tmp_path / "inside" / "x")
    with pytest.raises(OutputError, match=f"the folder {tmp_path} cannot be written"):
        check_new(tmp_path / "missing" / "x")


def test_a_text_is_synced_before_and_after_its_renaming(tmp_path: Path, journal: list[str]) -> None:
    write_text(tmp_path / "x.txt", "new")
    temporary, *rest = journal
    assert temporary.startswith("sync .tmp-foretell-x.txt")
    assert rest == ["appears x.txt", f"sync {tmp_path.name}"]


def test_a_folder_is_synced_before_and_after_its_renaming(tmp_path: Path, journal: list[str]) -> None:
    with new_directory(tmp_path / "x") as temporary:
        (temporary / "a").write_text("1")
    assert journal == ["sync a", f"sync {temporary.name}", "appears x", f"sync {tmp_path.name}"]


def test_a_folder_appears_when_its_block_ends(tmp_path: Path) -> None:
    final = tmp_path / "made" / "step-1"
    with new_directory(final) as temporary:
        (temporary / "a").write_text("1")
        assert not final.exists()
    assert names(final) == ["a"]
    assert names(final.parent) == ["step-1"]


def test_a_folder_never_appears_if_its_block_fails(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="ours"), new_directory(tmp_path / "x") as temporary:
        (temporary / "a").write_text("1")
        raise ValueError("ours")
    assert names(tmp_path) == []


def test_a_folder_replaces_the_old_one_only_if_its_block_succeeds(tmp_path: Path) -> None:
    final = tmp_path / "x"
    for content in ("old", "new"):
        with new_directory(final) as temporary:
            (temporary / "a").write_text(content)
            assert not final.exists() or (final / "a").read_text() == "old"
    assert (final / "a").read_text() == "new"
    assert names(tmp_path) == ["x"]


def test_several_files_are_renamed_together_at_the_end(tmp_path: Path):
    with new_files(tmp_path / "new" / "a", tmp_path / "new" / "b") as paths:
        for path in paths:
            path.write_text(path.name)
        assert not (tmp_path / "new" / "a").exists()
    assert {path.name: path.read_text() for path in (tmp_path / "new").iterdir()} == {"a": "a", "b": "b"}


def test_if_one_of_several_files_fails_none_is_left(tmp_path: Path):
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "mine").write_text("precious")
    with pytest.raises(OutputError, match="could not write"), new_files(tmp_path / "a", tmp_path / "b") as paths:
        for path in paths:
            path.write_text("x")
    with pytest.raises(ValueError, match="ours"), new_files(tmp_path / "a") as (path,):
        path.write_text("x")
        raise ValueError("ours")
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["b", "mine"]


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 bytes"), (999, "999 bytes"), (1500, "1.5 kB"), (2 * 10**9, "2.0 GB"), (7.9e24, "7,900 ZB")],
)
def test_bytes_are_written_for_people(count: float, text: str) -> None:
    assert format_bytes(count) == text


# --- files of the user -----------------------------------------------------------------------------------------------

PNG = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + b"\0" * 17
THEIRS = {
    "a text": b"a text of the user's",
    "zeros": b"\x00" * 5000,
    "a page": b"<!DOCTYPE html>\n<title>mine</title>",
    "a page by another program": b'<!doctype html>\n<meta name="generator" content="mkdocs">',
    "a page about our mark": f"<!doctype html>\n<p>{'x' * 5000}{GENERATOR}".encode(),
    "a text about our mark": GENERATOR.encode(),
    "a picture": PNG + b"\0\0\0\x12tEXtSoftware\0Matplotlib",
    "a table": b"unique_id,ds,y\n",
    "json lines": b'{"prompt": "a", "messages": []}\n',
    "weights": b"\x20\0\0\0\0\0\0\0" + b'{"__metadata__":{"format":"pt"}}',
}
OURS = {
    "nothing": b"",
    "a page": f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n{GENERATOR}'.encode(),
    "a picture": PNG + b"\0\0\0\x11tEXtSoftware\0foretell",
    "a trace": b"\x20\0\0\0\0\0\0\0" + b'{"__metadata__":{"text":"a","format":"foretell.trace/1"}}',
}


@pytest.mark.parametrize("content", THEIRS.values(), ids=THEIRS)
def test_a_file_without_a_mark_of_foretell_is_replaced_only_on_request(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "my.txt"
    path.write_bytes(content)
    with pytest.raises(
        OutputError, match="my.txt: it exists; give another name, or overwrite=True to replace"
    ) as error:
        check_target(path)
    assert error.value.for_command_line().endswith("or --overwrite to replace it")
    assert path.read_bytes() == content
    assert check_target(path, overwrite=True) == path.resolve()


@pytest.mark.parametrize("content", OURS.values(), ids=OURS)
def test_an_empty_file_and_one_with_a_mark_are_replaced(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x").write_bytes(content)
    assert check_target(tmp_path / "x") == (tmp_path / "x").resolve()


@pytest.mark.parametrize("name", ["out.replaced", ".tmp-out-1", ".tmp-mine", ".replaced-out"])
def test_a_folder_of_the_user_next_to_the_new_one_is_never_touched(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    (tmp_path / name / "precious").write_text("x")
    for content in ("old", "new"):
        with new_directory(tmp_path / "out") as temporary:
            (temporary / "a").write_text(content)
    remove_leftovers(tmp_path, is_locked=True)
    assert (tmp_path / name / "precious").read_text() == "x"


@pytest.fixture
def ended() -> int:
    """The number of a process that has ended."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def write_a_directory(folder: Path) -> None:
    with new_directory(folder / "out") as temporary:
        (temporary / "a").write_text("x")


def write_a_file(folder: Path) -> None:
    with new_files(folder / "out") as (temporary,):
        temporary.write_text("x")


@pytest.mark.parametrize("write", [write_a_directory, write_a_file, lambda folder: write_text(folder / "out", "x")])
def test_the_next_writing_in_a_folder_removes_what_killed_processes_left(
    write: Callable[[Path], None], tmp_path: Path, ended: int
) -> None:
    (tmp_path / f"{TEMPORARY}model-{ended}").mkdir()
    (tmp_path / f"{TEMPORARY}model-{ended}" / "model.safetensors").write_text("half")
    (tmp_path / f"{TEMPORARY}page.html-{ended}").write_text("half")
    write(tmp_path)
    assert names(tmp_path) == ["out"]


@pytest.mark.parametrize("number", [os.getppid(), 1, "9" * 30, "mine", ""])
def test_what_a_living_process_writes_is_left_alone(number: object, tmp_path: Path) -> None:
    (tmp_path / f"{TEMPORARY}model-{number}").mkdir()
    write_a_directory(tmp_path)
    assert names(tmp_path) == [f"{TEMPORARY}model-{number}", "out"]


def test_a_process_of_another_user_is_alive(tmp_path: Path, monkeypatch: Any) -> None:
    def refuse(*_: int) -> None:
        raise PermissionError

    monkeypatch.setattr("os.kill", refuse)
    (tmp_path / f"{TEMPORARY}model-77").mkdir()
    write_a_directory(tmp_path)
    assert (tmp_path / f"{TEMPORARY}model-77").exists()


# --- the home directory ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "path"),
    [
        ("~/x", "HOME/x"),
        ("~", "HOME"),
        (Path("~/x"), "HOME/x"),
        ("./~/x", "HERE/~/x"),
        ("~x", "~x"),
        ("~$book.csv", "~$book.csv"),
        ("a/~/x", "a/~/x"),
    ],
)
def test_a_leading_tilde_is_the_home_directory(given: str, path: str, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    expected = Path(path.replace("HOME", str(tmp_path / "home")).replace("HERE", str(tmp_path)))
    assert as_path("a path", given) == expected
    assert as_path("a path", as_path("a path", given)) == expected


def test_an_unknown_home_directory_is_one_line(monkeypatch: Any) -> None:
    monkeypatch.setattr("os.path.expanduser", lambda path: path)
    with pytest.raises(UsageError, match="~/x: the home directory is not known; give the whole path"):
        as_path("a path", "~/x")
