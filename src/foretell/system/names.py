"""The names of devices and precisions, for options: without torch."""

from __future__ import annotations

from typing import Literal

DeviceName = Literal["auto", "cpu", "cuda", "mps"]
DtypeName = Literal["auto", "float32", "bfloat16"]
