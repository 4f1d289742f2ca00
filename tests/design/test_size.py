"""The size of the code: a limit of lines for each package, and one for all.

`python tests/design/test_size.py` prints the table of the present numbers, to paste below.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "foretell"
TOP = "(top)"  # files that are in no package
COUNTED = (".py", ".js", ".css", ".html")

# Lines per package. A number may rise if another falls by as much, or by a reserve that is used
LIMITS: dict[str, int] = {
    "(top)": 1274,
    "cli": 5574,
    "config": 963,
    "convert": 4531,
    "data": 3175,
    "distributed": 408,
    "evaluation": 734,
    "finetuning": 5046,
    "forecasting": 4163,
    "generation": 2510,
    "included": 358,
    "inference": 949,
    "insight": 12913,
    "lessons": 3416,
    "model": 8547,
    "numerics": 312,
    "planning": 644,
    "pretraining": 1629,
    "runs": 1506,
    "saved_model": 654,
    "serving": 6017,
    "session": 3060,
    "storage": 761,
    "system": 283,
    "text": 2766,
    "textbook": 1012,
    "training": 1521,
    "translation": 2198,
    "typesetting": 1098,
}
START = 72_098  # the sum of the limits without reserves; it only falls
# For larger work: what may be added, and what has been
RESERVES = {"real models": (3000, 2624), "training, opened": (2500, 2500), "front door": (800, 800)}

SMALL = 60  # lines; a smaller module with a single importer belongs in it
# Modules that are kept: take one out when it is merged, and give a reason for one that is new
KEPT: dict[str, str] = {
    "cli/example_files.py": "the list of the README's files, which its tests read",
}
# A function name in three packages of one layer is a protocol, or a copy
PROTOCOL_NAMES: set[str] = set()


def package_of(path: Path, source: Path = SOURCE) -> str:
    """`model` for src/foretell/model/kernels/matmul.py."""
    parts = path.relative_to(source).parts
    return parts[0] if len(parts) > 1 else TOP


def measure(source: Path = SOURCE) -> dict[str, int]:
    """The lines of each package."""
    lines: dict[str, int] = defaultdict(int)
    for path in source.rglob("*"):
        if path.suffix in COUNTED:
            lines[package_of(path, source)] += len(path.read_text("utf-8").splitlines())
    return dict(sorted(lines.items()))


def excesses(sizes: dict[str, int], limits: dict[str, int]) -> list[str]:
    """The packages that are too large, one line each."""
    return [
        f"{package}: {lines:,} lines; the limit is {limits.get(package, 0):,}"
        for package, lines in sizes.items()
        if lines > limits.get(package, 0)
    ]


def table(sizes: dict[str, int]) -> str:
    return "\n".join(f'    "{package}": {lines},' for package, lines in sizes.items())


def test_no_package_is_larger_than_its_limit():
    sizes = measure()
    assert excesses(sizes, LIMITS) == [], f"if packages were merged or renamed, the table is\n{table(sizes)}"
    assert set(LIMITS) == set(sizes), "limits of packages that are gone are removed"


def test_a_limit_rises_only_when_another_falls_or_a_reserve_is_used():
    assert all(used <= reserve for reserve, used in RESERVES.values())
    assert sum(LIMITS.values()) <= START + sum(used for _, used in RESERVES.values())


def test_a_package_above_its_limit_is_detected():
    assert excesses({"a": 10, "b": 9}, {"a": 10, "b": 8}) == ["b: 9 lines; the limit is 8"]
    assert len(excesses({"new": 1}, {})) == 1


# --- small modules ----------------------------------------------------------------------------------------------------


def importers(source: Path) -> dict[str, set[str]]:
    """module -> the modules that import it; `__init__` files, which only repeat names, count for all who use them."""
    paths = {module_name(path, source): path for path in source.rglob("*.py")}
    importing: dict[str, set[str]] = defaultdict(set)
    for name, path in paths.items():
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module:
                imported = {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
            elif isinstance(node, ast.Import):
                imported = {alias.name for alias in node.names}
            else:
                continue
            for module in imported & paths.keys():
                importing[module].add(name)
    return importing


def module_name(path: Path, source: Path) -> str:
    """`foretell.model.mask` for src/foretell/model/mask.py."""
    return ".".join(path.relative_to(source.parent).with_suffix("").parts).removesuffix(".__init__")


def small_modules_with_one_importer(source: Path) -> list[str]:
    """Modules that belong in their only importer."""
    importing = importers(source)
    found = []
    for path in sorted(source.rglob("*.py")):
        lines, users = len(path.read_text("utf-8").splitlines()), importing[module_name(path, source)]
        if lines < SMALL and path.stem not in ("__init__", "__main__") and len(users) == 1:
            (user,) = users
            is_layer = (source.parent / user.replace(".", "/")).is_dir()  # an __init__ that others import from
            if not is_layer and user.split(".")[1] == path.relative_to(source).parts[0]:
                found.append(f"{path.relative_to(source)} ({lines} lines) is imported by {user} alone")
    return found


def test_no_small_module_has_a_single_importer_in_its_package():
    lines = small_modules_with_one_importer(SOURCE)
    assert [line for line in lines if line.split()[0] not in KEPT] == []
    assert {line.split()[0] for line in lines} == set(KEPT), "take out of KEPT what was merged"


def test_a_small_module_with_a_single_importer_is_detected(tmp_path):
    package = tmp_path / "foretell" / "text"
    package.mkdir(parents=True)
    (package / "small.py").write_text("def f():\n    return 1\n")
    (package / "user.py").write_text("from foretell.text.small import f\n")
    assert small_modules_with_one_importer(tmp_path / "foretell") == [
        "text/small.py (2 lines) is imported by foretell.text.user alone"
    ]
    (package / "other.py").write_text("from foretell.text import small\n")
    assert small_modules_with_one_importer(tmp_path / "foretell") == []


# --- one function, several copies -------------------------------------------------------------------------------------


def layers() -> list[set[str]]:
    """The packages that do not import each other, from the import order in the architecture page."""
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    return [set(re.findall(r"\w+", layer)) for layer in page.split("## Import order")[1].split("```")[1].split("<")]


def repeated_functions(source: Path, siblings: Iterable[set[str]]) -> dict[str, list[str]]:
    """Function name -> the packages of one layer, three or more, that define it at the top level of a module."""
    packages: dict[str, set[str]] = defaultdict(set)
    for path in source.rglob("*.py"):
        for node in ast.parse(path.read_text("utf-8")).body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                packages[node.name].add(package_of(path, source))
    return {
        name: sorted(defining & layer)
        for name, defining in sorted(packages.items())
        for layer in siblings
        if len(defining & layer) >= 3
    }


def test_no_function_is_defined_in_three_sibling_packages():
    repeated = repeated_functions(SOURCE, layers())
    assert {name: where for name, where in repeated.items() if name not in PROTOCOL_NAMES} == {}


@pytest.mark.parametrize(("name", "count"), [("start", 1), ("only_two", 0)])
def test_a_function_in_three_siblings_is_detected(tmp_path, name, count):
    for package in ("a", "b", "c"):
        (tmp_path / package).mkdir()
        (tmp_path / package / "x.py").write_text("" if package == "c" and count == 0 else f"def {name}(): ...\n")
    assert len(repeated_functions(tmp_path, [{"a", "b", "c"}])) == count


if __name__ == "__main__":
    print(table(measure()))
