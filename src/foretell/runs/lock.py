"""A lock that lets one process at a time train in a run directory; the system releases it when the process ends."""

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
    """Lock a directory. Creates it if missing, removes it if it stays empty. `OutputError` if another process holds it.

    A file of that name is not locked: the caller reports it.
    """
    if directory.exists() and not directory.is_dir():
        yield
        return
    new = [path for path in (directory, *directory.parents) if not path.exists()]
    try:
        directory.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(directory, os.O_RDONLY)
    except OSError as error:
        raise OutputError(f"could not write {directory}: {error.strerror}; give another --out") from None
    try:
        take(descriptor, directory)
        if not directory.exists() or os.fstat(descriptor).st_ino != directory.stat().st_ino:
            raise OutputError(f"another process has just left {directory}; start again")
        try:
            yield
        finally:  # only the lock's owner removes it: another process may be about to write its first file here
            with contextlib.suppress(OSError):  # usually not empty
                for path in new or [directory]:
                    path.rmdir()
    finally:
        os.close(descriptor)


def take(descriptor: int, directory: Path) -> None:
    """Lock an open directory; does nothing on a file system without locks, such as some network file systems."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
            raise OutputError(
                f"another process is training in {directory}; wait until it ends, or give another --out"
            ) from None
        if error.errno not in (errno.ENOLCK, errno.ENOTSUP, errno.EINVAL, errno.EBADF):
            raise
