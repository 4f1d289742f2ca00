"""The sketch of the data that a model was trained and selected on."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from foretell.data.data_use import (
    DATA_USE,
    MOST_KEPT,
    WINDOW,
    DataUse,
    hash_documents,
    hash_spans,
    hash_stream,
    hash_texts,
)
from foretell.data.shard_writer import TokenWriter, write_index
from foretell.data.shards import TokenStore
from foretell.errors import CheckpointError
from foretell.storage.safetensors_files import save_tensors

RNG = np.random.default_rng(1)


def test_the_shares_are_of_the_items_that_were_used():
    use = DataUse.of([hash_texts(["a", "b"])], [hash_texts(["c"])])
    assert use.shares(hash_texts(["a", "b", "c", "d"])) == (0.5, 0.25)
    assert use.shares(hash_texts(["e"])) == use.shares(hash_texts([])) == (0, 0)


def test_an_item_that_is_in_both_parts_counts_as_trained_on():
    use = DataUse.of([hash_texts(["a"])], [hash_texts(["a"])])
    assert use.shares(hash_texts(["a"])) == (1, 0)


def test_a_large_set_is_a_sample_from_which_shares_are_estimated():
    numbers = [f"{number}" for number in range(4 * MOST_KEPT)]
    use = DataUse.of([hash_texts(numbers[::2]), hash_texts(numbers[1::2])], [])
    assert len(use.trained) == MOST_KEPT
    trained, _ = use.shares(hash_texts([*numbers[:3000], *(f"x{number}" for number in range(3000))]))
    assert trained == pytest.approx(0.5, abs=0.06)


def test_a_model_that_was_trained_twice_has_used_both_sets():
    first, second = DataUse.of([hash_texts(["a"])], [hash_texts(["b"])]), DataUse.of([hash_texts(["c"])], [])
    assert second.joined(first).shares(hash_texts(["a", "b", "c"])) == pytest.approx((2 / 3, 1 / 3))
    assert second.joined(None) is second


def test_equal_spans_have_equal_hashes_at_any_position_and_others_differ():
    numbers = RNG.integers(0, 3, 200)
    starts = np.arange(100)
    hashes = hash_spans(
        np.concatenate([numbers, numbers]),
        np.concatenate([starts, starts + 200]),
        np.tile(starts, 2) + 50 + np.repeat([0, 200], 100),
    )
    assert (hashes[:100] == hashes[100:]).all()
    assert len(set(hashes.tolist())) == 100


@pytest.mark.parametrize("is_whole", [False, True])
@pytest.mark.parametrize("lengths", [(WINDOW - 1, 5), (4000, 3), (0,)])
def test_a_text_is_found_again_without_its_end_token_and_at_another_place(tmp_path, lengths, is_whole):
    texts = [RNG.integers(1, 250, length).tolist() for length in lengths]
    with TokenWriter(tmp_path, "train", 256) as writer:
        for text in [[7, 8, 9], *texts]:
            writer.add_document(np.array([*text, 0], np.int64), 1)
    write_index(tmp_path, "t", 256, {"train": writer.record}, {})
    stream = TokenStore.open(tmp_path).split("train")
    use = DataUse.of(hash_stream(stream, [0], is_whole=is_whole), [])
    expected = float(any(lengths))
    assert use.shares(hash_documents(texts, is_whole=is_whole)) == (expected, 0)
    assert use.shares(hash_documents([RNG.integers(1, 250, 4000).tolist()], is_whole=is_whole)) == (0, 0)


def test_a_part_of_a_text_is_found_but_not_a_part_of_a_row():
    text = RNG.integers(1, 250, 4000).tolist()
    for is_whole, expected in ((False, 1.0), (True, 0.0)):
        use = DataUse.of([hash_documents([text], is_whole=is_whole)], [])
        assert use.shares(hash_documents([text[1000:3000]], is_whole=is_whole)) == (expected, 0)


def test_it_is_saved_and_read(tmp_path):
    assert DataUse.load(tmp_path) is None
    DataUse.of([hash_texts(["a"])], []).save(tmp_path)
    read = DataUse.load(tmp_path)
    assert read is not None and read.shares(hash_texts(["a", "b"])) == (0.5, 0)


@pytest.mark.parametrize(
    "tensors",
    [
        {"trained": torch.zeros(2, dtype=torch.int64)},
        {"trained": torch.zeros(2), "selected": torch.zeros(2)},
        {"trained": torch.zeros(2, 2, dtype=torch.int64), "selected": torch.zeros(2, dtype=torch.int64)},
    ],
)
def test_another_file_under_its_name_is_refused(tmp_path, tensors):
    save_tensors(tmp_path / DATA_USE, tensors)
    with pytest.raises(CheckpointError, match="it is damaged"):
        DataUse.load(tmp_path)
