"""Attention of the formal algorithms: printed numbers of lessons E3 and E6, and each form against another.

The lessons' sources have one row per query, the formal algorithms one column per query. Hence the transposes.
"""

from __future__ import annotations

import numpy as np
import pytest

from foretell.errors import UsageError
from foretell.textbook.attention import (
    AttentionParameters,
    MultiHeadParameters,
    associations,
    attention,
    attention_weights,
    bidirectional_mask,
    cross_attention,
    masked_softmax,
    mh_attention,
    project,
    single_query_attention,
    softmax,
    unidirectional_mask,
)

DECODER_SCORES = np.array(
    [[9.125, 7.5, 1.25, 5.625], [5.0, 12.37, 3.12, 8.75], [7.25, 5.0, 10.37, 1.25], [1.5, 1.37, 1.87, 10.0]]
)
ENCODER_DECODER_PRODUCT = np.array([[91, 60, 77], [96, 63, 12], [41, 111, 48], [36, 45, 65]])


def random_head(rng: np.random.Generator, d_attn: int = 3, d_x: int = 4, d_z: int = 4, d_out: int = 5):
    shapes = ((d_attn, d_x), (d_attn,), (d_attn, d_z), (d_attn,), (d_out, d_z), (d_out,))
    return AttentionParameters(*(rng.normal(size=shape) for shape in shapes))


def identity_head(d: int) -> AttentionParameters:
    identity, zero = np.eye(d), np.zeros(d)
    return AttentionParameters(identity, zero, identity, zero, identity, zero)


def test_printed_dot_products_of_one_query():
    K = np.array([[1, 2], [4, 5], [7, 8]]).T
    assert associations(np.array([11, 12]), K).tolist() == [35, 104, 173]


def test_unscaled_softmax_is_nearly_one_hot():
    alpha = softmax(np.array([35.0, 104.0, 173.0]))
    assert alpha[2] > 0.999
    assert (alpha[:2] < 0.0005).all()


def test_masked_softmax_is_zero_above_the_diagonal_and_rows_sum_to_one():
    raw = np.array([[10.0 * row + column for column in range(1, 5)] for row in range(1, 5)])
    weights = masked_softmax(raw.T, unidirectional_mask(4)).T
    assert weights.sum(axis=1) == pytest.approx(1)
    assert (weights[np.triu_indices(4, k=1)] == 0).all()
    assert (weights[np.tril_indices(4)] > 0).all()
    assert weights[1, :2] == pytest.approx([1 / (1 + np.e), np.e / (1 + np.e)])


def test_unidirectional_mask_is_the_printed_table():
    expected = [[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [1, 1, 1, 1]]
    assert unidirectional_mask(4).T.astype(int).tolist() == expected


def test_masked_softmax_refuses_a_fully_masked_query():
    with pytest.raises(UsageError, match="hides every context token"):
        masked_softmax(np.zeros((3, 2)), np.array([[True, False]] * 3))


def test_attention_equals_single_query_attention_at_every_position():
    rng = np.random.default_rng(1)
    W, X = random_head(rng), rng.normal(size=(4, 6))
    unmasked, masked = (attention(X, X, W, mask) for mask in (bidirectional_mask(6, 6), unidirectional_mask(6)))
    columns = list(X.T)
    for t, e in enumerate(columns):
        assert unmasked[:, t] == pytest.approx(single_query_attention(e, columns, W))
        assert masked[:, t] == pytest.approx(single_query_attention(e, columns[: t + 1], W))


def test_a_changed_token_changes_only_later_outputs_under_the_mask_and_all_without_it():
    rng = np.random.default_rng(2)
    W, X = random_head(rng), rng.normal(size=(4, 5))
    changed = X.copy()
    changed[:, 3] += 1
    changed_outputs = {
        name: np.abs(attention(changed, changed, W, mask) - attention(X, X, W, mask)).max(axis=0) > 0
        for name, mask in {"GPT": unidirectional_mask(5), "BERT": bidirectional_mask(5, 5)}.items()
    }
    assert changed_outputs["GPT"].tolist() == [False, False, False, True, True]
    assert changed_outputs["BERT"].all()


def test_heads_are_stacked_in_order_and_projected():
    rng = np.random.default_rng(3)
    heads = (random_head(rng), random_head(rng))
    W, X = MultiHeadParameters(heads, rng.normal(size=(4, 10)), rng.normal(size=4)), rng.normal(size=(4, 5))
    mask = unidirectional_mask(5)
    first, second = (attention(X, X, head, mask) for head in heads)
    expected = W.W_o[:, :5] @ first + W.W_o[:, 5:] @ second + W.b_o[:, None]
    assert mh_attention(X, X, W, mask) == pytest.approx(expected)


def test_printed_decoder_scores_under_the_mask():
    weights = masked_softmax(DECODER_SCORES.T, unidirectional_mask(4)).T
    assert weights[0].tolist() == [1, 0, 0, 0]
    assert weights[1, :2] == pytest.approx([1 / (1 + np.exp(7.37)), 1 / (1 + np.exp(-7.37))])
    assert (weights[np.triu_indices(4, k=1)] == 0).all()
    assert weights.sum(axis=1) == pytest.approx(1)


def test_printed_encoder_decoder_product_has_four_queries_three_keys_and_no_mask():
    # With unit vectors as keys, the product of queries and keys is the printed table
    M, R = ENCODER_DECODER_PRODUCT.T.astype(float), np.eye(3)
    W = identity_head(3)
    assert (project(W.W_q, W.b_q, M).T @ project(W.W_k, W.b_k, R) == ENCODER_DECODER_PRODUCT).all()
    weights = attention_weights(M, R, W, bidirectional_mask(3, 4)).T
    assert weights.shape == (4, 3)
    assert weights.sum(axis=1) == pytest.approx(1)
    assert weights.argmax(axis=1).tolist() == [0, 0, 1, 2]
    assert weights[3, 2] == pytest.approx(1 / (1 + np.exp(-29 / 3**0.5) + np.exp(-20 / 3**0.5)))


def test_cross_attention_accepts_an_encoder_of_another_width_and_length():
    rng = np.random.default_rng(4)
    heads = tuple(random_head(rng, d_x=4, d_z=6) for _ in range(2))
    W = MultiHeadParameters(heads, rng.normal(size=(4, 10)), rng.normal(size=4))
    M, R = rng.normal(size=(4, 4)), rng.normal(size=(6, 3))
    out = cross_attention(M, R, W)
    assert out.shape == (4, 4)
    changed = R.copy()
    changed[:, 2] += 1
    assert (np.abs(cross_attention(M, changed, W) - out).max(axis=0) > 0).all()


def test_the_mask_times_a_matrix_aggregates_its_rows():
    H = np.array([[2, 0, 0], [0, -1, 0], [0, 0, 1]])
    mask = unidirectional_mask(3).T
    assert (np.ones(3) @ H).tolist() == [2, -1, 1]
    assert (mask @ H).tolist() == [[2, 0, 0], [2, -1, 0], [2, -1, 1]]


def test_masked_attention_with_equal_scores_is_a_running_mean():
    H = np.array([[2.0, 0, 0], [0, -1, 0], [0, 0, 1]])
    W = identity_head(3)
    equal_scores = AttentionParameters(0 * W.W_q, W.b_q, W.W_k, W.b_k, W.W_v, W.b_v)
    means = attention(H.T, H.T, equal_scores, unidirectional_mask(3)).T
    assert means * [[1], [2], [3]] == pytest.approx(np.array([[2, 0, 0], [2, -1, 0], [2, -1, 1]]))
