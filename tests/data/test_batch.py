"""Batches: targets shifted by one, and documents that neither see nor predict each other."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from foretell.data.batch import IGNORED, PADDING, Batch, make_batch, make_document_batch, pad


def test_every_token_predicts_the_next() -> None:
    batch = make_batch(np.array([[1, 2, 3, 4], [5, 6, 7, 8]], dtype=np.uint16))
    assert batch.ids.tolist() == [[1, 2, 3], [5, 6, 7]]
    assert batch.targets.tolist() == [[2, 3, 4], [6, 7, 8]]
    assert batch.loss_weights.tolist() == [[1, 1, 1], [1, 1, 1]]
    assert batch.ids.dtype == torch.int64
    assert batch.positions is None
    assert batch.document_ids is None


@pytest.mark.parametrize(("length", "weights"), [(1, [0, 0, 0]), (2, [1, 0, 0]), (4, [1, 1, 1])])
def test_only_real_tokens_count_as_targets(length: int, weights: list[int]) -> None:
    batch = make_batch(np.array([[1, 2, 3, 4]]), [length])
    assert batch.loss_weights.tolist() == [weights]
    assert batch.count == sum(weights)


def test_rows_are_cut_out_of_every_tensor() -> None:
    whole = make_document_batch(np.arange(12).reshape(3, 4), np.array([[0, 0, 1, 1], [1, 2, 2, 3], [3, 3, 3, 3]]))
    part = whole.rows(1, 3)
    for name in ("ids", "targets", "loss_weights", "positions", "document_ids"):
        assert torch.equal(getattr(part, name), getattr(whole, name)[1:])


def test_rows_without_documents_stay_without() -> None:
    part = make_batch(np.zeros((2, 3))).rows(0, 1)
    assert isinstance(part, Batch)
    assert part.positions is None


@st.composite
def numbered_tokens(draw: st.DrawFn) -> list[list[int]]:
    """Document numbers of a few rows: they grow, a document may go on in the next row, padding is at the end."""
    columns = draw(st.integers(2, 8))
    rows = []
    for _ in range(draw(st.integers(1, 3))):
        steps = draw(st.lists(st.booleans(), min_size=columns, max_size=columns))
        padded = draw(st.integers(0, columns))
        numbers = np.cumsum(steps)
        numbers[columns - padded :] = PADDING
        rows.append(numbers.tolist())
    return rows


@given(numbered_tokens())
def test_positions_restart_and_weights_stop_at_each_border(rows: list[list[int]]) -> None:
    tokens = np.arange(len(rows) * len(rows[0])).reshape(len(rows), -1)
    batch = make_document_batch(tokens, np.array(rows))
    assert batch.positions is not None
    assert batch.document_ids is not None
    for row, numbers in enumerate(rows):
        for place in range(len(numbers) - 1):
            number, following = numbers[place], numbers[place + 1]
            first = next(p for p in range(place + 1) if numbers[p : place + 1] == [number] * (place + 1 - p))
            assert batch.document_ids[row, place] == number
            assert batch.positions[row, place] == place - first
            assert batch.loss_weights[row, place] == (number == following != PADDING)


def test_padding_fills_rows_up_on_the_right() -> None:
    rows, lengths = pad([[1, 2, 3], [4]])
    assert rows.tolist() == [[1, 2, 3], [4, IGNORED, IGNORED]]
    assert lengths == [3, 1]
    assert pad([[1]], length=3)[0].tolist() == [[1, IGNORED, IGNORED]]
