"""Batches: targets shifted by one, and documents separated within a row."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from foretell.data.batch import IGNORED, PADDING, Batch, make_batch, make_document_batch, pad
from foretell.errors import UsageError
from foretell.system.device import to_device


def test_targets_are_the_next_tokens() -> None:
    batch = make_batch(np.array([[1, 2, 3, 4], [5, 6, 7, 8]], dtype=np.uint16))
    assert batch.ids.tolist() == [[1, 2, 3], [5, 6, 7]]
    assert batch.targets.tolist() == [[2, 3, 4], [6, 7, 8]]
    assert batch.loss_weights.tolist() == [[1, 1, 1], [1, 1, 1]]
    assert batch.ids.dtype == torch.int64
    assert batch.positions is None
    assert batch.document_ids is None


@pytest.mark.parametrize(
    ("tokens", "given"),
    [
        (np.array([[1.7, 2.9, 3.2]]), r"float64 of shape \(1, 3\)"),
        ([1, 2, 3], r"int64 of shape \(3,\)"),
        (np.array([[1]]), r"int64 of shape \(1, 1\)"),
    ],
)
def test_tokens_that_are_not_rows_of_ids_are_refused(tokens: Any, given: str) -> None:
    with pytest.raises(UsageError, match=rf"tokens must be ids \(B, T\+1\), T of 1 or more, not {given}"):
        make_batch(tokens)


@pytest.mark.parametrize(("length", "loss_weights"), [(1, [0, 0, 0]), (2, [1, 0, 0]), (4, [1, 1, 1])])
def test_loss_weights_of_padding_are_zero(length: int, loss_weights: list[int]) -> None:
    batch = make_batch(np.array([[1, 2, 3, 4]]), [length])
    assert batch.loss_weights.tolist() == [loss_weights]
    assert batch.count == sum(loss_weights)


def test_tokens_are_those_that_the_model_reads() -> None:
    tokens = np.arange(18).reshape(3, 6)
    assert make_batch(tokens).tokens == 3 * 5
    padded = make_batch(tokens, [6, 3, 2], loss_mask=np.zeros((3, 6)))
    assert (padded.tokens, padded.rows(1, 3).tokens) == (5 + 3 + 2, 3 + 2)
    documents = np.array([[0, 0, 0, 1, 1, 1], [0, 0, PADDING, PADDING, PADDING, PADDING]])
    assert make_document_batch(tokens[:2], documents).tokens == 5 + 2


def test_rows_slices_every_tensor() -> None:
    whole = make_document_batch(np.arange(12).reshape(3, 4), np.array([[0, 0, 1, 1], [1, 2, 2, 3], [3, 3, 3, 3]]))
    part = whole.rows(1, 3)
    for name in ("ids", "targets", "loss_weights", "positions", "document_ids"):
        assert torch.equal(getattr(part, name), getattr(whole, name)[1:])


def test_rows_of_a_batch_without_document_ids() -> None:
    part = make_batch(np.zeros((2, 3), dtype=int)).rows(0, 1)
    assert isinstance(part, Batch)
    assert part.positions is None


@st.composite
def document_id_rows(draw: st.DrawFn) -> list[list[int]]:
    """Increasing document ids of a few rows, with padding at the end; a document may continue in the next row."""
    columns = draw(st.integers(2, 8))
    rows = []
    for _ in range(draw(st.integers(1, 3))):
        steps = draw(st.lists(st.booleans(), min_size=columns, max_size=columns))
        padded = draw(st.integers(0, columns))
        document_ids = np.cumsum(steps)
        document_ids[columns - padded :] = PADDING
        rows.append(document_ids.tolist())
    return rows


@given(document_id_rows())
def test_positions_restart_and_loss_weights_are_zero_at_document_borders(rows: list[list[int]]) -> None:
    tokens = np.arange(len(rows) * len(rows[0])).reshape(len(rows), -1)
    batch = make_document_batch(tokens, np.array(rows))
    assert batch.positions is not None
    assert batch.document_ids is not None
    for row, ids in enumerate(rows):
        for column in range(len(ids) - 1):
            own, following = ids[column], ids[column + 1]
            first = next(c for c in range(column + 1) if ids[c : column + 1] == [own] * (column + 1 - c))
            assert batch.document_ids[row, column] == own
            assert batch.positions[row, column] == column - first
            assert batch.loss_weights[row, column] == (own == following != PADDING)


def test_pad_on_the_right() -> None:
    rows, lengths = pad([[1, 2, 3], [4]])
    assert rows.tolist() == [[1, 2, 3], [4, IGNORED, IGNORED]]
    assert lengths == [3, 1]
    assert pad([[1]], length=3)[0].tolist() == [[1, IGNORED, IGNORED]]


class RecordedTensor:
    """Stands for a tensor of the host, and records how it is copied."""

    device = torch.device("cpu")

    def __init__(self) -> None:
        self.calls: list[object] = []

    def pin_memory(self) -> RecordedTensor:
        self.calls.append("pinned")
        return self

    def to(self, device: str, *, non_blocking: bool) -> None:
        self.calls.append((device, non_blocking))


@pytest.mark.parametrize(("device", "calls"), [("cuda", ["pinned", ("cuda", True)]), ("cpu", [("cpu", True)])])
def test_copies_to_a_gpu_are_made_from_pinned_memory(device: str, calls: list[object]) -> None:
    tensor: Any = RecordedTensor()
    to_device(tensor, device)
    assert tensor.calls == calls
