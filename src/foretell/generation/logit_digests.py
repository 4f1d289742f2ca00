"""Digests of logits, and one digest for a list of them: the root of a Merkle tree.

The tree is the Merkle tree of RFC 6962, section 2.1. The data of a leaf is the exact logits of one token as
little-endian numbers, so one digest commits to the exact logits of all tokens of an answer.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import torch
from torch import Tensor

WORDS = {2: (torch.int16, "<i2"), 4: (torch.int32, "<i4"), 8: (torch.int64, "<i8")}  # by size: NumPy has no bfloat16
LEAF, NODE = b"\x00", b"\x01"  # prefixes, so that the data of a leaf and of an inner node always differ


def little_endian(vector: Tensor) -> bytes:
    """The bits of a floating-point vector (N,)."""
    word, order = WORDS[vector.itemsize]
    return vector.cpu().contiguous().view(word).numpy().astype(order, copy=False).tobytes()


def logits_digest(logits: Tensor) -> bytes:
    """The digest of logits (V,), a leaf of the tree."""
    return hashlib.sha256(LEAF + little_endian(logits)).digest()


def merkle_root(digests: Sequence[bytes]) -> bytes:
    """The root of the tree over the digests of leaves, in order."""
    if len(digests) < 2:
        return digests[0] if digests else hashlib.sha256().digest()
    left = 1 << ((len(digests) - 1).bit_length() - 1)  # the largest power of two below their number
    parts = merkle_root(digests[:left]), merkle_root(digests[left:])
    return hashlib.sha256(NODE + b"".join(parts)).digest()
