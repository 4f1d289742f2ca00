"""Wording that a reader has to translate does not come back: a few patterns that are almost never plain English.

Others are sometimes right, so their number may only go down. `python tests/design/test_plain_english.py` prints the
table of the present numbers.
"""

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
# Patterns of translated syntax that are sometimes right: how often sources and documents use each at most
COUNTED = {
    "those of, that of": (r"\b([Tt]hose|[Tt]hat) of\b", 124),
    "of its own, of their own": (r"\bof (its|their|our|his) own\b", 35),
    "so many, as many": (r"\b(so|as) many\b", 37),
    "nobody, somebody": (r"\b([Nn]obody|[Ss]omebody|[Aa]nybody)\b", 13),
    "pays": (r"\bpays?\b", 9),
    "says, knows, notices (of a thing)": (r"\b(says|knows|notices|bears)\b", 71),
    "a docstring that starts with a question word": (
        r'^\s*[rf]?"""(What|Who|Whose|Where|When|Whether|How many|How much)\b',
        64,
    ),
    "a sentence that starts with Of": (r'(^\s*(#|"""|- |\|)?\s*|\. )Of (a|an|the|what|this|those|each) ', 7),
}
COUNTED_FOLDERS = ("src", "docs")
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


def counts() -> dict[str, int]:
    """How often each of the counted patterns occurs."""
    shown = [path for path in texts() if path.relative_to(ROOT).parts[0] in (*COUNTED_FOLDERS, "README.md")]
    lines = [line for path in shown for line in path.read_text("utf-8").splitlines()]
    return {name: sum(bool(re.search(pattern, line)) for line in lines) for name, (pattern, _) in COUNTED.items()}


def test_counted_patterns_do_not_increase():
    assert {name: count for name, count in counts().items() if count > COUNTED[name][1]} == {}


def test_a_counted_pattern_finds_what_it_should():
    for line, name in {
        '    """What a pass takes."""': "a docstring that starts with a question word",
        "# Of a tuned model: read TEXT": "a sentence that starts with Of",
        "sizes are those of GPT-2": "those of, that of",
    }.items():
        assert matches(line, COUNTED[name][0])
    assert not matches('"""Whatever."""', COUNTED["a docstring that starts with a question word"][0])


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


if __name__ == "__main__":
    for pattern_name, number in counts().items():
        print(f"{number:5}  {pattern_name}")
