"""Wording that a reader has to translate does not come back: a few patterns that are almost never plain English."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("src", "tests", "docs", "bench")
SUFFIXES = {".py", ".md", ".js", ".html", ".toml"}
PATTERNS = {
    "X is no Y (write: is not a Y)": r"(?<!here )\b(is|are|was|were) no (?!longer\b|more\b|such\b|less\b|fewer\b)\w+",
    "beside (write: next to, with, compared to)": r"\bbeside\b",
    "for one in (name the thing)": r"\bfor one in\b",
    "stands (write: is)": r"\bstands?\b(?! for\b)",
    "whoever, whatever": r"\b[Ww]ho(ever|soever)\b|\b[Ww]hatever\b",
    "hands out (write: returns)": r"\b[Hh]and(s|ed)? out\b",
    "anew (write: again)": r"\banew\b",
    "to the bit (write: bit-identical)": r"\bto the bit\b",
    "nats a token (write: per token)": (
        r"\b(nats|bits|bytes|tokens|rows|logits|MFLOP|GFLOP) an? (token|byte|step|row|second|layer|head|parameter)\b"
    ),
}
# Text that is not the project's own: licences, lesson sources quoted as data, and this file
EXEMPT = {Path("tests/design/test_plain_english.py"), Path("src/foretell/primer/tokenizer.json")}


def texts() -> list[Path]:
    """Every text file of the project that people read."""
    found = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*") if path.suffix in SUFFIXES]
    return [path for path in [ROOT / "README.md", *sorted(found)] if path.relative_to(ROOT) not in EXEMPT]


def matches(text: str, pattern: str) -> list[str]:
    """The lines in which a pattern occurs."""
    return [line.strip() for line in text.splitlines() if re.search(pattern, line)]


@pytest.mark.parametrize("pattern", PATTERNS.values(), ids=PATTERNS)
def test_no_text_uses_the_pattern(pattern):
    uses = [
        f"{path.relative_to(ROOT)}: {line}" for path in texts() for line in matches(path.read_text("utf-8"), pattern)
    ]
    assert uses == []


@pytest.mark.parametrize(
    ("name", "bad", "good"),
    [
        ("X is no Y (write: is not a Y)", "a folder is no file", "there is no file; it is no longer a file"),
        ("stands (write: is)", "the text stands there", "B stands for rows, outstanding standards"),
        ("nats a token (write: per token)", "3 nats a token", "3 nats per token"),
    ],
)
def test_a_pattern_finds_what_it_should(name, bad, good):
    assert matches(bad, PATTERNS[name])
    assert not matches(good, PATTERNS[name])
