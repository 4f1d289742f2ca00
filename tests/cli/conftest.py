"""A small run that all command-line tests share, and a way to run commands in this process."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from foretell.cli.main import run as run_command

TEXT = "The cat sat on the mat. The dog sat on the log.\nWho sat where? The cat, the dog.\n" * 60
TINY = ["--size", "toy", "--model.width", "16", "--model.context-length", "32", "--training.batch-size", "4"]


@dataclass
class Outcome:
    """What a command left behind."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def last_line(self) -> str:
        """The last line on stderr, which is where an error is said."""
        return self.err.rstrip("\n").rpartition("\n")[2]

    def succeeds(self) -> Outcome:
        assert self.code == 0, self.err
        return self

    def fails(self, code: int, *words: str) -> Outcome:
        """Assert that the command ended with an error: its exit code, and words of its line."""
        assert self.code == code, self.err
        assert all(word in self.last_line for word in words), self.last_line
        return self

    def refuses(self, code: int, *words: str) -> None:
        """Assert an error before anything was printed."""
        assert self.fails(code, *words).out == ""


@pytest.fixture
def foretell(capfd, monkeypatch, tmp_path):
    """Run one command in a directory of its own."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments: str | Path) -> Outcome:
        capfd.readouterr()
        code = run_command([str(argument) for argument in arguments])
        captured = capfd.readouterr()
        return Outcome(code, captured.out, captured.err)

    return call


@pytest.fixture
def here(directory, monkeypatch) -> Path:
    """The `directory` of a file of tests, as the current one. Ask for it after `foretell`, which has its own."""
    monkeypatch.chdir(directory)
    return directory


@pytest.fixture(scope="session")
def corpus(shared_folder) -> Path:
    """A text file to learn from, with one path for all processes of pytest-xdist."""
    path = shared_folder / "cats.txt"
    own = path.with_name(f"cats-{os.getpid()}.txt")
    own.write_text(TEXT, encoding="utf-8")
    return own.replace(path)


@pytest.fixture(scope="session")
def trained(corpus, made_once) -> Path:
    """A run of a few steps on bytes, with several checkpoints."""

    def train(out: Path) -> None:
        arguments = [*TINY, "--kind", "bytes", "--steps", "12", "--checkpoint-every", "4", "--out", str(out)]
        assert run_command(["train", str(corpus), *arguments]) == 0

    return made_once("cats", train)
