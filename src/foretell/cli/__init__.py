"""The command line: `main` turns errors into one line and an exit code, every other file is one verb.

Verbs import torch inside their functions, so that `--help` is there at once.
"""
