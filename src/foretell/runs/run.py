"""A run directory: the configuration, the metrics, the samples and the checkpoints of one training."""

from __future__ import annotations

import logging
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from foretell.errors import CheckpointError, OutputError, UsageError, as_path, check_type, did_you_mean
from foretell.runs.checkpoint import NAME, Checkpoint, best_checkpoint, list_checkpoints, newest_intact
from foretell.runs.record import (
    RUN,
    FollowedLineFile,
    LineFile,
    RunRecord,
    advice_without_record,
    and_advice,
    metrics_line,
    pace_line,
    parse_metrics,
    parse_pace,
    read_record,
    write_record,
)
from foretell.saved_model.retired import FILES
from foretell.storage.files import (
    TEMPORARY,
    check_not_removed,
    is_temporary,
    read_json,
    remove_directory,
    remove_leftovers,
    sync,
    write_json,
    write_text,
)

RUNS = Path("runs")
METRICS, ENVIRONMENT, CURVE = "metrics.jsonl", "environment.json", "loss.png"
REPORT, REPORT_PICTURE = "report.json", "report.png"  # for tasks that report on held-out data
PACE = "pace.txt"  # for a training of a given time: a line per step with the share done and the seconds
PREPARING = "preparing.json"  # exists until run.json does; names the data of the unfinished run
# Files that training writes in a run besides its checkpoints and tokens/, and leftovers of a killed training
WRITTEN = (RUN, METRICS, PACE, ENVIRONMENT, CURVE, PREPARING, REPORT, REPORT_PICTURE, *FILES)
WRITTEN += ("tensorboard/events.out.tfevents.*", f"samples/step-{'[0-9]' * 6}*.txt")
WRITTEN += tuple(f"{folder}{TEMPORARY}*" for folder in ("", "checkpoints/", "samples/", "tokens/**/"))

NUMBER = re.compile(r"\d+")
logger = logging.getLogger(__name__)


