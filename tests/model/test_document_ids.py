"""Documents packed into one row, padded to one per row, and alone give the same logits."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from foretell.data.batch import PADDING, Batch, make_batch, make_document_batch, pad
from foretell.model.cache import FreshKVView
from foretell.model.decoder import Decoder
from tests.model.conftest import AssertSame, MakeDecoder

DOCUMENTS = [[1, 2, 3, 4], [5], [6, 7, 8, 9, 10], [2, 3]]


def packed_batch() -> Batch:
    """All documents in one row, followed by one padding position that is only a target."""
    tokens = [token for document in DOCUMENTS for token in document] + [0]
    document_ids = [index for index, document in enumerate(DOCUMENTS) for _ in document] + [PADDING]
    return make_document_batch(np.array([tokens]), np.array([document_ids]))


def logits_of(decoder: Decoder, batch: Batch) -> Tensor:
    return decoder(batch.ids, FreshKVView(batch.ids, batch.positions, batch.document_ids))


def packed_logits(decoder: Decoder) -> list[Tensor]:
    return list(logits_of(decoder, packed_batch())[0].split([len(document) for document in DOCUMENTS]))


def padded_logits(decoder: Decoder) -> list[Tensor]:
    tokens, lengths = pad(DOCUMENTS, length=7)
    batch = make_batch(tokens, lengths)
    return [row[:length] for row, length in zip(logits_of(decoder, batch), lengths, strict=True)]


def separate_logits(decoder: Decoder) -> list[Tensor]:
    return [decoder(torch.tensor([document]))[0] for document in DOCUMENTS]


@pytest.mark.parametrize("batched_logits", [packed_logits, padded_logits])
def test_batched_documents_equal_each_document_alone(
    decoder: Decoder, batched_logits: Callable, assert_same: AssertSame
) -> None:
    for logits, alone in zip(batched_logits(decoder), separate_logits(decoder), strict=True):
        assert_same(logits, alone)


@pytest.mark.parametrize("missing", ["positions", "document_ids"])
def test_packed_documents_without_boundaries_are_detected(
    missing: str, make_decoder: MakeDecoder, assert_same: AssertSame
) -> None:
    decoder, batch = make_decoder("gpt2"), packed_batch()
    kept = {"positions": batch.positions, "document_ids": batch.document_ids, missing: None}
    with pytest.raises(AssertionError, match="not close"):
        assert_same(decoder(batch.ids, FreshKVView(batch.ids, **kept))[0, 5:10], separate_logits(decoder)[2])


def test_padding_between_and_after_documents_gives_finite_logits(decoder: Decoder) -> None:
    ids = torch.tensor([[1, 2, 0, 0, 3, 0]])
    document_ids = torch.tensor([[0, 0, PADDING, PADDING, 1, PADDING]])
    assert decoder(ids, FreshKVView(ids, document_ids=document_ids)).isfinite().all()
