"""The embedded corpus: the topics of the language reference that every Python has for `help()`."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterator

from foretell.data.documents import TextDocument
from foretell.errors import DataError

# Shorter leftovers are a headline and a "see also" whose body was another topic's.
SHORTEST_TOPIC = 200  # characters


def embedded_corpus() -> Iterator[TextDocument]:
    """The reference topics, sorted by name, without paragraphs that occurred in an earlier topic.

    Topics quote each other: "compound" contains all of "if", "while" and "for", and of 464,970 characters (79 topics,
    Python 3.11.7) 90,760 are in repeated paragraphs. Split as they are, the validation text would be in the training
    text. Paragraphs are separated by blank lines and compared with whitespace normalised. 68 topics with 372,303
    characters remain; other versions of Python differ in size, so compare results on this corpus only within one
    version. Licensed with Python (PSF).

    Raises DataError if Python was packaged without the module `pydoc_data`.
    """
    topics = _reference_topics()
    seen: set[str] = set()
    for topic in sorted(topics):
        text = _unseen_paragraphs(topics[topic], seen)
        if len(text) >= SHORTEST_TOPIC:
            yield TextDocument(f"Python reference, topic {topic}", text)


def describe_embedded_corpus() -> str:
    """The corpus's version and sizes in one line."""
    texts = [document.text for document in embedded_corpus()]
    size = sum(len(text.encode("utf-8")) for text in texts)
    version = ".".join(map(str, sys.version_info[:3]))
    return f"the language reference inside Python {version}: {len(texts)} topics, {size:,} bytes, no paragraph twice"


def _reference_topics() -> dict[str, str]:
    """Imported only when needed: half a megabyte, which some Linux distributions leave out."""
    try:
        return importlib.import_module("pydoc_data.topics").topics
    except ModuleNotFoundError:
        raise DataError(
            f"{sys.executable}: this Python has no language reference (module pydoc_data); give text files instead"
        ) from None


def _unseen_paragraphs(text: str, seen: set[str]) -> str:
    """The paragraphs that are not in `seen`, which are then added to it; an empty string if there are none."""
    kept = []
    for paragraph in re.split(r"\n\s*\n", text):
        key = " ".join(paragraph.split())
        if key and key not in seen:
            seen.add(key)
            kept.append(paragraph.strip("\n"))
    return "\n\n".join(kept) + "\n" if kept else ""
