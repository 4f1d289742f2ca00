"""Batches of a token stream: a pure function of seed and step, with every token used once per epoch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from foretell.data.batch import Batch
from foretell.data.loader import Loader, find_document_ids, iter_evaluation_batches
from foretell.data.shard_writer import TokenWriter, write_index
from foretell.data.shards import TokenStore, TokenStream, ValueFile
from foretell.errors import DataError

MakeStream = Callable[..., TokenStream]


@pytest.fixture
def make_stream(tmp_path: Path) -> MakeStream:
    """`make_stream(5, 3)`: documents of 5 and 3 tokens; each id is the token's position in the stream."""

    def make(*lengths: int) -> TokenStream:
        positions = iter(range(sum(lengths)))
        with TokenWriter(tmp_path, "train", vocab_size=1000, shard_tokens=16) as writer:
            for length in lengths:
                writer.add_document(np.array([next(positions) for _ in range(length)]), text_bytes=length)
        write_index(tmp_path, "a tokenizer", 1000, {"train": writer.record})
        return TokenStore.open(tmp_path).split("train")

    return make


def equal(first: Batch, second: Batch) -> bool:
    return torch.equal(first.ids, second.ids) and torch.equal(first.targets, second.targets)


def starts(loader: Loader, count: int) -> list[int]:
    """The positions where the first `count` windows start."""
    return [loader.window_start(index) for index in range(count)]


# --- training --------------------------------------------------------------------------------------------------------


def test_a_batch_is_a_function_of_seed_and_step(make_stream: MakeStream) -> None:
    stream = make_stream(100)
    loader, other = Loader(stream, 4, 6, seed=1), Loader(stream, 4, 6, seed=1)
    in_order = [loader.batch(step) for step in range(12)]
    for step in reversed(range(12)):
        assert equal(other.batch(step), in_order[step])


def test_seeds_give_different_batches(make_stream: MakeStream) -> None:
    stream = make_stream(100)
    assert not equal(Loader(stream, 4, 6, seed=1).batch(0), Loader(stream, 4, 6, seed=2).batch(0))


def test_rows_are_windows_of_the_stream_with_the_next_tokens_as_targets(make_stream: MakeStream) -> None:
    batch = Loader(make_stream(100), 4, 6, seed=1).batch(3)
    assert batch.ids.shape == (6, 4)
    assert torch.equal(batch.targets, batch.ids + 1)
    assert batch.count == 24


@pytest.mark.parametrize("epoch", [0, 1, 2])
def test_epoch_covers_the_text_once_in_consecutive_windows(epoch: int, make_stream: MakeStream) -> None:
    loader = Loader(make_stream(103), 4, 6, seed=1)
    count = loader.windows_per_epoch
    assert count == 24  # of the 25 that fit, which leaves room for a shift
    windows = starts(loader, (epoch + 1) * count)[epoch * count :]
    assert sorted(windows) == list(range(min(windows), min(windows) + 4 * count, 4))
    assert min(windows) < 103 - 4 * count