class Run:
    """Paths and records of one run."""

    line_file: type[LineFile] = LineFile

    def __init__(self, directory: str | Path):
        self.directory = directory = as_path("a run", directory)
        self.checkpoints = directory / "checkpoints"
        self.samples = directory / "samples"
        self.tokens = directory / "tokens"
        self.metrics = self.line_file(directory / METRICS, parse_metrics, metrics_line)
        self.pace = self.line_file(directory / PACE, parse_pace, pace_line)

    def __repr__(self) -> str:
        return f"Run('{self.directory}')"

    @property
    def name(self) -> str:
        return self.directory.name

    @classmethod
    def create(cls, directory: Path, data: list[str] | None = None) -> Run:
        """Make the directories of a new run; refuse an existing one. The run exists once its record is written."""
        cls.check_free(directory)
        run = cls(directory)
        try:
            directory.mkdir(parents=True, exist_ok=True)
            remove_leftovers(directory, is_locked=True)
            # First, so that the leftovers of a killed process are recognised
            write_json(directory / PREPARING, {"data": data or []})
            for path in (run.checkpoints, run.samples, run.tokens):
                path.mkdir(exist_ok=True)
            sync(directory.parent)
        except OSError as error:
            raise OutputError(f"could not write {directory}: {error.strerror}; give another --out") from None
        return run

    @classmethod
    def check_free(cls, directory: Path, resume: bool = False) -> None:
        """Refuse a path at which no run can be made, nor, with `resume`, continued."""
        if resume and (is_run(directory) or is_unfinished(directory)):
            return
        if directory.exists() and (not directory.is_dir() or not all(map(is_temporary, directory.iterdir()))):
            raise OutputError(f"{directory} exists; {cls._advice(directory)}")

    @staticmethod
    def _advice(directory: Path) -> str:
        if is_run(directory):
            return "resume it with --resume auto, or give another --out"
        if is_unfinished(directory):
            return "it was interrupted before its first step: start it again with --resume auto, or give another --out"
        return advice_without_record(directory) or "it is not a run, so give another --out"

    @classmethod
    def clear_unfinished(cls, directory: Path, data: list[str]) -> None:
        """Empty the directory of a process killed before the run existed, so that the same data can be used again."""
        before = read_json(directory / PREPARING).get("data")
        if before != data:
            named = ", ".join(map(str, before)) if isinstance(before, list) else str(before)
            raise OutputError(
                f"{directory} was interrupted while it was made from {named}; give the same data again, or another "
                "--out"
            )
        run = cls(directory)
        for path in (run.checkpoints, run.samples, run.tokens):
            shutil.rmtree(path, ignore_errors=True)
        remove_leftovers(directory, is_locked=True)
        for name in (ENVIRONMENT, PREPARING):  # the marker last
            discard(directory / name)

    @classmethod
    def open(cls, directory: Path) -> Run:
        if not (directory / RUN).is_file():
            raise CheckpointError(f"{directory} is not a run: {RUN} is missing{and_advice(directory)}")
        return cls(directory)

    def write_record(self, record: RunRecord, environment: dict[str, Any]) -> None:
        """Store the run's configuration, data and reasons, and the machine that it runs on."""
        write_json(self.directory / ENVIRONMENT, environment)
        self.replace_record(record.model_copy(update={"files_in_tokens": sorted(self._files_in_tokens())}))
        discard(self.directory / PREPARING)

    def replace_record(self, record: RunRecord) -> None:
        """Store a record, with its SHA-256."""
        write_record(self.directory, record)

    def environment(self) -> dict[str, Any]:
        """The machine that the run was started on; empty if the file is lost or (with a warning) damaged."""
        path = self.directory / ENVIRONMENT
        try:
            return read_json(path) if path.is_file() else {}
        except CheckpointError as error:
            logger.warning(f"{error}; it describes the machine that the run was started on, and is not needed")
            return {}

    def record(self) -> RunRecord:
        """The record that `write_record` stored; damage is a `CheckpointError`."""
        return read_record(self.directory)

    def clear_leftovers(self) -> None:
        """Delete leftovers of a killed process: temporary files, the mark of an unfinished run, a cut line."""
        discard(self.directory / PREPARING)
        self.pace.keep()
        for folder in (self.directory, self.samples, self.checkpoints):
            remove_leftovers(folder, is_locked=True)

    def folder_of(self, part: str) -> Path:
        """The folder tokens/PART/ for the run's copy of an input, so that resuming does not need the original."""
        folder = self.tokens / part
        make_folder(folder.parent)
        make_folder(folder)
        return folder

    def keep_file(self, path: Path, part: str) -> None:
        """Copy an input file into `folder_of` a part."""
        folder = self.folder_of(part)
        try:
            shutil.copyfile(path, folder / path.name)
        except OSError as error:
            raise OutputError(f"could not copy {path} into {folder}: {error.strerror or error}") from error
        sync(folder / path.name)
        sync(folder)

    def kept_file(self, part: str) -> Path | None:
        """The file that `keep_file` copied; None if there is none."""
        folder = self.tokens / part
        return next(iter(folder.iterdir()), None) if folder.is_dir() else None

    def write_sample(self, step: int, text: str) -> None:
        check_not_removed(self.directory)
        make_folder(self.samples)
        write_text(self.samples / f"step-{step:06d}.txt", text)

    def remove(self) -> list[Path]:
        """Delete everything that training writes, and the directory if it is then empty; returns what else is in it."""
        record = self.record()  # a file called run.json alone does not make a folder a run
        written = self._written(record)
        folders = {self.checkpoints, self.samples, self.tokens, *(each for path in written for each in path.parents)}
        others = sorted(others_in(self.directory, written, folders))
        if not others:
            remove_directory(self.directory)
            return []
        for path in [self.directory / RUN, *(written - {self.directory / RUN})]:  # the record first: no partial run
            if path.is_dir() and not path.is_symlink():
                remove_directory(path)
            else:
                discard(path)
        for folder in sorted(folders, reverse=True):  # those inside first
            is_inside = self.directory in folder.parents and folder.is_dir() and not folder.is_symlink()
            if is_inside and not any(folder.iterdir()):
                folder.rmdir()
        return others

    def _written(self, record: RunRecord) -> set[Path]:
        """The files that training wrote: those in the record and in the manifests of checkpoints, and some by name."""
        written = [path for pattern in WRITTEN for path in self.directory.glob(pattern)] + self._own_tokens(record)
        for directory in self.checkpoints.glob("*"):
            if NAME.fullmatch(directory.name) and directory.is_dir():
                written += Checkpoint(directory).own_files()
        # a link leads out of the run
        return {path for path in written if not any(each.is_symlink() for each in between(self.directory, path))}

    def _own_tokens(self, record: RunRecord) -> list[Path]:
        """The files in tokens/ that the record names.

        The record of an earlier version names none; then those that are not newer than environment.json, which was
        written after them.
        """
        files, environment = self._files_in_tokens(), self.directory / ENVIRONMENT
        if record.files_in_tokens is not None or not environment.exists():
            return [path for name, path in files.items() if name in (record.files_in_tokens or ())]
        prepared = environment.stat().st_mtime
        return [path for path in files.values() if path.lstat().st_mtime <= prepared]

    def _files_in_tokens(self) -> dict[str, Path]:
        return {str(path.relative_to(self.tokens)): path for path in self.tokens.rglob("*") if path.is_file()}

    def best(self) -> Checkpoint:
        """The checkpoint with the lowest validation loss."""
        best = best_checkpoint(self._existing())
        best.manifest()
        return best

    def at(self, which: str) -> Checkpoint:
        """The checkpoint named `best`, `last` or `step-000123`."""
        checkpoints = self._existing()
        if which in ("best", "last"):
            return self.best() if which == "best" else checkpoints[-1]
        for checkpoint in checkpoints:
            if checkpoint.directory.name == which:
                return checkpoint
        names = ", ".join(checkpoint.directory.name for checkpoint in checkpoints)
        raise CheckpointError(f"{self.directory} has no checkpoint '{which}'; it has best, last, {names}")

    def last_intact(self) -> Checkpoint:
        """The newest checkpoint that matches its manifest."""
        if (newest := newest_intact(self._existing())) is None:
            raise CheckpointError(f"no checkpoint of {self.directory} is intact; start again with another --out")
        return newest

    def _existing(self) -> list[Checkpoint]:
        checkpoints = list_checkpoints(self.checkpoints)
        if not checkpoints:
            raise CheckpointError(f"{self.directory} has no checkpoint yet")
        return checkpoints


