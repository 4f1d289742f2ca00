"""Reading a saved model's weights without torch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, deserialize

from foretell.errors import CheckpointError
from foretell.textbook.arrays import Matrix


def load_weights(path: Path) -> dict[str, Matrix]:
    """The weights of a saved model, by module path, from its directory or its safetensors file.

    16-bit numbers come as float32, which holds each of them exactly. What cannot be read is a `CheckpointError`.
    """
    file = path / "model.safetensors" if path.is_dir() else path
    try:
        tensors = deserialize(file.read_bytes())
    except FileNotFoundError:
        raise CheckpointError(f"{file} is missing") from None
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{file} is damaged or no safetensors file: {error}") from None
    return {name: _to_array(name, tensor["dtype"], tensor["data"]).reshape(tensor["shape"]) for name, tensor in tensors}


def _to_array(name: str, dtype: str, data: bytes) -> Matrix:
    if dtype not in READERS:
        raise CheckpointError(f"'{name}' holds {dtype}, which is no floating-point weight")
    return READERS[dtype](data)


def _from_bfloat16(data: bytes) -> Matrix:
    """NumPy has no bfloat16; its bits are the upper half of a float32's."""
    return (np.frombuffer(data, dtype="<u2").astype(np.uint32) << 16).view(np.float32)


READERS: dict[str, Callable[[bytes], Matrix]] = {
    "F64": lambda data: np.frombuffer(data, dtype="<f8"),
    "F32": lambda data: np.frombuffer(data, dtype="<f4"),
    "F16": lambda data: np.frombuffer(data, dtype="<f2").astype(np.float32),
    "BF16": _from_bfloat16,
}
