"""Safe reading and writing.

Reading takes regular files inside their folder, up to a size for their kind: a model may come from anyone. Writing
leaves the old file or the new one after a crash: temporary name, fsync, rename, fsync.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import stat
from collections.abc import Iterator
from io import BufferedReader
from pathlib import Path
from typing import Any

from foretell.errors import CheckpointError, ForetellError, OutputError, did_you_mean

# The files of a model, and the model_type in the config.json of a saved model
WEIGHTS, CONFIG, TOKENIZER_FILE = "model.safetensors", "config.json", "tokenizer.json"
WEIGHTS_INDEX = "model.safetensors.index.json"  # index of weights in several files, in Hugging Face's layout
EXAMPLES = "examples.json"  # example texts of a model, which the live page offers
ADAPTER_CONFIG = "adapter_config.json"  # configuration of a LoRA adapter in peft's layout
MODEL_TYPE = "foretell"
GGUF_MAGIC = b"GGUF"  # the beginning of a GGUF file
# Beginnings of names that no user gives, so that anything with them may be deleted
TEMPORARY = ".tmp-foretell-"  # followed by the final name and the number of the process
REPLACED = ".replaced-foretell-"  # followed by the name of a directory while a new one replaces it

# The largest sizes in bytes of files that are read whole, by kind
JSON_LIMIT = 2**23  # configurations, settings, indexes
VOCABULARY_LIMIT = 2**26  # tokenizer.json, vocab.json, merges.txt; Gemma's tokenizer.json has 33 MB
TEMPLATE_LIMIT = 2**20  # a chat template; the longest published ones have about 20 kB
TEXT_LIMIT = 2**28  # a text or prompts that the user names; metrics.jsonl, whose lines have 250


# --- reading ---------------------------------------------------------------------------------------------------------


def open_regular(
    path: Path, error: type[ForetellError] = CheckpointError, *, follow_links: bool = False
) -> BufferedReader:
    """Open a regular file inside its folder for reading.

    Raises `error` for a link that leads out of the folder, a device or a pipe, and the OSErrors of `open`. In a
    download cache, files are links from snapshots/REVISION to blobs, and these are allowed. follow_links: a link may
    lead anywhere, for a file that the user names.
    """
    target = Path(os.path.realpath(path))  # Path.resolve raises RuntimeError on a loop of links
    if (
        path.is_symlink()
        and not follow_links
        and not any(target.is_relative_to(folder) for folder in allowed_folders(path))
    ):
        raise error(f"{path} is a link out of its directory, to {target}; copy the file there instead")
    descriptor = os.open(target, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # a pipe would block without O_NONBLOCK
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise error(f"{path} is not a regular file")
    return os.fdopen(descriptor, "rb")


def allowed_folders(path: Path) -> list[Path]:
    """The folders that a link at this path may lead to."""
    home = Path(os.path.realpath(path.parent))
    return [home, home.parent.parent / "blobs"] if home.parent.name == "snapshots" else [home]


def is_gguf(path: Path) -> bool:
    """True for a file that begins like GGUF; Ollama's files have no ending."""
    try:
        if not path.is_file():
            return False
        with path.open("rb") as file:
            return file.read(len(GGUF_MAGIC)) == GGUF_MAGIC
    except OSError:  # a name that no file can have, or a file that may not be read
        return False


def check_regular(path: Path) -> None:
    try:
        open_regular(path, CheckpointError).close()
    except OSError as reason:
        raise CheckpointError(f"{path} cannot be read: {reason.strerror or reason}") from None


def read_bytes(
    path: Path, limit: int = JSON_LIMIT, error: type[ForetellError] = CheckpointError, *, follow_links: bool = False
) -> bytes:
    """The content of a file of at most `limit` bytes; raises the errors of `open_regular`."""
    with open_regular(path, error, follow_links=follow_links) as file:
        content = file.read(limit + 1)
        if len(content) > limit:
            size = os.fstat(file.fileno()).st_size
            raise error(f"{path} has {size:,} bytes, far more than such a file needs (at most {limit:,})")
    return content


def read_text(path: Path, limit: int = JSON_LIMIT, error: type[ForetellError] = CheckpointError) -> str:
    """The text of a UTF-8 file of at most `limit` bytes, all line ends as line feeds; raises `error`."""
    try:
        return read_bytes(path, limit, error).decode("utf-8").replace("\r\n", "\n")
    except FileNotFoundError:
        siblings = [entry.name for entry in path.parent.glob("*")] if path.parent.is_dir() else []
        raise error(f"{path} is missing{did_you_mean(path.name, siblings)}") from None
    except OSError as reason:
        raise error(f"{path} cannot be read: {reason.strerror or reason}") from None
    except ValueError as reason:  # not UTF-8, or a NUL in the path itself
        raise error(f"{path} is not a text file in UTF-8: {reason}") from None


