"""The configuration of a run as a TOML file."""

from __future__ import annotations

import pytest

from foretell.config import TrainingConfig, make_section, read_toml
from foretell.errors import ConfigError


def test_toml_is_read_and_bad_toml_is_named(tmp_path):
    (tmp_path / "good.toml").write_text("[training]\nsteps = 3\n")
    assert make_section(TrainingConfig, read_toml(tmp_path / "good.toml")["training"]).steps == 3
    (tmp_path / "bad.toml").write_text("[")
    with pytest.raises(ConfigError, match=r"bad\.toml"):
        read_toml(tmp_path / "bad.toml")
