"""Tensors as safetensors files: written, opened, and checked for values that are not finite."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from foretell.errors import CheckpointError, OutputError
from foretell.safetensors_reader import check_header, open_by_library

HEADER_LIMIT = 2**23  # bytes; the optimizer's file of a model with 1,000 layers has about 5 million
ROWS_CHECKED = 8  # of each matrix, when a model is loaded for inference


def save_tensors(path: Path, tensors: dict[str, Tensor], metadata: dict[str, str] | None = None) -> None:
    """Write tensors as safetensors; a full disk or a missing permission is an `OutputError`."""
    try:
        path.touch()
        mode = path.stat().st_mode
        save_file(tensors, path, metadata=metadata)
        path.chmod(mode)  # the library lets only the owner read it
    except (OSError, SafetensorError) as error:
        raise OutputError(f"could not write {path}: {error}") from error


def open_tensors(path: Path):
    """Open a safetensors file, memory-mapped; any other file under that name is a `CheckpointError`."""
    check_header(path, HEADER_LIMIT)
    try:
        return open_by_library(path)
    except FileNotFoundError:
        raise CheckpointError(f"{path} is missing") from None
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{path} is damaged, cut short or not a safetensors file: {error}") from None


def check_finite(weights: Mapping[str, Tensor], path: Path, *, rows: int | None = ROWS_CHECKED) -> None:
    """Refuse weights with NaN or infinity: vectors as a whole, of matrices `rows` rows spread evenly (None: all).

    A few rows show a model that diverged and leave the others unread on the disk. Other values that are not finite
    reach the logits, which are checked before each use.
    """
    for name, weight in weights.items():
        part = weight if rows is None or weight.dim() < 2 else weight[:: max(1, len(weight) // rows)]
        if not bool(part.sum().isfinite()) and not bool(part.isfinite().all()):  # finite values may overflow a sum
            raise CheckpointError(
                f"{path}: '{name}' has values that are not finite (NaN or infinity); the model is damaged"
            )
