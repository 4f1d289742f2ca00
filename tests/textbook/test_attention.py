"""Attention of the formal algorithms: the lecture's and the book's numbers (E3, E6), and one form against another.

The sources write one row a query; the formal algorithms write one column a query. Hence the transposes.
"""

from __future__ import annotations

import numpy as np
import pytest

from foretell.errors import UsageError
from foretell.textbook.attention import (
    associations,
    attention,
    attention_weights,
    bidirectional_mask,
    cross_attention,
    mh_attention,
    project,
    single_query_attention,
    unidirectional_mask,
)
from foretell.textbook.parameters import AttentionParameters, MultiHeadParameters
from foretell.textbook.softmax import masked_softmax, softmax

DECODER_SCORES = np.array(
    [[9.125, 7.5, 1.25, 5.625], [5.0, 12.37, 3.12, 8.75], [7.25, 5.0, 10.37, 1.25], [1.5, 1.37, 1.87, 10.0]]
)
ENCODER_DECODER_PRODUCT = np.array([[91, 60, 77], [96, 63, 12], [41, 111, 48], [36, 45, 65]])


def random_head(rng: np.random.Generator, d_attn: int = 3, d_x: int = 4, d_z: int = 4, d_out: int = 5):
    shapes = ((d_attn, d_x), (d_attn,), (d_attn, d_z), (d_attn,), (d_out, d_z), (d_out,))
    return AttentionParameters(*(rng.normal(size=shape) for shape in shapes))


def identity_head(d: int) -> AttentionParameters:
    one, zero = np.eye(d), np.zeros(d)
    return AttentionParameters(one, zero, one, zero, one, zero)


def test_dot_products_of_the_query_11_12_are_35_104_and_173():
    K = np.array([[1, 2], [4, 5], [7, 8]]).T
    assert associations(np.array([11, 12]), K).tolist() == [35, 104, 173]


def test_without_scaling_the_last_key_gets_nearly_all_of_the_weight():
    alpha = softmax(np.array([35.0, 104.0, 173.0]))
    assert alpha[2] > 0.999
    assert (alpha[:2] < 0.0005).all()


def test_a_masked_table_has_nothing_above_the_diagonal_and_rows_that_sum_to_one():
    raw = np.array([[10.0 * row + column for column in range(1, 5)] for row in range(1, 5)])
    weights = masked_softmax(raw.T, unidirectional_mask(4)).T
    assert weights.sum(axis=1) == pytest.approx(1)
    assert (weights[np.triu_indices(4, k=1)] == 0).all()
    assert (weights[np.tril_indices(4)] > 0).all()
    assert weights[1, :2] == pytest.approx([1 / (1 + np.e), np.e / (1 + np.e)])