def read_json(path: Path, limit: int = JSON_LIMIT, error: type[ForetellError] = CheckpointError) -> dict[str, Any]:
    """The object in a JSON file; raises `error` for anything else."""
    try:
        value = json.loads(read_text(path, limit, error))
    except (ValueError, RecursionError) as reason:
        raise error(f"{path} is not readable JSON: {reason}") from None
    if not isinstance(value, dict):
        raise error(f"{path} does not hold a JSON object")
    return value


# --- writing ---------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def new_directory(final: Path) -> Iterator[Path]:
    """A temporary directory to fill. It becomes `final` when the block succeeds and is removed when it fails.

    An existing `final` stays as it is until then.
    """
    temporary = temporary_path(final)
    try:
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        yield temporary
        for path in temporary.iterdir():
            sync(path)
        sync(temporary)
        replace_directory(temporary, final)
    except OSError as error:
        raise OutputError(f"could not write {final}: {error.strerror or error}") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def cache_home() -> Path:
    """The user's folder for files that can be made again; RuntimeError if the user has no home."""
    given = os.environ.get("XDG_CACHE_HOME", "")  # a relative path is ignored, as its specification demands
    return Path(given) if os.path.isabs(given) else Path.home() / ".cache"  # noqa: PTH117 - of an empty string too


@contextlib.contextmanager
def new_files(*finals: Path) -> Iterator[tuple[Path, ...]]:
    """Temporary paths for files in one folder; they get their final names when the block succeeds.

    When it fails, none of them is left.
    """
    folder, temporary = finals[0].parent, temporary_path(finals[0])
    renamed: list[Path] = []
    try:
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        paths = tuple(temporary / final.name for final in finals)
        yield paths
        for path, final in zip(paths, finals, strict=True):
            sync(path)
            path.rename(final)
            renamed.append(final)
        sync(folder)
    except OSError as error:
        for final in renamed:
            final.unlink(missing_ok=True)
        raise OutputError(f"could not write {finals[0]}: {error.strerror or error}") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def replace_directory(new: Path, final: Path) -> None:
    """Rename `new` to `final`; an old `final` is removed after that, and restored if the renaming fails.

    A process killed in between leaves the old one complete, under its `replaced_name`.
    """
    old = replaced_name(final)
    if final.exists():
        shutil.rmtree(old, ignore_errors=True)
        final.rename(old)
    try:
        new.rename(final)
    except OSError:
        if old.exists():
            old.rename(final)
        raise
    sync(final.parent)  # the new name must be on disk before the old content is deleted
    shutil.rmtree(old, ignore_errors=True)


def replaced_name(final: Path) -> Path:
    """The temporary path of a directory while a new one replaces it."""
    return final.with_name(f"{REPLACED}{final.name}")


def remove_directory(directory: Path) -> None:
    """Delete a directory; if the process is killed meanwhile, no partial directory is left under its name."""
    renamed = temporary_path(directory)
    shutil.rmtree(renamed, ignore_errors=True)
    try:
        directory.rename(renamed)
    except OSError as error:
        raise OutputError(f"could not remove {directory}: {error.strerror or error}") from error
    shutil.rmtree(renamed, ignore_errors=True)


def is_temporary(path: Path) -> bool:
    """True for the name of a temporary file or folder of this module."""
    return path.name.startswith(TEMPORARY)


def temporary_path(final: Path) -> Path:
    """The temporary path of a new `final`; leftovers of killed processes in its folder are removed first."""
    remove_leftovers(final.parent)
    return final.with_name(f"{TEMPORARY}{final.name}-{os.getpid()}")


def remove_leftovers(folder: Path, *, is_locked: bool = False) -> None:
    """Delete the temporary files and folders of killed processes; if no other process may write there, all of them."""
    for leftover in folder.glob(f"{TEMPORARY}*"):
        if not is_locked and not is_process_gone(leftover.name.rpartition("-")[2]):
            continue
        if leftover.is_dir():
            shutil.rmtree(leftover, ignore_errors=True)
        else:
            with contextlib.suppress(OSError):  # such as EBUSY: a leftover does no harm
                leftover.unlink(missing_ok=True)


