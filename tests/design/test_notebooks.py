"""The notebooks run from top to bottom, and what their cells end with displays itself."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "docs" / "notebooks"
SHORTER = {"STEPS = 100": "STEPS = 2"}  # the test is that the cells are correct
DISPLAYED = {
    "first_look": {"Completion", "DirectLogitAttribution", "Explanation", "LogitLens", "PageReport", "Receipt"}
    | {"ShownList", "Trace", "View"},
    "finetune_and_explain": {"LabelAttribution", "ShownList", "Walk"},
}
VOID = {"br", "hr", "img", "col", "wbr", "input", "meta", "link"}


class Balance(HTMLParser):
    """The tags that are open, and all that were seen."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.seen.add(tag)
        self.open += [] if tag in VOID else [tag]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def sources(path: Path) -> list[str]:
    """The code cells."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]


def run_cells(cells: list[str], name: str) -> Iterator[object]:
    """Run cells in one namespace as a notebook does; yields the value of each cell that ends with an expression."""
    names: dict[str, object] = {"__name__": "notebook"}
    for cell in cells:
        for long, short in SHORTER.items():
            cell = cell.replace(long, short)
        tree = ast.parse(cell)
        last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, name, "exec"), names)
        if isinstance(last, ast.Expr):
            yield eval(compile(ast.Expression(last.value), name, "eval"), names)


@pytest.mark.parametrize("name", DISPLAYED)
def test_every_cell_runs_and_results_display_as_html(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    kinds = set()
    for value in run_cells(sources(FOLDER / f"{name}.ipynb"), name):
        if (display := getattr(value, "_repr_html_", None)) is None:
            continue
        kinds.add(type(value).__name__)
        parser = Balance()
        parser.feed(display())
        assert parser.seen
        assert parser.open == []
        assert "script" not in parser.seen
    assert kinds == DISPLAYED[name]


@pytest.mark.parametrize("name", DISPLAYED)
def test_foretell_is_imported_before_torch(name):
    """A later import warns: OpenMP has read by then how its threads wait."""
    modules = re.findall(
        r"^(?:import|from) (torch|foretell)\b", "\n".join(sources(FOLDER / f"{name}.ipynb")), re.MULTILINE
    )
    assert modules[0] == "foretell"


def test_every_notebook_is_tested_and_stores_no_output():
    assert {path.stem for path in FOLDER.iterdir()} == set(DISPLAYED)
    for path in FOLDER.iterdir():
        for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
            assert not cell.get("outputs")
            assert cell.get("execution_count") is None
            assert "\n".join(cell["source"]).strip()