def test_each_epoch_has_its_own_order_and_shift(make_stream: MakeStream) -> None:
    loader = Loader(make_stream(103), 4, 6, seed=1)
    count = loader.windows_per_epoch
    epochs = [starts(loader, 10 * count)[epoch * count : (epoch + 1) * count] for epoch in range(10)]
    assert len({min(windows) for windows in epochs}) > 3
    assert len({tuple(window // 4 for window in windows) for windows in epochs}) == 10


@pytest.mark.parametrize("tokens", [5, 6, 8, 9, 12, 13, 30])
def test_every_token_but_the_first_is_eventually_a_target(tokens: int, make_stream: MakeStream) -> None:
    loader = Loader(make_stream(tokens), 4, 8, seed=1)
    targets = {token for step in range(60) for token in loader.batch(step).targets.flatten().tolist()}
    assert targets == set(range(1, tokens))


def test_batch_larger_than_an_epoch(make_stream: MakeStream) -> None:
    assert Loader(make_stream(10), 4, 16, seed=1).batch(0).ids.shape == (16, 4)


def test_text_shorter_than_one_window_is_refused(make_stream: MakeStream) -> None:
    with pytest.raises(
        DataError, match=r"4 tokens, .* than one context of 4 and the token after it; .* a model with a smaller context"
    ):
        Loader(make_stream(4), 4, 1, seed=1)


def test_document_ids_of_windows(make_stream: MakeStream) -> None:
    loader = Loader(make_stream(3, 1, 7, 9), 6, 4, seed=1, document_mask=True)
    batch = loader.batch(0)
    plain = Loader(loader.stream, 6, 4, seed=1).batch(0)
    assert equal(batch, plain)
    document_of = np.repeat(range(4), (3, 1, 7, 9))
    assert batch.document_ids is not None
    for ids, document_ids, loss_weights in zip(batch.ids, batch.document_ids, batch.loss_weights, strict=True):
        same = document_of[ids.numpy()][:, None] == document_of[ids.numpy()]
        assert np.array_equal(same, (document_ids[:, None] == document_ids).numpy())
        assert loss_weights.tolist() == (document_of[ids.numpy()] == document_of[ids.numpy() + 1]).tolist()


# --- documents in another order --------------------------------------------------------------------------------------

LENGTHS = (3, 1, 7, 9, 5, 20, 2, 13)


def shuffled_epoch(loader: Loader, epoch: int) -> list[int]:
    text = loader.text(epoch)
    return text.read(0, len(text)).tolist()


def test_every_epoch_joins_whole_documents_in_an_order_of_its_own(make_stream: MakeStream) -> None:
    stream = make_stream(*LENGTHS)
    loader = Loader(stream, 4, 6, seed=1, shuffle_documents=True)
    ends = np.cumsum(LENGTHS)
    documents = {end - length: list(range(end - length, end)) for length, end in zip(LENGTHS, ends, strict=True)}
    orders = []
    for epoch in range(5):
        ids, order = shuffled_epoch(loader, epoch), []
        while ids:
            order.append(ids[0])
            document = documents[ids[0]]
            assert ids[: len(document)] == document
            ids = ids[len(document) :]
        assert sorted(order) == sorted(documents)
        orders.append(tuple(order))
    assert len(set(orders)) == 5


@pytest.mark.parametrize("document_mask", [False, True])
def test_shuffled_batches_are_a_function_of_seed_and_step(make_stream: MakeStream, document_mask: bool) -> None:
    stream = make_stream(*LENGTHS)
    loaders = [Loader(stream, 4, 6, seed=1, document_mask=document_mask, shuffle_documents=True) for _ in range(2)]
    in_order = [loaders[0].batch(step) for step in range(12)]
    for step in reversed(range(12)):  # as a resumed training, which begins at any step
        assert equal(loaders[1].batch(step), in_order[step])
    assert not equal(Loader(stream, 4, 6, seed=2, shuffle_documents=True).batch(0), in_order[0])
    assert not equal(Loader(stream, 4, 6, seed=1).batch(0), in_order[0])


def test_the_mask_knows_the_documents_of_the_shuffled_text(make_stream: MakeStream) -> None:
    loader = Loader(make_stream(*LENGTHS), 6, 4, seed=1, document_mask=True, shuffle_documents=True)
    document_of = np.repeat(range(len(LENGTHS)), LENGTHS)
    for step in range(8):  # batches of one and of two epochs
        batch = loader.batch(step)
        assert batch.document_ids is not None
        for ids, document_ids in zip(batch.ids.numpy(), batch.document_ids.numpy(), strict=True):
            same = document_of[ids][:, None] == document_of[ids]
            assert np.array_equal(same, document_ids[:, None] == document_ids)


@pytest.mark.parametrize("shuffle_documents", [False, True])
def test_a_batch_reads_only_the_tokens_of_its_rows(
    make_stream: MakeStream, monkeypatch: pytest.MonkeyPatch, shuffle_documents: bool
) -> None:
    stream, read = make_stream(*[10] * 50), []
    original = ValueFile.read

    def counted(file: ValueFile, start: int = 0, count: int | None = None) -> np.ndarray:
        values = original(file, start, count)
        read.append(values.nbytes)
        return values

    monkeypatch.setattr(ValueFile, "read", counted)
    loader = Loader(stream, 4, 8, seed=1, shuffle_documents=shuffle_documents)
    for step in range(5):
        loader.batch(step)
    assert sum(read) == 5 * 8 * (4 + 1) * 2  # steps, rows, tokens, bytes


def test_find_document_ids(make_stream: MakeStream) -> None:
    document_ids = find_document_ids(make_stream(3, 1, 4), [0, 2], 5)
    assert document_ids.tolist() == [[1, 1, 1, 2, 3], [1, 2, 3, 3, 3]]


# --- evaluation ------------------------------------------------------------------------------------------------------


def counted_targets(batches: Iterator[Batch]) -> Counter[int]:
    return Counter(token for batch in batches for token in batch.targets[batch.loss_weights == 1].tolist())


@pytest.mark.parametrize("batch_size", [1, 3])
@pytest.mark.parametrize("tokens", [2, 3, 4, 5, 6, 8, 9, 17, 23, 25])
def test_every_token_but_the_first_is_evaluated_exactly_once(
    tokens: int, batch_size: int, make_stream: MakeStream
) -> None:
    targets = counted_targets(iter_evaluation_batches(make_stream(tokens), 4, batch_size))
    assert targets == Counter(range(1, tokens))


@pytest.mark.parametrize("lengths", [(5, 1, 3), (2,), (1, 1, 1), (4, 4, 4, 1), (7, 10)])
def test_document_mask_evaluates_every_token_but_the_first_of_each_document(
    lengths: tuple[int, ...], make_stream: MakeStream
) -> None:
    targets = counted_targets(iter_evaluation_batches(make_stream(*lengths), 4, 2, document_mask=True))
    firsts = {sum(lengths[:index]) for index in range(len(lengths))}
    assert targets == Counter(set(range(sum(lengths))) - firsts)


@pytest.mark.parametrize(("max_tokens", "windows"), [(1, 1), (4, 1), (11, 2), (12, 3), (99, 6), (1000, 6)])
def test_max_tokens_keeps_whole_windows_spread_evenly(max_tokens: int, windows: int, make_stream: MakeStream) -> None:
    batches = list(iter_evaluation_batches(make_stream(25), 4, 2, max_tokens))
    starts = [int(row[0]) for batch in batches for row in batch.ids]
    assert len(starts) == windows
    assert starts == [index * 6 // windows * 4 for index in range(windows)]
