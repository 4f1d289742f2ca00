"""Packed numbers: unpacking and rounding."""

from __future__ import annotations

import base64
import gzip

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foretell.errors import OutputError
from foretell.insight.page.packing import PackedSection, pack_exact, pack_rounded, pack_weights
from foretell.insight.page.page_pass import steps

DTYPES = {"weight16": "<u2", "rounded16": "<i2", "rounded32": "<i4", "whole32": "<i4", "float32": "<f4"}


def unpack(section: PackedSection) -> np.ndarray:
    """The stored numbers, unpacked as in the page."""
    content = gzip.decompress(base64.b64decode(section.content))
    planes = np.frombuffer(content, np.uint8).reshape(np.dtype(DTYPES[section.kind]).itemsize, -1)
    return np.ascontiguousarray(planes.T).view(DTYPES[section.kind]).reshape(section.shape)


@given(st.floats(0, 1, width=32))
def test_a_weight_is_rounded_as_python_formats_it(weight):
    stored = int(unpack(pack_weights("attention.0", steps(np.array([weight], np.float32))))[0])
    assert f"{stored / 10_000:.4f}" == f"{weight:.4f}"


@pytest.mark.parametrize("weight", [0.03125, 0.09375, 0.00005, 0.99995])
def test_ties_round_to_even_as_in_python(weight):
    stored = int(steps(np.array([weight], np.float32))[0])
    assert f"{stored / 10_000:.4f}" == f"{np.float32(weight):.4f}"


@pytest.mark.parametrize(
    ("largest", "kind"), [(3.2767, "rounded16"), (-3.2767, "rounded16"), (3.2768, "rounded32"), (1e6, "float32")]
)
def test_the_smallest_kind_that_fits_is_used(largest, kind):
    values = np.array([[0.12345, largest], [-0.5, 0]], np.float32)
    section = pack_rounded("x", values)
    assert section.kind == kind
    found = unpack(section) / (1 if kind == "float32" else 10_000)
    assert found.shape == (2, 2)
    assert np.abs(found - values).max() <= 0.00005001


def test_logits_are_exact():
    logits = np.random.default_rng(0).normal(size=1000).astype(np.float32)
    assert (unpack(pack_exact("logits", logits)) == logits).all()


def test_a_number_that_is_not_finite_is_refused_by_name():
    with pytest.raises(OutputError, match="logits are not all finite"):
        pack_exact("logits", np.array([1, np.nan]))


def test_byte_planes_make_attention_smaller():
    weights = np.random.default_rng(0).dirichlet(np.full(64, 0.3), 256)
    mixed = gzip.compress(steps(weights).astype("<u2").tobytes())
    assert len(pack_weights("attention.0", steps(weights)).content) * 3 / 4 < len(mixed)