class FollowedRun(Run):
    """A run in all processes except the first, which writes it; the others only read."""

    line_file = FollowedLineFile

    def replace_record(self, record: RunRecord) -> None:
        """The first process writes it."""

    def write_record(self, record: RunRecord, environment: dict[str, Any]) -> None:
        """The first process writes it."""

    def clear_leftovers(self) -> None:
        """The first process does it."""

    def write_sample(self, step: int, text: str) -> None:
        """The first process writes it."""


def between(directory: Path, path: Path) -> list[Path]:
    """The folders inside a directory that lead to a path."""
    return [folder for folder in path.parents if directory in folder.parents]


def others_in(folder: Path, written: set[Path], folders: set[Path]) -> Iterator[Path]:
    """The paths in a folder, and in `folders` inside it, that are not in `written`."""
    for path in folder.iterdir():
        if path in folders and not path.is_symlink():
            yield from others_in(path, written, folders)
        elif path not in written:
            yield path


def discard(path: Path) -> None:
    """Delete a file that is no longer needed; if the system refuses (such as EBUSY), log a warning."""
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        logger.warning(f"could not remove {path}: {error.strerror or error}; it does no harm")


def make_folder(path: Path) -> None:
    try:
        path.mkdir(exist_ok=True)
    except OSError as error:
        raise OutputError(f"could not create {path}: {error.strerror or error}") from error


def is_unfinished(path: Path) -> bool:
    """True if the process was killed while it made a run in this directory."""
    return os.path.isfile(path / PREPARING) and not is_run(path)  # noqa: PTH113 - as in is_run


def is_run(path: Path) -> bool:
    return os.path.isfile(path / RUN)  # noqa: PTH113 - is_file raises on names that are too long, this returns False


def find_run(argument: str | Path) -> Run:
    """The run with this path, or with this name in ./runs."""
    check_type("a run", argument, str | Path, "a path or a name")
    for path in (as_path("a run", argument), RUNS / argument):
        if is_run(path):
            return Run(path)
    if as_path("a run", argument).exists():
        raise CheckpointError(f"{argument} is not a run: {RUN} is missing, so nothing is known of its training")
    name, _, which = str(argument).rpartition("@")
    if any(is_run(path) for path in (Path(name), RUNS / name) if name):
        raise UsageError(f"{argument} is a checkpoint, and a run is needed; leave out @{which}")
    names = [run.name for run in find_runs(RUNS)] if RUNS.is_dir() else []
    near = did_you_mean(str(argument).removeprefix("runs/"), names)
    known = near or f"; there is {', '.join(names) or 'none in ./runs'}"
    raise CheckpointError(f"no run '{argument}': no such path, no run of that name{known}")


def find_runs(folder: Path) -> list[Run]:
    try:
        paths = sorted(folder.iterdir(), key=lambda path: NUMBER.sub(lambda digits: digits[0].zfill(20), path.name))
        return [Run(path) for path in paths if is_run(path) and not is_temporary(path)]
    except OSError as error:
        raise CheckpointError(f"cannot list {folder}: {error.strerror}") from None
