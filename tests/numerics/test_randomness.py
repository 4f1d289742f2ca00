"""Counter-based random numbers: known values, equal scalar and vector forms, and a uniform distribution."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from foretell.numerics.randomness import permutation, random_word, random_words, signed, stream_key, uniform

KEYS = st.integers(0, 2**64 - 1)


def test_the_words_are_those_of_splitmix64() -> None:
    assert [random_word(0, counter) for counter in range(3)] == [
        0xE220A8397B1DCDAF,
        0x6E789E6AA1B965F4,
        0x06C45D188009454F,
    ]


@given(key=KEYS, count=st.integers(1, 9), first=st.integers(0, 9))
def test_random_words_equal_random_word_for_each_counter(key: int, count: int, first: int) -> None:
    words, counters = random_words(torch.tensor([signed(key), 0]), count, first), range(first, first + count)
    assert words[0].tolist() == [signed(random_word(key, counter)) for counter in counters]
    assert words[1].tolist() == [signed(random_word(0, counter)) for counter in counters]


@given(key=KEYS, counter=st.integers(0, 2**40))
def test_uniform_numbers_are_at_least_0_and_below_1(key: int, counter: int) -> None:
    assert 0 <= uniform(key, counter) < 1


@pytest.mark.parametrize(("word", "expected"), [(0, 0.0), (2**64 - 1, 1 - 2**-53), (2**63, 0.5)])
def test_the_extreme_words_give_the_extreme_uniform_numbers(
    word: int, expected: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("foretell.numerics.randomness.random_word", lambda key, counter: word)
    assert uniform(0, 0) == expected


def test_uniform_numbers_fill_ten_bins_evenly() -> None:
    counts = [0] * 10
    for counter in range(20_000):
        counts[int(uniform(stream_key("bins"), counter) * 10)] += 1
    chi_square = sum((count - 2000) ** 2 / 2000 for count in counts)
    assert chi_square < 27.9  # 9 degrees of freedom: exceeded once in a thousand


def test_neighbouring_streams_are_uncorrelated() -> None:
    first, second = (
        torch.tensor([uniform(stream_key("row", row), counter) for counter in range(5000)]) for row in (0, 1)
    )
    assert abs(float(torch.corrcoef(torch.stack([first, second]))[0, 1])) < 4 / math.sqrt(5000)


@given(names=st.lists(st.integers() | st.text(max_size=3), max_size=4))
def test_a_stream_key_depends_on_every_part_of_its_name(names: list[int | str]) -> None:
    key = stream_key(*names)
    assert 0 <= key < 2**64
    assert key == stream_key(*names)
    assert key != stream_key(*names, 0)
    assert key != stream_key("0", *names)


def test_an_integer_and_its_text_name_different_streams() -> None:
    assert stream_key(1, 23) != stream_key(12, 3)
    assert stream_key(1) != stream_key("1")


def test_stream_keys_are_frozen() -> None:
    assert stream_key("sample", 1, 0) == 0x288DDFBB67A422EF


@given(key=KEYS, count=st.integers(1, 300))
def test_a_permutation_has_every_index_once(key: int, count: int) -> None:
    assert sorted(permutation(key, count).tolist()) == list(range(count))


def test_another_key_gives_another_permutation() -> None:
    assert not torch.equal(permutation(1, 50), permutation(2, 50))
