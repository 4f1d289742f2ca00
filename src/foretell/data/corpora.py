"""The corpus that is always there: the topics of the language reference that every Python carries for `help()`."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterator

from foretell.data.sources import Document
from foretell.errors import DataError

# Shorter leftovers are a headline and a "see also" whose body was another topic's.
SHORTEST_TOPIC = 200  # characters


def embedded_corpus() -> Iterator[Document]:
    """The reference topics, sorted by name, each paragraph where it occurs first and nowhere else.

    Topics quote each other: "if", "while" and "for" lie whole inside "compound", and of 464,970 characters (79 topics,
    Python 3.11.7) 90,760 stand in paragraphs that occurred before. Cut into training and validation as they are, the
    held-out text would be in the training text. A paragraph is what blank lines separate, compared with whitespace
    normalised. 68 topics with 372,303 characters remain; other versions of Python differ in size, so results on
    this corpus compare only within one version. Licensed with Python (PSF).

    Raises DataError where the system's Python was packaged without the module `pydoc_data`.
    """
    topics = _reference_topics()
    seen: set[str] = set()
    for topic in sorted(topics):
        text = _unseen_paragraphs(topics[topic], seen)
        if len(text) >= SHORTEST_TOPIC:
            yield Document(text, f"Python reference, topic {topic}")


def describe_embedded_corpus() -> str:
    """One sentence with the corpus's version and sizes."""
    texts = [document.text for document in embedded_corpus()]
    size = sum(len(text.encode("utf-8")) for text in texts)
    version = ".".join(map(str, sys.version_info[:3]))
    return f"the language reference inside Python {version}: {len(texts)} topics, {size:,} bytes, no paragraph twice"


def _reference_topics() -> dict[str, str]:
    """Loaded when asked for, not on import: half a megabyte, which some Linux distributions leave out."""
    try:
        return importlib.import_module("pydoc_data.topics").topics
    except ModuleNotFoundError:
        raise DataError(
            f"{sys.executable}: this Python comes without its reference (module pydoc_data); give text files instead"
        ) from None


def _unseen_paragraphs(text: str, seen: set[str]) -> str:
    """The paragraphs not in `seen`, which they join; the empty string where none is new."""
    kept = []
    for paragraph in re.split(r"\n\s*\n", text):
        key = " ".join(paragraph.split())
        if key and key not in seen:
            seen.add(key)
            kept.append(paragraph.strip("\n"))
    return "\n\n".join(kept) + "\n" if kept else ""
