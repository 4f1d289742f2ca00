"""Packages that can be deleted with the file of their verbs: the rest names them only in tables, and works without."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import foretell
from foretell.errors import CheckpointError
from foretell.saved_model.part import KIND_MODULES, part_class

SOURCE = Path(foretell.__file__).parent
# package: the file of its verbs, and the files outside of it that name it, in a line of a table
REMOVABLE = {
    "forecasting": (
        "cli/forecast.py",
        {*("saved_model/part.py", "trainings.py", "serving/tasks.py", "included/almanac/make.py")},
    ),
    "translation": ("cli/translate.py", {*("saved_model/part.py", "trainings.py", "serving/tasks.py")}),
}
WITHOUT = """
import importlib, importlib.abc, pkgutil, sys
PACKAGE, VERBS, *SKIPPED = sys.argv[1:]
class Deleted(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name in (PACKAGE, VERBS) or name.startswith(PACKAGE + "."):
            raise ModuleNotFoundError(f"{name} is deleted")
for name in [name for name in sys.modules if name.partition(".")[0] == "foretell"]:
    del sys.modules[name]
sys.meta_path.insert(0, Deleted())
import foretell
for module in pkgutil.walk_packages(foretell.__path__, "foretell.", onerror=lambda name: None):
    if not module.name.startswith(PACKAGE) and module.name not in (VERBS, *SKIPPED):
        importlib.import_module(module.name)
assert not {PACKAGE, VERBS} & {*sys.modules} and "foretell.loading" in sys.modules
"""


@pytest.mark.parametrize("package", REMOVABLE)
def test_nothing_else_names_a_removable_package(package):
    others = (path for path in SOURCE.rglob("*.py") if path.relative_to(SOURCE).parts[0] != package)
    naming = {
        path.relative_to(SOURCE).as_posix()
        for path in others
        if re.search(rf"foretell\.{package}\b", path.read_text(encoding="utf-8"))
    }
    verbs, tables = REMOVABLE[package]
    assert naming == {verbs, *tables}


def test_a_saved_model_with_a_part_of_a_removed_package_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setitem(KIND_MODULES, "gone", "foretell.gone.part")
    with pytest.raises(CheckpointError, match="kind 'gone', which needs foretell.gone"):
        part_class("gone", tmp_path)


@pytest.mark.parametrize("package", REMOVABLE)
def test_the_rest_can_be_imported_without_it(package, original, tmp_path):
    """In a copy of a process that has imported torch, which forgets the modules of foretell."""
    (tmp_path / "without.py").write_text(WITHOUT, encoding="utf-8")
    verbs = f"foretell.{REMOVABLE[package][0].removesuffix('.py').replace('/', '.')}"
    arguments = [f"foretell.{package}", verbs, "foretell.__main__", "foretell.included.almanac.make"]
    finished = original.run(arguments, program=tmp_path / "without.py")
    assert finished.returncode == 0, finished.stderr
