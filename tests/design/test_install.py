"""`make` keeps a torch that is already installed, and pins the tested one otherwise; no environment is tracked."""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.skipif(shutil.which("make") is None, reason="there is no make")
@pytest.mark.parametrize("has_torch", [True, False])
def test_constraints_pin_torch_only_if_it_is_not_installed(tmp_path, has_torch):
    for name in ("Makefile", "constraints.txt", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / ".venv"], check=True)
    if has_torch:
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        packages = tmp_path / ".venv" / "lib" / version / "site-packages"
        (packages / "torch.pth").write_text(sysconfig.get_path("purelib"), encoding="utf-8")
    subprocess.run(["make", "--silent", ".venv/.installed-plot,serve", "INSTALL=true"], cwd=tmp_path, check=True)
    constraints = (tmp_path / ".venv" / "constraints.txt").read_text(encoding="utf-8").splitlines()
    assert any(line.startswith("torch==") for line in constraints) is not has_torch
    assert any(line.startswith("numpy==") for line in constraints)


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="not a git checkout")
def test_no_environment_or_link_is_tracked():
    listed = subprocess.run(["git", "ls-files", "--stage"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert [line for line in listed.splitlines() if line.startswith("120000") or "\t.venv" in line] == [], (
        "a tracked .venv would replace the environment of a checkout: git rm --cached .venv"
    )