def test_the_mask_is_the_lectures_table():
    expected = [[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [1, 1, 1, 1]]
    assert unidirectional_mask(4).T.astype(int).tolist() == expected


def test_a_query_that_sees_nothing_is_refused():
    with pytest.raises(UsageError, match="hides every context token"):
        masked_softmax(np.zeros((3, 2)), np.array([[True, False]] * 3))


def test_attention_is_single_query_attention_at_every_position():
    rng = np.random.default_rng(1)
    W, X = random_head(rng), rng.normal(size=(4, 6))
    open_, masked = (attention(X, X, W, mask) for mask in (bidirectional_mask(6, 6), unidirectional_mask(6)))
    columns = list(X.T)
    for t, e in enumerate(columns):
        assert open_[:, t] == pytest.approx(single_query_attention(e, columns, W))
        assert masked[:, t] == pytest.approx(single_query_attention(e, columns[: t + 1], W))


def test_under_the_mask_a_later_token_moves_no_earlier_output_and_without_it_all():
    rng = np.random.default_rng(2)
    W, X = random_head(rng), rng.normal(size=(4, 5))
    changed = X.copy()
    changed[:, 3] += 1
    moved = {
        mask_of: np.abs(attention(changed, changed, W, mask) - attention(X, X, W, mask)).max(axis=0) > 0
        for mask_of, mask in {"GPT": unidirectional_mask(5), "BERT": bidirectional_mask(5, 5)}.items()
    }
    assert moved["GPT"].tolist() == [False, False, False, True, True]
    assert moved["BERT"].all()


def test_heads_are_stacked_in_order_and_projected():
    rng = np.random.default_rng(3)
    heads = (random_head(rng), random_head(rng))
    W, X = MultiHeadParameters(heads, rng.normal(size=(4, 10)), rng.normal(size=4)), rng.normal(size=(4, 5))
    mask = unidirectional_mask(5)
    first, second = (attention(X, X, head, mask) for head in heads)
    expected = W.W_o[:, :5] @ first + W.W_o[:, 5:] @ second + W.b_o[:, None]
    assert mh_attention(X, X, W, mask) == pytest.approx(expected)


def test_the_books_decoder_scores_under_the_mask_let_each_word_see_itself_and_what_came_before():
    weights = masked_softmax(DECODER_SCORES.T, unidirectional_mask(4)).T
    assert weights[0].tolist() == [1, 0, 0, 0]
    assert weights[1, :2] == pytest.approx([1 / (1 + np.exp(7.37)), 1 / (1 + np.exp(-7.37))])
    assert (weights[np.triu_indices(4, k=1)] == 0).all()
    assert weights.sum(axis=1) == pytest.approx(1)


def test_encoder_decoder_attention_asks_four_words_about_three_and_hides_none():
    # Keys that are the unit vectors make the product of queries and keys the book's table
    M, R = ENCODER_DECODER_PRODUCT.T.astype(float), np.eye(3)
    W = identity_head(3)
    assert (project(W.W_q, W.b_q, M).T @ project(W.W_k, W.b_k, R) == ENCODER_DECODER_PRODUCT).all()
    weights = attention_weights(M, R, W, bidirectional_mask(3, 4)).T
    assert weights.shape == (4, 3)
    assert weights.sum(axis=1) == pytest.approx(1)
    assert weights.argmax(axis=1).tolist() == [0, 0, 1, 2]
    assert weights[3, 2] == pytest.approx(1 / (1 + np.exp(-29 / 3**0.5) + np.exp(-20 / 3**0.5)))


def test_cross_attention_gives_one_column_for_each_decoder_token_from_encoders_of_another_width():
    rng = np.random.default_rng(4)
    heads = tuple(random_head(rng, d_x=4, d_z=6) for _ in range(2))
    W = MultiHeadParameters(heads, rng.normal(size=(4, 10)), rng.normal(size=4))
    M, R = rng.normal(size=(4, 4)), rng.normal(size=(6, 3))
    out = cross_attention(M, R, W)
    assert out.shape == (4, 4)
    changed = R.copy()
    changed[:, 2] += 1
    assert (np.abs(cross_attention(M, changed, W) - out).max(axis=0) > 0).all()


def test_attention_is_aggregation_by_the_rows_of_a_matrix():
    H = np.array([[2, 0, 0], [0, -1, 0], [0, 0, 1]])
    mask = unidirectional_mask(3).T
    assert (np.ones(3) @ H).tolist() == [2, -1, 1]
    assert (mask @ H).tolist() == [[2, 0, 0], [2, -1, 0], [2, -1, 1]]


def test_equal_scores_make_masked_attention_the_running_mean_of_that_aggregation():
    H = np.array([[2.0, 0, 0], [0, -1, 0], [0, 0, 1]])
    W = identity_head(3)
    indifferent = AttentionParameters(0 * W.W_q, W.b_q, W.W_k, W.b_k, W.W_v, W.b_v)
    means = attention(H.T, H.T, indifferent, unidirectional_mask(3)).T
    assert means * [[1], [2], [3]] == pytest.approx(np.array([[2, 0, 0], [2, -1, 0], [2, -1, 1]]))
