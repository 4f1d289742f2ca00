"""One process at a time trains in a run directory; the system lets go when the process ends, however it ends."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from foretell.errors import OutputError


@contextlib.contextmanager
def held(directory: Path) -> Iterator[None]:
    """Keep a directory for this process, which makes it where it is missing; an `OutputError` where another has it.

    A file of that name is left to whoever wants to use the directory.
    """
    if directory.exists() and not directory.is_dir():
        yield
        return
    try:
        directory.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(directory, os.O_RDONLY)
    except OSError as error:
        raise OutputError(f"cannot create {directory}: {error.strerror}; give another --out") from None
    try:
        take(descriptor, directory)
        yield
    finally:
        os.close(descriptor)
        with contextlib.suppress(OSError):  # not empty, as a rule
            directory.rmdir()


def take(descriptor: int, directory: Path) -> None:
    """Lock an open directory. A file system without locks, as some networks' are, cannot tell, and is used as it is."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
            raise OutputError(
                f"another process is training in {directory}; wait until it ends, or give another --out"
            ) from None
        if error.errno not in (errno.ENOLCK, errno.ENOTSUP, errno.EINVAL, errno.EBADF):
            raise
