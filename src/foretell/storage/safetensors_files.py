"""Tensors as safetensors files: read from untrusted sources, checked for values that are not finite, and written.

`read_tensor` copies weights and does not map the file: overwriting the file later cannot change a loaded model, and a
file that is cut short meanwhile is an error; with a mapping it would kill the process (SIGBUS). A cast reads a few MB
at a time, so that memory peaks slightly above the size of the result.
"""

from __future__ import annotations

import math
import mmap
import os
import re
from collections.abc import Mapping
from io import BufferedReader
from pathlib import Path

import torch
from safetensors import SafetensorError, TensorSpec, safe_open, serialize
from safetensors.torch import save_file
from torch import Tensor

from foretell.errors import CheckpointError, OutputError
from foretell.storage.files import open_regular
from foretell.storage.safetensors_header import (
    FLOAT_NAMES,
    MOST_OWN_HEADER_BYTES,
    StoredTensor,
    check_header,
    refuse,
    stamp_of,
)
from foretell.system.device import dtype_name

ROWS_CHECKED = 8  # rows checked in each matrix, when a model is loaded for inference
READ_AT_A_TIME = 2**24  # bytes
OWN_PAGES = 2**20  # smallest size in bytes of a tensor with separate pages
INTEGERS = {torch.int8: "I8", torch.uint8: "U8", torch.int32: "I32"}
FLOATS: dict[str, torch.dtype] = {name: getattr(torch, dtype) for name, dtype in FLOAT_NAMES.items()}


def read_tensor(stored: StoredTensor, dtype: torch.dtype) -> Tensor:
    """A copy of the tensor in this dtype, cast part by part; an integer dtype must be the stored one.

    Raises `CheckpointError` for a type that weights cannot have, and if the file changed since its header was checked.
    """
    if dtype in INTEGERS and stored.dtype != INTEGERS[dtype]:
        raise CheckpointError(f"{stored.file}: '{stored.name}' holds {stored.dtype}, and {INTEGERS[dtype]} is expected")
    stored_dtype = dtype if dtype in INTEGERS else getattr(torch, stored.float_name)
    result = new_tensor(stored.shape, dtype)
    try:
        with open_regular(stored.file) as file:
            file.seek(stored.start)
            is_whole = read_values(file, stored_dtype, result.view(-1))
            is_same = stamp_of(file) == stored.stamp
    except OSError as error:
        raise CheckpointError(f"{stored.file} cannot be read: {error.strerror or error}") from None
    if not (is_whole and is_same):
        raise CheckpointError(f"{stored.file} changed while it was read; wait until it is written, and load it again")
    return result


def read_values(file: BufferedReader, dtype: torch.dtype, target: Tensor) -> bool:
    """Fill `target` (N,) with values stored in `dtype`; False if the file ends before."""
    step = max(1, READ_AT_A_TIME // dtype.itemsize)
    for part in target.split(step) if len(target) else ():
        values = part if part.dtype == dtype else new_tensor(tuple(part.shape), dtype)
        data = values.view(torch.uint8).numpy().data
        if file.readinto(data) != len(data):
            return False
        if values is not part:
            part.copy_(values)
    return True


def new_tensor(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """An uninitialised tensor; the memory of a large one returns to the system when it is freed.

    Otherwise freed matrices fragment the C heap: GPT-2 in bfloat16 took 1.6 times its size.
    """
    count = math.prod(shape)
    if count * dtype.itemsize < OWN_PAGES:
        return torch.empty(shape, dtype=dtype)
    memory = mmap.mmap(-1, count * dtype.itemsize, access=mmap.ACCESS_COPY)
    return torch.frombuffer(memory, dtype=dtype).view(shape)


def save_tensors(path: Path, tensors: dict[str, Tensor], metadata: dict[str, str] | None = None) -> None:
    """Write tensors as safetensors; a full disk is an OSError, as of any file, which `new_directory` reports."""
    path.touch()
    mode = path.stat().st_mode
    try:
        save_file(tensors, path, metadata=metadata)
    except SafetensorError as error:
        number = re.search(r"\(os error (\d+)\)", str(error))
        if number is None:
            raise OutputError(f"could not write {path}: {error}") from error
        raise OSError(int(number[1]), os.strerror(int(number[1])), str(path)) from error
    path.chmod(mode)  # the library makes the file readable only by its owner


def in_safetensors(tensors: Mapping[str, Tensor]) -> bytes:
    """Tensors in safetensors' format. The library's function leaks a type per new length (4 kB, measured)."""
    kept = {name: tensor.contiguous().cpu() for name, tensor in tensors.items()}
    return serialize({name: spec_of(tensor) for name, tensor in kept.items()})


def spec_of(tensor: Tensor) -> TensorSpec:
    dtype, pointer = dtype_name(tensor.dtype), tensor.data_ptr()
    return TensorSpec(dtype=dtype, shape=tensor.shape, data_ptr=pointer, data_len=tensor.nbytes)


def open_tensors(path: Path):
    """Open a safetensors file, memory-mapped; any other file under that name is a `CheckpointError`."""
    check_header(path, MOST_OWN_HEADER_BYTES)
    try:
        with open_regular(path) as file:  # by its descriptor, because the library accepts only names in UTF-8
            return safe_open(f"/dev/fd/{file.fileno()}", framework="pt")
    except (SafetensorError, OSError, RuntimeError) as error:
        refuse(path, str(error))


def check_finite(weights: Mapping[str, Tensor], path: Path, *, rows: int | None = ROWS_CHECKED) -> None:
    """Refuse weights with NaN or infinity. Vectors are checked whole, matrices in `rows` evenly spread rows or in all.

    A few rows reveal a model that diverged, and the others need not be read from disk. Any other value that is not
    finite reaches the logits, which are checked before each use.
    """
    for name, weight in weights.items():
        part = weight if rows is None or weight.dim() < 2 else weight[:: max(1, len(weight) // rows)]
        if not bool(part.sum().isfinite()) and not bool(part.isfinite().all()):  # finite values may overflow a sum
            raise CheckpointError(
                f"{path}: '{name}' has values that are not finite (NaN or infinity); the model is damaged"
            )
