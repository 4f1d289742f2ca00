"""The machine that foretell runs on: devices, memory allocator, installed versions."""

from typing import Literal

DeviceName = Literal["auto", "cpu", "cuda", "mps"]
DtypeName = Literal["auto", "float32", "bfloat16"]
