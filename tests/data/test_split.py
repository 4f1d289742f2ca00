"""Validation text: nothing lost, nothing in both parts, a choice that later documents do not change."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foretell.data.documents import Document, TextDocument
from foretell.data.split import describe_split, split_documents
from foretell.errors import UsageError

FRACTIONS = st.one_of(st.just(0.0), st.floats(1e-6, 0.5))


def numbered(count: int) -> list[TextDocument]:
    return [TextDocument(str(index), f"text {index}") for index in range(count)]


def held_out(count: int, fraction: float = 0.1, seed: int = 0) -> list[int]:
    parts = split_documents(numbered(count), fraction, seed)
    return [index for index, (part, _) in enumerate(parts) if part == "validation"]


@settings(deadline=None)
@given(texts=st.lists(st.text(), max_size=30), fraction=FRACTIONS, seed=st.integers(0, 2**64))
def test_parts_join_to_the_texts(texts: list[str], fraction: float, seed: int) -> None:
    documents = [TextDocument(str(index), text) for index, text in enumerate(texts)]
    rejoined = dict.fromkeys(map(str, range(len(texts))), "")
    for _, piece in split_documents(documents, fraction, seed):
        rejoined[piece.source] += piece.text
    assert list(rejoined.values()) == texts


@settings(deadline=None)
@given(text=st.text(min_size=2), fraction=st.floats(1e-6, 0.5))
def test_single_text_gives_to_both_parts(text: str, fraction: float) -> None:
    pieces = list(split_documents([TextDocument("a", text)], fraction))
    assert [part for part, _ in pieces] == ["train", "validation"]
    assert all(piece.text for _, piece in pieces)


def test_few_documents_are_each_cut() -> None:
    documents = [TextDocument(letter, letter * 1000) for letter in "abc"]
    assert [(part, piece.source, len(piece.text)) for part, piece in split_documents(documents)] == [
        (part, letter, size) for letter in "abc" for part, size in (("train", 900), ("validation", 100))
    ]


@pytest.mark.parametrize(
    ("breaks", "cut"),
    [
        ([], 900),
        ([899], 900),
        ([900], 901),
        ([890, 915], 891),
        ([880, 905], 906),
        ([879], 880),
        ([878], 900),
        ([919], 920),
        ([920], 900),
        ([10, 990], 900),
    ],
)
def test_cut_follows_the_nearest_line_break_within_two_percent(breaks: list[int], cut: int) -> None:
    characters = ["x"] * 1000
    for position in breaks:
        characters[position] = "\n"
    (_, train), (_, validation) = split_documents([TextDocument("a", "".join(characters))])
    assert (len(train.text), len(validation.text)) == (cut, 1000 - cut)


def test_line_break_at_the_end_does_not_empty_validation() -> None:
    text = "x" * 99 + "\n"
    (_, train), (_, validation) = split_documents([TextDocument("a", text)], fraction=0.01)
    assert (len(train.text), validation.text) == (99, "\n")


@settings(max_examples=100, deadline=None)
@given(count=st.integers(20, 400), fraction=st.floats(1e-6, 0.5), seed=st.integers(0, 1000))
def test_many_documents_are_not_cut_and_both_parts_get_one(count: int, fraction: float, seed: int) -> None:
    parts = list(split_documents(numbered(count), fraction, seed))
    assert [piece for _, piece in parts] == numbered(count)
    assert {part for part, _ in parts} == {"train", "validation"}


@pytest.mark.parametrize("seed", range(20))
def test_one_of_every_ten_documents_is_held_out(seed: int) -> None:
    assert [index // 10 for index in held_out(400, seed=seed)] == list(range(40))


def test_appended_documents_change_nothing_for_earlier_ones() -> None:
    longest = held_out(200, seed=3)
    for count in range(20, 200):
        assert held_out(count, seed=3) == [index for index in longest if index < count]


def test_choice_depends_on_the_seed_and_covers_all_positions() -> None:
    assert held_out(400, seed=1) != held_out(400, seed=2)
    assert {index % 10 for index in held_out(2000)} == set(range(10))


def test_choice_is_the_same_on_every_machine() -> None:
    assert held_out(60, seed=0) == [3, 16, 24, 38, 42, 52]


def test_fraction_zero_holds_nothing_out() -> None:
    for count in (1, 19, 20, 100):
        assert [piece for part, piece in split_documents(numbered(count), 0) if part == "train"] == numbered(count)
        assert held_out(count, 0) == []


def test_at_most_twenty_documents_are_read_ahead() -> None:
    taken = 0

    def source() -> Iterator[Document]:
        nonlocal taken
        for document in numbered(1000):
            taken += 1
            yield document

    for returned, _ in enumerate(split_documents(source())):
        assert taken - returned <= 20


@pytest.mark.parametrize("fraction", [-0.1, 0.51, 1, 1e-9, 5e-324, float("nan"), float("inf")])
def test_invalid_fraction_is_refused_by_the_call_itself(fraction: float) -> None:
    with pytest.raises(UsageError, match="validation fraction"):
        split_documents([], fraction)


def test_description_of_the_rule() -> None:
    assert describe_split(50, 0) == "nothing is held out for validation"
    assert describe_split(19) == "validation is the last 0.1 of each document (fewer than 20 documents)"
    assert describe_split(20, 0.25, 7) == "validation is one whole document in every 4, chosen by seed 7"
