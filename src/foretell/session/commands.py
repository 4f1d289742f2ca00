"""The commands of this program that messages name."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

from foretell.errors import shell_words
from foretell.runs.run import Run


def resume_command(run: Run) -> str:
    return f"{command_name()} {run.record().verb} --out {shell_words(run.directory)} --resume auto"


def command_name() -> str:
    """The command that starts this program in a shell: `foretell` if it is in PATH, else its path."""
    on_path, program = shutil.which("foretell"), Path(sys.argv[0])
    if program.name != "foretell" or not os.access(program, os.X_OK):  # python -m foretell, a notebook
        return "foretell" if on_path else f"{shell_words(sys.executable)} -m foretell"
    if on_path and os.path.samefile(on_path, program):  # noqa: PTH121 - both are plain strings here
        return "foretell"
    home = Path.cwd()
    absolute = program.absolute()
    return shell_words(absolute.relative_to(home) if absolute.is_relative_to(home) else absolute)
