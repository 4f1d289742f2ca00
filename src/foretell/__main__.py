"""The command `foretell`, and `python -m foretell`. Ctrl-C has its handler before the large imports begin."""

from __future__ import annotations

import os
import signal
from types import FrameType
from typing import NoReturn


def main() -> NoReturn:
    """Run the command line; Ctrl-C ends it with one line at any time."""
    if signal.getsignal(signal.SIGINT) == signal.default_int_handler:  # a shell's background job ignores Ctrl-C
        signal.signal(signal.SIGINT, stop)
    from foretell.cli.main import main as run

    run()


def stop(number: int, frame: FrameType | None) -> NoReturn:
    """The handler of Ctrl-C: KeyboardInterrupt, or the end of the process while a module is imported.

    The imports of torch and numpy swallow an exception, or turn it into an ImportError.
    """
    while frame is not None:
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            os.write(2, b"foretell: stopped by Ctrl-C\n")
            os._exit(130)
        frame = frame.f_back
    raise KeyboardInterrupt


if __name__ == "__main__":
    main()
