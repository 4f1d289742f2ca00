"""Numbers as 16-bit words for a page: whole multiples of 0.0001 where they fit, exact float32 where they do not.

A 32-bit number is two words. Bytes are stored by planes, all lowest bytes first and all highest last: high bytes are
nearly alike, and gzip finds that out only when they lie side by side.
"""

from __future__ import annotations

import base64
import gzip
from dataclasses import dataclass
from typing import Any

import numpy as np

from foretell.errors import OutputError

STEPS = 10_000  # a stored whole number for each 0.0001
COMPRESSION = 6
ROUNDED = (("rounded16", "<i2", 2**15 - 1), ("rounded32", "<i4", 2**31 - 1))  # kind, its words, the largest that fits


@dataclass(frozen=True)
class PackedSection:
    """Packed numbers of one name: gzip in base64, the shape, and the kind that says how to read the words."""

    name: str
    kind: str
    shape: tuple[int, ...]
    content: str

    def to_json(self) -> dict[str, Any]:
        return {"name": self.name, "kind": self.kind, "shape": self.shape}


def pack_weights(name: str, weights: np.ndarray) -> PackedSection:
    """Attention weights, given as whole multiples of 0.0001 (see `steps`)."""
    return _section(name, "weight16", weights.astype("<u2"))


def pack_rounded(name: str, values: np.ndarray) -> PackedSection:
    """Any numbers to four decimals: a word each where all fit, else two words, else the bits of float32."""
    refuse_endless(name, values)
    whole = steps(values)
    largest = np.abs(whole).max(initial=0)
    for kind, words, limit in ROUNDED:
        if largest <= limit:
            return _section(name, kind, whole.astype(words))
    return pack_exact(name, values)


def pack_exact(name: str, values: np.ndarray) -> PackedSection:
    """The bits of float32."""
    refuse_endless(name, values)
    return _section(name, "float32", values.astype("<f4"))


def pack_whole(name: str, values: np.ndarray) -> PackedSection:
    """Whole numbers of 32 bits."""
    return _section(name, "whole32", values.astype("<i4"))


def pack_text(name: str, content: str) -> PackedSection:
    """One string, as UTF-8."""
    return PackedSection(name, "text", (1,), _encode(content.encode("utf-8")))


def steps(values: np.ndarray) -> np.ndarray:
    """The nearest whole multiples of 0.0001, ties to even as in Python's formatting.

    A float32 times 10,000 is exact in float64, so the multiple is the one that `f"{value:.4f}"` shows.
    """
    return np.rint(values.astype(np.float64) * STEPS)


def refuse_endless(name: str, values: np.ndarray) -> None:
    """A model that computes infinities, or nothing that is a number, has nothing to show."""
    if not np.isfinite(values).all():
        raise OutputError(f"there is no page to make: the model's {name} are not all finite numbers")


def _section(name: str, kind: str, values: np.ndarray) -> PackedSection:
    planes = np.frombuffer(values.tobytes(), np.uint8).reshape(values.size, values.itemsize).T
    return PackedSection(name, kind, values.shape, _encode(planes.tobytes()))


def _encode(content: bytes) -> str:
    return base64.b64encode(gzip.compress(content, COMPRESSION, mtime=0)).decode("ascii")