# Marks that only foretell writes: a tag in every page, a text chunk in every picture, the format in a trace
GENERATOR = '<meta name="generator" content="foretell">'
SOFTWARE = {"Software": "foretell"}
TRACE_FORMAT = "foretell.trace/1"
MARK = re.compile(
    rb"(?s)<!doctype html>.{0,4000}%b|\x89PNG\r\n\x1a\n.{0,4000}tEXtSoftware\0foretell|.{8}{\"__metadata__\":{.*\"%b\""
    % (re.escape(GENERATOR.encode()), re.escape(TRACE_FORMAT.encode()))
)
MARK_WITHIN = 2**20  # bytes; the header of a trace has its text and ids too


def check_target(path: Path, *, overwrite: bool = False) -> Path:
    """The file to be written, links followed; raises `OutputError` before any work if it cannot be.

    An existing file is replaced only if it is empty, if it has a mark that only foretell writes (pages, pictures and
    traces have one), or with `overwrite`.
    """
    if not path.parent.is_dir():
        raise OutputError(f"could not write {path}: there is no folder {path.parent}")
    if path.is_dir():
        raise OutputError(f"could not write {path}: it is a folder; give the name of a file")
    if path.exists() and not path.is_file():  # a rename would replace the device or pipe by a file
        raise OutputError(f"could not write {path}: it is a device or a pipe; give the name of a file")
    if not overwrite and path.exists() and path.stat().st_size and not has_mark(path):
        raise OutputError(f"could not write {path}: it exists; give another name, or --overwrite to replace it")
    check_writable(path)
    return path.resolve()


def is_process_gone(number: str) -> bool:
    """True for the number of a process that has ended, and was not given to another one since."""
    try:
        os.kill(int(number), 0)  # signal 0 only asks
    except ProcessLookupError:
        return True
    except (PermissionError, OverflowError, ValueError):  # another user's process, or not a number
        return False
    return False


def check_new(target: Path) -> None:
    """Refuse a path that exists, even as a broken link."""
    if target.is_symlink() or target.exists():
        raise OutputError(f"{target} exists; give another name")
    check_writable(target)


def check_writable(path: Path) -> None:
    """Refuse a path whose folder, or nearest existing parent folder, cannot be written."""
    folder = next(folder for folder in path.absolute().parents if folder.exists())
    if not os.access(folder, os.W_OK):
        raise OutputError(f"could not write {path}: the folder {folder} cannot be written; give another one")


def check_not_removed(directory: Path) -> None:
    """Refuse to write into a directory that was removed meanwhile, rather than create it again without its files."""
    if not directory.is_dir():
        raise OutputError(f"{directory} is gone: it was removed, or its disk is not mounted")


def has_mark(path: Path) -> bool:
    """True for a page, a picture or a trace that foretell wrote."""
    try:
        with path.open("rb") as file:
            return MARK.match(file.read(MARK_WITHIN)) is not None
    except OSError as error:
        raise OutputError(f"could not write {path}: {error.strerror or error}") from None


def write_text(path: Path, text: str) -> None:
    """Replace the whole content of a file."""
    temporary = temporary_path(path)
    try:
        temporary.write_text(text, encoding="utf-8")
        sync(temporary)
        temporary.replace(path)
        sync(path.parent)
    except OSError as error:
        raise OutputError(f"could not write {path}: {error.strerror or error}") from error
    finally:
        with contextlib.suppress(OSError):  # on a read-only disk, even removing a missing file fails
            temporary.unlink(missing_ok=True)


def write_json(path: Path, value: Any) -> None:
    """Write a value to a file as indented JSON."""
    write_text(path, to_json(value))


def to_json(value: Any) -> str:
    """A value as indented JSON text.

    Bytes of a file name that are not UTF-8, which Python keeps as lone surrogates, are escaped; `read_json` restores
    them.
    """
    text = json.dumps(value, indent=2, ensure_ascii=False) + "\n"
    return re.sub("[\ud800-\udfff]", lambda match: f"\\u{ord(match[0]):04x}", text)


def sync(path: Path) -> None:
    """Flush a file's content, or a directory's entries, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def printable_name(path: str | Path) -> str:
    """A name for people and pictures; bytes that are not UTF-8, and control characters, become U+FFFD."""
    return re.sub(r"[\x00-\x1f\x7f]", "\ufffd", str(path).encode("utf-8", "surrogateescape").decode("utf-8", "replace"))
