"""Masks compared to a double loop over all pairs, and a bit-exact test that no position sees the future."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from foretell.config.model import ModelConfig
from foretell.model.cache import FreshKVView
from foretell.model.decoder import Decoder
from foretell.model.mask import EMPTY, Mask
from tests.model.conftest import MakeDecoder

# --- the mask alone --------------------------------------------------------------------------------------------------


def sees(mask: Mask, row: int, query: int, key: int) -> bool:
    """True if one query position may see one key position."""
    query_position = mask.num_keys - mask.num_queries + query
    key_position = key
    if mask.query_positions is not None and mask.key_positions is not None:
        query_position, key_position = int(mask.query_positions[row, query]), int(mask.key_positions[row, key])
    if key_position == EMPTY:
        return False
    if mask.causal and key_position > query_position:
        return False
    if mask.window is not None and query_position - key_position >= mask.window:
        return False
    if mask.query_document_ids is not None and mask.key_document_ids is not None:
        return bool(mask.query_document_ids[row, query] == mask.key_document_ids[row, key])
    return True


def by_double_loop(mask: Mask, rows: int) -> Tensor:
    return torch.tensor(
        [
            [[[sees(mask, row, query, key) for key in range(mask.num_keys)] for query in range(mask.num_queries)]]
            for row in range(rows)
        ]
    )


@st.composite
def masks(draw: st.DrawFn) -> tuple[Mask, int]:
    """A random mask, and its number of rows."""
    rows, num_keys = draw(st.integers(1, 3)), draw(st.integers(1, 6))
    num_queries = draw(st.integers(1, num_keys))

    def table(columns: int, lowest: int) -> Tensor:
        row = st.lists(st.integers(lowest, 6), min_size=columns, max_size=columns)
        return torch.tensor(draw(st.lists(row, min_size=rows, max_size=rows)))

    has_positions, has_documents = draw(st.booleans()), draw(st.booleans())
    mask = Mask(
        num_queries,
        num_keys,
        causal=draw(st.booleans()),
        window=draw(st.none() | st.integers(1, 7)),
        query_positions=table(num_queries, 0) if has_positions else None,
        key_positions=table(num_keys, EMPTY) if has_positions else None,
        query_document_ids=table(num_queries, 0) if has_documents else None,
        key_document_ids=table(num_keys, 0) if has_documents else None,
    )
    return mask, rows


@given(masks())
def test_allowed_equals_a_double_loop(mask_and_rows: tuple[Mask, int]) -> None:
    mask, rows = mask_and_rows
    assert torch.equal(mask.allowed.expand(rows, -1, -1, -1), by_double_loop(mask, rows))


@given(masks())
def test_a_plain_causal_mask_is_the_lower_triangle(mask_and_rows: tuple[Mask, int]) -> None:
    mask, _ = mask_and_rows
    if mask.is_plain_causal:
        assert torch.equal(mask.allowed[0, 0], torch.ones(mask.num_queries, mask.num_keys, dtype=torch.bool).tril())


@given(masks())
def test_an_open_mask_hides_nothing(mask_and_rows: tuple[Mask, int]) -> None:
    mask, _ = mask_and_rows
    if mask.is_open:
        assert mask.allowed.all()


@pytest.mark.parametrize(
    ("mask", "is_plain_causal", "is_open"),
    [
        (Mask(4, 4), True, False),
        (Mask(4, 4, window=4), True, False),
        (Mask(4, 4, window=3), False, False),
        (Mask(1, 4), False, True),
        (Mask(1, 4, window=3), False, False),
        (Mask(2, 4), False, False),
        (Mask(4, 4, causal=False), False, True),
        (Mask(4, 4, query_document_ids=torch.zeros(1, 4), key_document_ids=torch.zeros(1, 4)), False, False),
    ],
)
def test_masks_that_need_no_mask_tensor(mask: Mask, is_plain_causal: bool, is_open: bool) -> None:
    assert (mask.is_plain_causal, mask.is_open) == (is_plain_causal, is_open)


def test_layers_with_the_same_window_share_one_mask() -> None:
    view = FreshKVView(torch.zeros(1, 5, dtype=torch.long))
    assert view.mask(3) is view.mask(3)
    assert view.mask(3) is not view.mask(None)


# --- the mask in a decoder -------------------------------------------------------------------------------------------


def changed_positions(decoder: Decoder, ids: Tensor, changed: int) -> list[int]:
    """Positions whose logits change by any bit when the token at position `changed` is replaced."""
    other = ids.clone()
    other[:, changed] = (ids[:, changed] + 1) % decoder.config.vocab_size
    return (decoder(ids) != decoder(other)).any(dim=(0, 2)).nonzero()[:, 0].tolist()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_token_changes_no_bit_of_earlier_logits(
    config: ModelConfig, make_decoder: MakeDecoder, ids: Tensor, dtype: torch.dtype
) -> None:
    decoder = make_decoder(config, dtype)
    assert all(min(changed_positions(decoder, ids, position)) == position for position in range(ids.shape[1]))


def leak_one_future_key(monkeypatch: pytest.MonkeyPatch) -> None:
    def allowed(mask: Mask) -> Tensor:
        return torch.ones(1, 1, mask.num_queries, mask.num_keys, dtype=torch.bool).tril(diagonal=1)

    monkeypatch.setattr(Mask, "is_plain_causal", False)
    monkeypatch.setattr(Mask, "allowed", property(allowed))


@pytest.mark.parametrize("name", ["gpt2", "explicit core"])
def test_a_mask_that_leaks_one_future_key_is_detected(
    name: str, make_decoder: MakeDecoder, ids: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    leak_one_future_key(monkeypatch)
    assert min(changed_positions(make_decoder(name, num_layers=1, window=None), ids, 5)) == 4


@pytest.mark.parametrize(
    ("window", "expected"),
    [(1, [3]), (3, [3, 4, 5, 6, 7]), ((2, None), list(range(3, 12))), (None, list(range(3, 12)))],
)
def test_the_reach_of_a_window_grows_with_the_layers(
    window: int | tuple | None, expected: list[int], make_decoder: MakeDecoder, ids: Tensor
) -> None:
    assert changed_positions(make_decoder("gpt2", window=window), ids, 3) == expected
