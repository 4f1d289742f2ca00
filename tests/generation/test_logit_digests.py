"""Digests of logits cover every bit, and the tree over them is RFC 6962's."""

from __future__ import annotations

import hashlib
import struct

import pytest
import torch

from foretell.generation.logit_digests import logits_digest, merkle_root

# The test vectors of the reference implementation of Certificate Transparency
DATA = ["", "00", "10", "2021", "3031", "40414243", "5051525354555657", "606162636465666768696a6b6c6d6e6f"]
ROOTS = {
    0: "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
    1: "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
    2: "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",
    3: "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77",
    5: "4e3bbb1f7b478dcfe71fb631631519a3bca12c9aefca1612bfce4c13a86264d4",
    7: "ddb89be403809e325750d3d263cd78929c2942b7942a34b77e122c9594a74c8c",
    8: "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328",
}


@pytest.mark.parametrize("count", ROOTS)
def test_roots_are_those_of_certificate_transparency(count):
    leaves = [hashlib.sha256(b"\x00" + bytes.fromhex(data)).digest() for data in DATA[:count]]
    assert merkle_root(leaves).hex() == ROOTS[count]


def test_a_leaf_is_the_little_endian_bits():
    assert logits_digest(torch.tensor([1.5, -0.0])) == hashlib.sha256(b"\x00" + struct.pack("<2f", 1.5, -0.0)).digest()
    assert logits_digest(torch.tensor([1.5, -0.0])) != logits_digest(torch.tensor([1.5, 0.0]))
    sixteen = torch.tensor([1.5], dtype=torch.bfloat16)
    assert logits_digest(sixteen) == hashlib.sha256(b"\x00\xc0\x3f").digest()
