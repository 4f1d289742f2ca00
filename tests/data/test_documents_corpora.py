"""The embedded corpus: available, deterministic, and without repeated paragraphs."""

from __future__ import annotations

import re
import sys
from collections import Counter

import pytest

from foretell.data import documents as module
from foretell.data.documents import describe_embedded_corpus, embedded_corpus
from foretell.errors import DataError


def paragraphs(text: str) -> list[str]:
    return [" ".join(part.split()) for part in re.split(r"\n\s*\n", text) if part.strip()]


def test_corpus_is_large_enough_and_deterministic() -> None:
    documents = list(embedded_corpus())
    assert len(documents) > 40
    assert sum(len(document.text) for document in documents) > 250_000
    assert documents == list(embedded_corpus())


def test_topics_are_sorted_and_not_too_short(monkeypatch: pytest.MonkeyPatch) -> None:
    reverse = dict(sorted(module._reference_topics().items(), reverse=True))
    monkeypatch.setattr(module, "_reference_topics", lambda: reverse)
    documents = list(embedded_corpus())
    sources = [document.source for document in documents]
    assert sources == sorted(sources)
    assert min(len(document.text) for document in documents) >= 200


def test_repeated_paragraphs_are_left_out() -> None:
    raw = Counter(part for text in module._reference_topics().values() for part in paragraphs(text))
    kept = Counter(part for document in embedded_corpus() for part in paragraphs(document.text))
    assert max(kept.values()) == 1
    assert raw.total() - len(raw) > 100  # else the test above proves nothing
    assert kept.keys() <= raw.keys()
    assert len(kept) > 0.95 * len(raw)


def test_paragraphs_are_compared_with_whitespace_normalised() -> None:
    seen: set[str] = set()
    assert module._unseen_paragraphs("one two\n\n   indented\n", seen) == "one two\n\n   indented\n"
    assert module._unseen_paragraphs("one\n   two\n \nnew\n\nindented", seen) == "new\n"
    assert module._unseen_paragraphs("new", seen) == ""


@pytest.mark.skipif(sys.version_info[:3] != (3, 11, 7), reason="the documented numbers are those of Python 3.11.7")
def test_documented_numbers() -> None:
    texts = [document.text for document in embedded_corpus()]
    assert (len(texts), sum(map(len, texts))) == (68, 372_303)
    topics = module._reference_topics()
    assert (len(topics), sum(map(len, topics.values()))) == (79, 464_970)
    assert "79 topics" in (embedded_corpus.__doc__ or "")
    assert "372,303" in (embedded_corpus.__doc__ or "")


def test_description_has_version_and_size_in_one_line() -> None:
    line = describe_embedded_corpus()
    size = sum(len(document.text.encode()) for document in embedded_corpus())
    assert f"{size:,} bytes" in line
    assert f"Python {sys.version_info[0]}.{sys.version_info[1]}" in line
    assert "\n" not in line


def test_python_without_its_language_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pydoc_data.topics", None)
    with pytest.raises(DataError, match="give text files instead"):
        list(embedded_corpus())
