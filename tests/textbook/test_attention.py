"""Attention of the formal algorithms: each form against another.

The lessons compare it with printed numbers and with the model, `test_encoder_decoder.py` with torch's modules.
"""

from __future__ import annotations

import numpy as np
import pytest

from foretell.errors import UsageError
from foretell.textbook.attention import (
    AttentionParameters,
    attention,
    bidirectional_mask,
    masked_softmax,
    single_query_attention,
    unidirectional_mask,
)


def test_masked_softmax_refuses_a_fully_masked_query():
    with pytest.raises(UsageError, match="hides every context token"):
        masked_softmax(np.zeros((3, 2)), np.array([[True, False]] * 3))


def test_attention_equals_single_query_attention_at_every_position():
    rng = np.random.default_rng(1)
    shapes = ((3, 4), (3,), (3, 4), (3,), (5, 4), (5,))
    W, X = AttentionParameters(*(rng.normal(size=shape) for shape in shapes)), rng.normal(size=(4, 6))
    unmasked, masked = (attention(X, X, W, mask) for mask in (bidirectional_mask(6, 6), unidirectional_mask(6)))
    columns = list(X.T)
    for t, e in enumerate(columns):
        assert unmasked[:, t] == pytest.approx(single_query_attention(e, columns, W))
        assert masked[:, t] == pytest.approx(single_query_attention(e, columns[: t + 1], W))
