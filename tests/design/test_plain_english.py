"""Wording that a reader has to translate does not come back: a few patterns that are almost never plain English."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
SUFFIXES = {".py", ".md", ".js", ".html", ".toml"}
EVERYWHERE = ("src", "tests", "docs", "bench", "examples", "README.md")
READ_BY_USERS = ("src", "docs", "examples", "README.md")


class Pattern(NamedTuple):
    """An expression, where it is not used, a line in which it is found, and one in which it is not."""

    expression: str
    folders: tuple[str, ...]
    bad: str
    good: str


PATTERNS = {
    "X is no Y (write: is not a Y)": Pattern(
        r"(?<!here )\b(is|are|was|were) no (?!longer\b|more\b|such\b|less\b|fewer\b)\w+",
        EVERYWHERE,
        "a folder is no file",
        "there is no file; it is no longer a file",
    ),
    "beside (write: next to, with, compared to)": Pattern(r"\bbeside\b", EVERYWHERE, "beside it", "besides"),
    "for one in (name the thing)": Pattern(r"\bfor one in\b", EVERYWHERE, "for one in rows", "for row in rows"),
    "stands (write: is)": Pattern(
        r"\bstands?\b(?! for\b)", EVERYWHERE, "the text stands there", "B stands for rows, outstanding standards"
    ),
    "whoever, whatever": Pattern(
        r"\b[Ww]ho(ever|soever)\b|\b[Ww]hatever\b", EVERYWHERE, "Whatever fails", "the operation that fails"
    ),
    "hands out (write: returns)": Pattern(r"\b[Hh]and(s|ed)? out\b", EVERYWHERE, "hands out rows", "hands outside"),
    "anew (write: again)": Pattern(r"\banew\b", EVERYWHERE, "computed anew", "a new value"),
    "to the bit (write: bit-identical)": Pattern(r"\bto the bit\b", EVERYWHERE, "equal to the bit", "to the bits"),
    "nats a token (write: per token)": Pattern(
        r"\b(nats|bits|bytes|tokens|rows|logits|MFLOP|GFLOP) an? (token|byte|step|row|second|layer|head|parameter)\b",
        EVERYWHERE,
        "3 nats a token",
        "3 nats per token",
    ),
    "those of, that of (name the thing)": Pattern(
        r"\b([Tt]hose|[Tt]hat) of\b", READ_BY_USERS, "sizes are those of GPT-2", "the sizes of GPT-2; that often"
    ),
    "of its own, of their own": Pattern(
        r"\bof (its|their|our|his) own\b", READ_BY_USERS, "a file of its own", "its own file"
    ),
    "so many, as many (write: the number of)": Pattern(
        r"\b(so|as) many\b", READ_BY_USERS, "as many rows as columns", "many rows; also manyfold"
    ),
    "nobody, somebody": Pattern(
        r"\b([Nn]obody|[Ss]omebody|[Aa]nybody)\b", READ_BY_USERS, "where nobody watches", "without hooks"
    ),
    "pays (write: is faster)": Pattern(r"\bpays?\b", READ_BY_USERS, "compiling pays", "payload, paying"),
    "says, knows, notices (of a thing)": Pattern(
        r"\b(says|knows|notices|bears)\b", READ_BY_USERS, "the log says why", "the log gives the reason; known notice"
    ),
    "a docstring that starts with a question word": Pattern(
        r'^\s*[rf]?"""(What|Who|Whose|Where|When|Whether|How many|How much)\b',
        READ_BY_USERS,
        '    """What a pass takes."""',
        '    """Whenever."""',
    ),
    "a sentence that starts with Of": Pattern(
        r'(^\s*(#|"""|- |\|)?\s*|\. )Of (a|an|the|what|this|those|each) ',
        READ_BY_USERS,
        "# Of a tuned model: read TEXT",
        "# Offset of a model",
    ),
    "a clause with What as the subject": Pattern(
        r'(^\s*(#|""")?\s*|\. )What [^?:]* (is|are|was|were|does|has|had) [^?:]*\.(\s|$|""")',
        READ_BY_USERS,
        "What is left out is logged.",
        "What is a token? The lines left out are logged.",
    ),
    "a variable that is not named after its content": Pattern(
        r"(^\s*|\bfor |, )(found|place|there|said)\b((, \w+)* (in|=|\+=) |: [\w\[])",
        ("src",),
        "    found: list[str] = []",
        "    candidates = [each for each in texts if found(each)]",
    ),
}
# Text that is not the project's own: licences, lesson sources quoted as data, and this file
EXEMPT = {
    Path("tests/design/test_plain_english.py"),
    *(Path(f"src/foretell/included/{name}/tokenizer.json") for name in ("primer", "atlas")),
}


def texts(folders: tuple[str, ...]) -> list[Path]:
    """The text files of the project that people read, in some of its folders."""
    paths = [
        path for name in folders for path in ((ROOT / name).rglob("*") if (ROOT / name).is_dir() else [ROOT / name])
    ]
    return [path for path in sorted(paths) if path.suffix in SUFFIXES and path.relative_to(ROOT) not in EXEMPT]


def matches(text: str, expression: str) -> list[str]:
    """The lines in which an expression occurs."""
    return [line.strip() for line in text.splitlines() if re.search(expression, line)]


@pytest.mark.parametrize("pattern", PATTERNS.values(), ids=PATTERNS)
def test_no_text_uses_the_pattern(pattern):
    uses = [
        f"{path.relative_to(ROOT)}: {line}"
        for path in texts(pattern.folders)
        for line in matches(path.read_text("utf-8"), pattern.expression)
    ]
    assert uses == []


@pytest.mark.parametrize("pattern", PATTERNS.values(), ids=PATTERNS)
def test_a_pattern_finds_what_it_should(pattern):
    assert matches(pattern.bad, pattern.expression)
    assert not matches(pattern.good, pattern.expression)
