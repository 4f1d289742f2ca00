"""The command line: one file per verb; `main` turns every error into one line and an exit code.

Verbs import torch inside their functions, so that `--help` is instant.
"""

import time

IMPORTED = time.monotonic()  # approximately the start of the command
