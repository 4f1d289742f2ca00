"""The import order of the design: each package imports only those before it, and there are no cycles."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import foretell

SOURCE = Path(foretell.__file__).parent
# Packages and top-level files in layers; a layer imports only from the layers before it.
LAYERS = [
    {"errors", "numerics"},
    {"paths", "system"},
    {"storage"},
    {"config", "typesetting"},
    {"distributed"},
    {"text", "model", "textbook"},
    {"data"},
    {"saved_model"},
    {"language_model"},
    {"generation", "runs"},
    {"insight", "training", "evaluation"},
    {"convert", "planning"},
    {"finding"},
    {"loading"},
    {"inference"},
    {"session"},
    {"pretraining", "finetuning", "forecasting", "translation"},
    {"trainings"},
    {"lessons", "serving"},
    {"cli"},
    {"included"},
    {"__init__", "__main__"},
]
RANK = {name: rank for rank, layer in enumerate(LAYERS) for name in layer}


@cache
def text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8")


@cache
def nodes(path: Path) -> list[ast.AST]:
    """All nodes of a file's syntax tree."""
    return list(ast.walk(ast.parse(text_of(path))))


def package_of(path: Path, source: Path = SOURCE) -> str:
    """`model` for src/foretell/model/attention.py, `paths` for src/foretell/paths.py."""
    first = path.relative_to(source).parts[0]
    return first.removesuffix(".py")


@cache
def imported_modules(path: Path) -> list[str]:
    """Every `foretell.x.y` that a file imports, including imports inside functions."""
    modules = []
    for node in nodes(path):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("foretell"):
            modules += [with_submodule(node.module, alias.name) for alias in node.names]
        elif isinstance(node, ast.Import):
            modules += [alias.name for alias in node.names if alias.name.startswith("foretell")]
    return modules


def with_submodule(module: str, name: str) -> str:
    """`foretell.text.tokenizer` for `from foretell.text import tokenizer` if that is a file; else the module."""
    file = SOURCE.parent.joinpath(*module.split("."), f"{name}.py")
    return f"{module}.{name}" if file.exists() else module


def forbidden_imports(path: Path, source: Path = SOURCE) -> list[str]:
    """The imports of a file that break the order."""
    own = package_of(path, source)
    others = {module.split(".")[1] for module in imported_modules(path) if "." in module} - {own}
    return [f"{path.relative_to(source)} imports {other}" for other in sorted(others) if RANK[other] >= RANK[own]]


FILES = sorted(SOURCE.rglob("*.py"))


def test_every_package_is_in_the_order():
    assert {package_of(path) for path in FILES} <= set(RANK)


def test_the_architecture_page_states_this_order():
    page = (SOURCE.parents[1] / "docs" / "architecture.md").read_text(encoding="utf-8")
    block = page.split("## Import order")[1].split("```")[1]
    assert [set(re.findall(r"\w+", layer)) for layer in block.split("<")] == LAYERS[:-1]


def test_imports_follow_the_order():
    assert [line for path in FILES for line in forbidden_imports(path)] == []


def test_an_import_against_the_order_is_detected(tmp_path):
    path = tmp_path / "model" / "wrong.py"
    path.parent.mkdir()
    path.write_text("def use():\n    from foretell.cli.main import main\n    return main\n", encoding="utf-8")
    assert forbidden_imports(path, tmp_path) == ["model/wrong.py imports cli"]


def test_explanations_know_nothing_of_the_page():
    explanations = (SOURCE / "insight" / "explain").glob("*.py")
    assert {name for path in explanations for name in imported_modules(path) if ".insight.page" in name} == set()


def test_modules_have_no_import_cycle():
    graph = {module_name(path): set(imported_modules(path)) for path in FILES}
    assert find_cycle(graph) is None


def test_an_import_cycle_is_detected():
    assert find_cycle({"a": {"b"}, "b": {"c"}, "c": {"a"}}) is not None


def module_name(path: Path) -> str:
    """`foretell.model.attention` for src/foretell/model/attention.py."""
    parts = path.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def find_cycle(graph: dict[str, set[str]]) -> list[str] | None:
    """A chain of imports that leads back to its start, or None."""
    done: set[str] = set()

    def visit(node: str, trail: list[str]) -> list[str] | None:
        if node in trail:
            return [*trail[trail.index(node) :], node]
        if node in done:
            return None
        for other in sorted(graph.get(node, ())):
            if cycle := visit(other, [*trail, node]):
                return cycle
        done.add(node)
        return None

    return next((cycle for node in graph if (cycle := visit(node, []))), None)


def test_help_and_the_package_do_not_import_heavy_modules():
    code = (
        "import sys, contextlib, io, foretell\n"
        "from foretell.cli.main import run\n"
        "with contextlib.redirect_stdout(io.StringIO()): assert run(['--help']) == 0\n"
        "with contextlib.redirect_stdout(io.StringIO()): assert run(['train', '--help']) == 0\n"
        "print(*{'torch', 'numpy', 'transformers', 'matplotlib'} & set(sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout == "\n"


KERNELS = "foretell.model.kernels"


def users_of_kernels(paths: list[Path]) -> dict[Path, list[str]]:
    """The files outside the kernels that import from them, with the modules that they import."""
    used = {path: [name for name in imported_modules(path) if f"{name}.".startswith(f"{KERNELS}.")] for path in paths}
    return {path: names for path, names in used.items() if names and path.parent.name != "kernels"}


def test_few_files_know_of_the_kernels_and_import_them_from_one_module():
    users = users_of_kernels(FILES)
    assert len(users) <= 4
    assert {name for names in users.values() for name in names} == {KERNELS}


def test_a_file_that_imports_a_module_of_the_kernels_is_detected(tmp_path):
    path = tmp_path / "wrong.py"
    path.write_text("from foretell.model.kernels import vectors\n", encoding="utf-8")
    assert users_of_kernels([path]) == {path: [f"{KERNELS}.vectors"]}


def test_pickle_is_used_nowhere():
    for path in FILES:
        names = {node.id for node in nodes(path) if isinstance(node, ast.Name)}
        text = text_of(path)
        assert "pickle" not in names, path
        assert "torch.load(" not in text, path
        assert "torch.save(" not in text, path
