"""The embedded corpus: there, deterministic, and without a paragraph that occurs twice."""

from __future__ import annotations

import re
import sys
from collections import Counter

import pytest

from foretell.data import corpora
from foretell.data.corpora import describe_embedded_corpus, embedded_corpus
from foretell.errors import DataError


def paragraphs(text: str) -> list[str]:
    return [" ".join(part.split()) for part in re.split(r"\n\s*\n", text) if part.strip()]


def test_the_corpus_is_large_enough_to_train_on_and_the_same_every_time() -> None:
    documents = list(embedded_corpus())
    assert len(documents) > 40
    assert sum(len(document.text) for document in documents) > 250_000
    assert documents == list(embedded_corpus())


def test_topics_come_sorted_and_none_is_a_leftover(monkeypatch: pytest.MonkeyPatch) -> None:
    reverse = dict(sorted(corpora._reference_topics().items(), reverse=True))
    monkeypatch.setattr(corpora, "_reference_topics", lambda: reverse)
    documents = list(embedded_corpus())
    sources = [document.source for document in documents]
    assert sources == sorted(sources)
    assert min(len(document.text) for document in documents) >= 200


def test_no_paragraph_occurs_twice_though_the_topics_repeat_many() -> None:
    raw = Counter(part for text in corpora._reference_topics().values() for part in paragraphs(text))
    kept = Counter(part for document in embedded_corpus() for part in paragraphs(document.text))
    assert max(kept.values()) == 1
    assert raw.total() - len(raw) > 100  # else the test above proves nothing
    assert kept.keys() <= raw.keys()
    assert len(kept) > 0.95 * len(raw)


def test_a_repeated_paragraph_is_found_though_its_line_breaks_differ() -> None:
    seen: set[str] = set()
    assert corpora._unseen_paragraphs("one two\n\n   indented\n", seen) == "one two\n\n   indented\n"
    assert corpora._unseen_paragraphs("one\n   two\n \nnew\n\nindented", seen) == "new\n"
    assert corpora._unseen_paragraphs("new", seen) == ""


@pytest.mark.skipif(sys.version_info[:3] != (3, 11, 7), reason="the documented numbers are those of Python 3.11.7")
def test_the_documented_numbers_are_true() -> None:
    texts = [document.text for document in embedded_corpus()]
    assert (len(texts), sum(map(len, texts))) == (68, 372_303)
    topics = corpora._reference_topics()
    assert (len(topics), sum(map(len, topics.values()))) == (79, 464_970)
    assert "79 topics" in (embedded_corpus.__doc__ or "")
    assert "372,303" in (embedded_corpus.__doc__ or "")


def test_the_description_states_version_and_size_in_one_line() -> None:
    line = describe_embedded_corpus()
    size = sum(len(document.text.encode()) for document in embedded_corpus())
    assert f"{size:,} bytes" in line
    assert f"Python {sys.version_info[0]}.{sys.version_info[1]}" in line
    assert "\n" not in line


def test_a_python_without_its_reference_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pydoc_data.topics", None)
    with pytest.raises(DataError, match="give text files instead"):
        list(embedded_corpus())
