"""Which display a program's training has: a live bar on a terminal, a picture in a notebook, else none."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console

from foretell.session.display import PlainReporter, make_reporter, standard_error
from foretell.session.notebook import NotebookReporter
from foretell.session.reporter import Reporter


def choose_display(progress: bool | None) -> list[Reporter]:
    """The display for `progress`: True shows one anywhere, None on a terminal and in a notebook, False none."""
    if progress is False:
        return []
    if is_notebook():
        return [NotebookReporter()]
    console = standard_error()
    return [make_reporter(console)] if progress or console.is_terminal else []


def is_notebook() -> bool:
    """True in a process that runs the cells of a notebook."""
    ipython: Any = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return shell is not None and "IPKernelApp" in shell.config


class DisplayHandler(logging.Handler):
    """Shows the library's notes as lines of a display."""

    def __init__(self, console: Console):
        super().__init__(logging.INFO)
        self.console = console

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self.console.print(record.getMessage(), style="dim")
        except (OSError, ValueError):
            self.handleError(record)


@contextmanager
def notes_of_the_log(displays: Sequence[Reporter]) -> Iterator[None]:
    """Show the log "foretell" on a text display while the block runs, unless the program handles the log itself."""
    logger = logging.getLogger("foretell")
    handlers = (
        []
        if logger.hasHandlers()
        else [DisplayHandler(each.console) for each in displays if isinstance(each, PlainReporter)]
    )
    level = logger.level
    try:
        for handler in handlers:
            logger.addHandler(handler)
            logger.setLevel(logging.INFO)
        yield
    finally:
        for handler in handlers:
            logger.removeHandler(handler)
        logger.setLevel(level)
