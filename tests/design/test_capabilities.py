"""The table of capabilities: each file belongs to one row, and the numbers of lines are true.

`python tests/design/test_capabilities.py` writes the present numbers into docs/capabilities.md.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE, TESTS = ROOT / "src" / "foretell", ROOT / "tests"
PAGE = ROOT / "docs" / "capabilities.md"
CELLS = 7  # capability, code, its lines, tests, their lines, for whom, need
CODE, TEST = 1, 3  # the cells with starts of paths; the next cell has the number of lines


def rows_of(page: str) -> list[list[str]]:
    """The cells of each row, without the heading."""
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in page.splitlines() if line.startswith("| ")]
    return [row for row in rows if row[2] != "lines"]


def starts(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def lines_by_start(root: Path, suffixes: Iterable[str], known: list[str]) -> dict[str, int]:
    """The lines of the files that belong to each start, and to "" those of files that none fits."""
    lines: dict[str, int] = defaultdict(int)
    for path in root.rglob("*"):
        if path.suffix in suffixes and "frozen" not in path.parts:
            name = path.relative_to(root).as_posix()
            owner = max((start for start in known if name.startswith(start)), key=len, default="")
            lines[owner] += len(path.read_text("utf-8").splitlines())
    return dict(lines)


def counted(rows: list[list[str]], column: int, lines: dict[str, int]) -> list[int]:
    return [sum(lines.get(start, 0) for start in starts(row[column])) for row in rows]


def measure(rows: list[list[str]], column: int) -> dict[str, int]:
    known = [start for row in rows for start in starts(row[column])]
    if column == CODE:
        return lines_by_start(SOURCE, (".py", ".pyi", ".js", ".css", ".html"), known)
    return lines_by_start(TESTS, (".py",), known)


def is_off(written: str, lines: int) -> bool:
    """True if a written number differs from the lines by more than a twentieth, and by more than 25."""
    return abs(int(written.replace(",", "")) - lines) > max(25, lines / 20)


@pytest.mark.parametrize("column", [CODE, TEST])
def test_each_file_belongs_to_one_row_and_the_numbers_are_true(column):
    rows = rows_of(PAGE.read_text("utf-8"))
    known = [start for row in rows for start in starts(row[column])]
    lines = measure(rows, column)
    assert len(known) == len(set(known))
    assert lines.get("", 0) == 0, "files that belong to no row"
    assert [start for start in known if start not in lines] == [], "starts that fit no file"
    off = [row[0] for row, n in zip(rows, counted(rows, column, lines), strict=True) if is_off(row[column + 1], n)]
    assert off == [], "run python tests/design/test_capabilities.py"


def test_every_row_names_its_readers_and_their_need():
    assert [row for row in rows_of(PAGE.read_text("utf-8")) if len(row) != CELLS or not row[5] or not row[6]] == []


def test_a_file_counts_for_the_longest_start(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "x.py").write_text("1\n2\n")
    (tmp_path / "a" / "y.py").write_text("1\n")
    (tmp_path / "b.py").write_text("1\n")
    assert lines_by_start(tmp_path, [".py"], ["a/", "a/x.py"]) == {"a/": 1, "a/x.py": 2, "": 1}
    assert is_off("100", 126) and not is_off("1,000", 1050)


def write(page: str) -> str:
    """The page with the present numbers."""
    rows = rows_of(page)
    for column in (CODE, TEST):
        for row, lines in zip(rows, counted(rows, column, measure(rows, column)), strict=True):
            row[column + 1] = f"{lines:,}"
    head, _, _ = page.partition("|---|")
    table = "\n".join(f"| {' | '.join(row)} |".replace("|  |", "| |") for row in rows)
    return f"{head}{'|---' * CELLS}|\n{table}\n"


if __name__ == "__main__":
    PAGE.write_text(write(PAGE.read_text("utf-8")), encoding="utf-8")
