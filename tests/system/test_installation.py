"""Versions, processor and extras, found without torch."""

from __future__ import annotations

import subprocess
import sys

import pytest

from foretell.system import installation


def test_every_extra_for_users_is_listed_and_missing_packages_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    found = installation.extras()
    assert {"plot", "hub", "data", "constrain"} <= set(found)
    assert not {"dev", "oracles", "all"} & set(found)
    monkeypatch.setattr(installation, "version_of", lambda name: None if name == "pyarrow" else "1")
    assert not installation.extras()["data"]
    assert installation.extras()["plot"]


def test_features_are_read_from_the_systems_list(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installation, "cpu_info", lambda: {"flags": "fpu avx2 avx512f sse2"})
    assert installation.cpu_features() == ["avx2", "avx512f"]
    monkeypatch.setattr(installation, "cpu_info", dict)
    assert installation.cpu_features() == []
    assert "features  unknown" in installation.installation_text()


def test_the_text_has_eighty_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installation, "extras", lambda: {f"extra{number}": True for number in range(40)})
    lines = installation.installation_text().splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[-2].startswith(" " * 10 + "extra")


def test_the_text_needs_no_torch_and_begins_with_the_version() -> None:
    code = (
        "import sys; from foretell.system.installation import installation_text as t; print(t()); "
        "assert 'torch' not in sys.modules"
    )
    text = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert text.startswith("foretell ")
    assert "torch 2" in text
