"""`foretell.train` from a program: keywords, sections, the default directory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import foretell
from foretell.errors import ConfigError
from foretell.finding import default_run_directory
from foretell.runs.run import Run

TEXT = "The cat sat on the mat. The dog sat on the log.\n" * 60
SMALL: dict[str, Any] = {"size": "toy", "device": "cpu", "model": {"width": 16, "context_length": 16}}


@pytest.fixture
def text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "cats.txt"
    path.write_text(TEXT, encoding="utf-8")
    return path


def test_keywords_are_fields_of_the_training_section(text: Path) -> None:
    model = foretell.train(
        text,
        steps=2,
        batch_size=3,
        learning_rate=2e-3,
        seed=7,
        tokenizer={"kind": "bytes"},
        training={"momentum": 0.5},
        **SMALL,
    )
    training = Run(Path("runs/cats")).record()["config"]["training"]
    expected = {"steps": 2, "batch_size": 3, "learning_rate": 2e-3, "seed": 7, "momentum": 0.5}
    assert {name: training[name] for name in expected} == expected
    assert (model.config.width, model.tokenizer.kind) == (16, "bytes")


def test_without_out_the_run_is_named_after_the_data(text: Path) -> None:
    for directory in ("runs/cats", "runs/cats-2"):
        assert str(default_run_directory([text])) == directory
        assert str(default_run_directory([text], resume=True)) == "runs/cats"
        Path(directory).mkdir(parents=True)
    assert str(default_run_directory([])) == "runs/reference"
    assert str(default_run_directory(["-"])) == "runs/stdin"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"steps": 2, "training": {"steps": 3}}, "steps is given twice"),
        ({"step": 2}, "unknown configuration section 'step'"),
        ({"data": {"text_feild": "x"}}, "did you mean 'text_field'"),
        ({"tokenizer": {"kindd": "x"}}, "did you mean 'kind'"),
    ],
)
def test_wrong_settings_are_refused_before_anything_is_written(text: Path, options: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        foretell.train(text, **{**SMALL, **options})
    assert not Path("runs").exists()
