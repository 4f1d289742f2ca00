"""Training refuses a model that sees the future, before anything is left behind."""

from __future__ import annotations

import shutil

import pytest
import torch.nn.functional as F

from foretell.model.attention import SDPAttention


@pytest.fixture
def without_mask(monkeypatch):
    """Every core sees everything."""
    monkeypatch.setattr(
        SDPAttention,
        "forward",
        lambda core, query, key, value, mask: F.scaled_dot_product_attention(query, key, value, enable_gqa=True),
    )


def test_a_new_run_of_a_leaking_model_is_refused(foretell, corpus, tmp_path, without_mask):
    options = ["--size", "toy", "--model.width", "16", "--kind", "bytes", "--steps", "2", "--out", "x"]
    outcome = foretell("train", corpus, *options)
    assert outcome.code == 1
    assert outcome.last_line.startswith("foretell: trunk.blocks.0.attention.core sees the future")
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_goes_on_with_a_leaking_model_is_refused(foretell, trained, tmp_path, without_mask):
    shutil.copytree(trained, tmp_path / "x")
    foretell("train", "--out", "x", "--resume", "auto").fails(1, "sees the future")
