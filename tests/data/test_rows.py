"""Rows of their own: padded to their batch, each once per epoch, with the loss on the tokens that are asked for."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from foretell.data.batch import PADDING
from foretell.data.loader import EpochOrder
from foretell.data.rows import PackedRows, PaddedRows, RowStream, TokensInMemory, loss_split, pack
from foretell.data.shard_writer import TokenWriter, write_index
from foretell.data.shards import TokenStore

ROWS = [[1, 2, 3, 4], [5, 6], [7, 8, 9], [10, 11, 12, 13, 14]]
FIRST_TARGETS = (2, 1, 1, 4)  # of each row, where the loss is on answers


@pytest.fixture
def store(tmp_path: Path) -> TokenStore:
    names = ("train", "answers", loss_split("answers"))
    with (
        TokenWriter(tmp_path, names[0], 100) as train,
        TokenWriter(tmp_path, names[1], 100) as answers,
        TokenWriter(tmp_path, names[2], 100) as loss,
    ):
        for row, first in zip(ROWS, FIRST_TARGETS, strict=True):
            train.add_document(np.array(row), len(row))
            answers.add_document(np.array(row), len(row))
            loss.add_document((np.arange(len(row)) >= first).astype(np.uint8), len(row))
    writers = dict(zip(names, (train, answers, loss), strict=True))
    write_index(tmp_path, "a tokenizer", 100, {name: writer.record for name, writer in writers.items()})
    return TokenStore.open(tmp_path)


def test_a_batch_is_padded_to_its_longest_row_and_padding_is_not_in_the_loss(store: TokenStore) -> None:
    batch = PaddedRows(RowStream.open(store, "train")).make_batch([1, 0])
    assert batch.ids.tolist() == [[5, 6, 0], [1, 2, 3]]
    assert batch.targets.tolist() == [[6, 0, 0], [2, 3, 4]]
    assert batch.loss_weights.tolist() == [[1, 0, 0], [1, 1, 1]]
    assert batch.document_ids is None  # causal attention alone hides padding on the right


def test_with_a_loss_mask_only_its_tokens_are_targets(store: TokenStore) -> None:
    rows = RowStream.open(store, "answers")
    for row, first in enumerate(FIRST_TARGETS):
        batch = PaddedRows(rows).make_batch([row])
        counted = batch.targets[batch.loss_weights == 1].tolist()
        assert counted == ROWS[row][first:]
        assert rows.prompt(row) == ROWS[row][:first]


def test_a_row_without_a_loss_mask_has_its_first_half_as_prompt(store: TokenStore) -> None:
    rows = RowStream.open(store, "train")
    assert [rows.prompt(row) for row in range(4)] == [[1, 2], [5], [7], [10, 11]]


def test_a_row_with_an_end_token_before_its_answer_has_the_text_up_to_it_as_prompt(tmp_path: Path) -> None:
    with TokenWriter(tmp_path, "train", 100) as writer:
        for row in ([1, 2, 3, 4, 9, 5, 9], [1, 9, 2, 3, 4, 5, 9], [1, 2, 9]):
            writer.add_document(np.array(row), len(row))
    write_index(tmp_path, "a tokenizer", 100, {"train": writer.record})
    rows = RowStream.open(TokenStore.open(tmp_path), "train")
    assert [rows.prompt(row) for row in range(3)] == [[1, 2, 3, 4, 9], [1, 9], [1]]


@pytest.mark.parametrize("batch_size", [1, 3, 9])
def test_every_row_comes_once_per_epoch_in_a_new_order(batch_size: int, store: TokenStore) -> None:
    order = EpochOrder("row order", seed=1, count=4)
    rows = [order.item(index) for index in range(40)]
    epochs = [tuple(rows[first : first + 4]) for first in range(0, 40, 4)]
    assert all(sorted(epoch) == [0, 1, 2, 3] for epoch in epochs)
    assert len(set(epochs)) > 3
    batches = PaddedRows(RowStream.open(store, "train"), seed=1)
    seen = [int(row[0]) for step in range(4) for row in batches.batch(step, batch_size).ids]
    assert seen == [ROWS[row][0] for row in rows[: 4 * batch_size]]


def test_the_order_is_a_function_of_name_seed_and_step() -> None:
    first, other = (EpochOrder("row order", seed=1, count=4) for _ in range(2))
    batches = [first.items(step, 2) for step in range(6)]
    assert all(other.items(step, 2) == batches[step] for step in reversed(range(6)))
    assert [EpochOrder("row order", seed, 4).item(0) for seed in range(9)] != [first.item(0)] * 9
    assert [EpochOrder("other", seed, 4).item(0) for seed in range(9)] != [
        EpochOrder("row order", seed, 4).item(0) for seed in range(9)
    ]


@pytest.mark.parametrize("batch_size", [1, 3])
def test_every_token_but_the_first_of_each_row_is_evaluated_once(batch_size: int, store: TokenStore) -> None:
    batches = PaddedRows(RowStream.open(store, "train")).iter_batches(batch_size)
    targets = Counter(token for batch in batches for token in batch.targets[batch.loss_weights == 1].tolist())
    assert targets == Counter(token for row in ROWS for token in row[1:])


@pytest.mark.parametrize(("max_tokens", "rows"), [(1, [1]), (7, [1, 7]), (14, [1, 5, 7, 10]), (99, [1, 5, 7, 10])])
def test_max_tokens_keeps_rows_evenly_spread(max_tokens: int, rows: list[int], store: TokenStore) -> None:
    batches = PaddedRows(RowStream.open(store, "train")).iter_batches(2, max_tokens)
    assert [int(row[0]) for batch in batches for row in batch.ids] == rows


# --- packed -----------------------------------------------------------------------------------------------------------


def in_memory(rows: list[list[int]], loss: list[list[int]] | None = None) -> RowStream:
    return RowStream(TokensInMemory(rows), None if loss is None else TokensInMemory(loss))


def test_rows_are_filled_by_best_fit() -> None:
    rows = pack([5, 3, 2, 6, 4], room=8)
    assert sorted(item for row in rows for item in row) == [0, 1, 2, 3, 4]
    assert rows == [[3, 2], [0, 1], [4]]


def test_a_packed_row_token_by_token() -> None:
    rows = in_memory([[11, 12, 13, 14], [21, 22, 23]], [[0, 0, 1, 1], [0, 1, 1]])
    batch = PackedRows(rows, context_length=8).make_batch([0])
    assert batch.ids.tolist() == [[11, 12, 13, 14, 21, 22]]
    assert batch.targets.tolist() == [[12, 13, 14, 21, 22, 23]]
    assert batch.loss_weights.tolist() == [[0, 1, 1, 0, 1, 1]]  # no prompt, and nothing of the next row
    assert batch.positions is not None and batch.positions.tolist() == [[0, 1, 2, 3, 0, 1]]
    assert batch.document_ids is not None and batch.document_ids.tolist() == [[0, 0, 0, 0, 1, 1]]


def test_packed_rows_without_a_loss_mask_learn_all_tokens_but_the_first_of_each() -> None:
    batch = PackedRows(in_memory([[11, 12, 13, 14], [21, 22, 23]]), context_length=8).make_batch([0])
    assert batch.loss_weights.tolist() == [[1, 1, 1, 0, 1, 1]]


def test_padding_is_not_learned() -> None:
    packed = PackedRows(in_memory([[1, 2, 3], [4, 5, 6, 7]], [[0, 1, 1], [0, 0, 0, 1]]), 3)
    batch = packed.make_batch([1])
    assert batch.loss_weights.tolist() == [[1, 1, 0]]
    assert batch.document_ids is not None and batch.document_ids.tolist() == [[0, 0, 0]] and PADDING < 0


def test_every_packed_row_is_read_once_per_epoch() -> None:
    packed = PackedRows(in_memory([[index] * 5 for index in range(12)]), 10, seed=3)
    orders = [[packed.order.item(epoch * len(packed) + index) for index in range(len(packed))] for epoch in range(3)]
    assert all(sorted(order) == list(range(len(packed))) for order in orders)
    assert orders[0] != orders[1]


def test_packed_and_padded_rows_have_the_same_targets(store: TokenStore) -> None:
    rows = RowStream.open(store, "answers")
    targets = [
        Counter(
            token for batch in arranged.iter_batches(2) for token in batch.targets[batch.loss_weights == 1].tolist()
        )
        for arranged in (PackedRows(rows, 8), PaddedRows(rows))
    ]
    assert targets[0] == targets[1] and sum(targets[0].values()) == rows.num_targets
