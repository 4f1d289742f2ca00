"""The core: a newcomer must understand everything that a module imports, all the way down."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import foretell

SOURCE = Path(foretell.__file__).parent
PAGE = SOURCE.parents[1] / "docs" / "architecture.md"


def module_name(path: Path) -> str:
    parts = [SOURCE.name, *path.relative_to(SOURCE).with_suffix("").parts]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


FILES = {module_name(path): path for path in SOURCE.rglob("*.py")}

MOST_LINES = {
    "foretell.model.decoder": 2_651,
    "foretell.training.loop": 2_952,
    "foretell.pretraining.pretrain": 15_427,
    "foretell.insight.explain.explain_value": 12_364,
}


def statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements that run when a module is imported."""
    for node in body:
        if isinstance(node, ast.If):
            if "TYPE_CHECKING" not in ast.unparse(node.test):
                yield from statements([*node.body, *node.orelse])
        elif isinstance(node, ast.Try):
            yield from statements(node.body)
        else:
            yield node


@cache
def imports(module: str) -> frozenset[str]:
    """The modules that a module imports when it is imported, with the packages that hold them, without `foretell`."""
    names = set[str]()
    for node in statements(ast.parse(FILES[module].read_text(encoding="utf-8")).body):
        if isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
    parts = [name.split(".") for name in names]
    return frozenset(".".join(each[:end]) for each in parts for end in range(2, len(each) + 1)) & FILES.keys()


def closure(module: str) -> set[str]:
    """A module and all modules that it imports, all the way down."""
    reached, pending = set[str](), [module]
    while pending:
        if (name := pending.pop()) not in reached:
            reached.add(name)
            pending += imports(name)
    return reached


def lines(modules: set[str]) -> int:
    return sum(len(FILES[name].read_text(encoding="utf-8").splitlines()) for name in modules)


@pytest.mark.parametrize("module", MOST_LINES)
def test_the_core_does_not_grow(module: str) -> None:
    assert lines(closure(module)) <= MOST_LINES[module]


def reading_path() -> list[str]:
    """The files that the architecture page names as a reading path, in order."""
    section = PAGE.read_text(encoding="utf-8").split("## A reading path")[1].split("\n## ")[0]
    return re.findall(r"`([\w/]+\.py)`", section.split("\n| ", 1)[1].split("\n\n")[0])


def test_a_reader_of_the_path_meets_no_file_outside_it() -> None:
    path = {module_name(SOURCE / file) for file in reading_path()}
    packages = {name for name in FILES if FILES[name].name == "__init__.py"}
    assert {name for module in path for name in imports(module)} - packages - path == set()


def test_the_path_names_every_file_once() -> None:
    path = reading_path()
    assert len(path) == len(set(path))
    assert [file for file in path if not (SOURCE / file).is_file()] == []


def test_packages_on_the_path_import_nothing() -> None:
    packages = {module.rpartition(".")[0] for module in map(module_name, (SOURCE / file for file in reading_path()))}
    assert {package: imports(package) for package in packages - {SOURCE.name} if imports(package)} == {}
