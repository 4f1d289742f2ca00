"""Packed numbers of a page.

Numbers are stored as multiples of 0.0001 in 16 or 32 bits if they fit, else as exact float32. Bytes are stored in
planes, from the lowest to the highest bytes: high bytes are similar, and gzip compresses them better together.
"""

from __future__ import annotations

import base64
import gzip
from dataclasses import dataclass
from typing import Any

import numpy as np

from foretell.insight.page.page_pass import check_finite, steps

COMPRESSION = 6
ROUNDED = (("rounded16", "<i2", 2**15 - 1), ("rounded32", "<i4", 2**31 - 1))  # kind, dtype, largest number


@dataclass(frozen=True)
class PackedSection:
    """Packed numbers: gzip in base64, the shape, and the kind (the number format)."""

    name: str
    kind: str
    shape: tuple[int, ...]
    content: str

    def to_json(self) -> dict[str, Any]:
        return {"name": self.name, "kind": self.kind, "shape": self.shape}


def pack_weights(name: str, weights: np.ndarray) -> PackedSection:
    """Pack attention weights, given as whole multiples of 0.0001 (see `steps`)."""
    return _section(name, "weight16", weights.astype("<u2"))


def pack_rounded(name: str, values: np.ndarray) -> PackedSection:
    """Pack numbers to four decimals, in 16 bits if all fit, else in 32 bits, else as exact float32."""
    check_finite(name, values)
    whole = steps(values)
    largest = np.abs(whole).max(initial=0)
    for kind, dtype, limit in ROUNDED:
        if largest <= limit:
            return _section(name, kind, whole.astype(dtype))
    return pack_exact(name, values)


def pack_exact(name: str, values: np.ndarray) -> PackedSection:
    check_finite(name, values)
    return _section(name, "float32", values.astype("<f4"))


def pack_whole(name: str, values: np.ndarray) -> PackedSection:
    return _section(name, "whole32", values.astype("<i4"))


def pack_text(name: str, content: str) -> PackedSection:
    return PackedSection(name, "text", (1,), _encode(content.encode("utf-8")))


def _section(name: str, kind: str, values: np.ndarray) -> PackedSection:
    planes = np.frombuffer(values.tobytes(), np.uint8).reshape(values.size, values.itemsize).T
    return PackedSection(name, kind, values.shape, _encode(planes.tobytes()))


def _encode(content: bytes) -> str:
    return base64.b64encode(gzip.compress(content, COMPRESSION, mtime=0)).decode("ascii")
