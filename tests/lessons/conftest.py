"""Lessons, each made when a test first asks for it. A model that is trained for half a minute is trained once."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from safetensors.torch import load_file, save_file

from foretell.config.training import TrainingConfig
from foretell.lessons import trained
from foretell.lessons.lesson import FigureCheck, Lesson, train_on
from foretell.lessons.registry import make_lesson
from foretell.lessons.trained import TrainedLesson
from foretell.model.decoder import Decoder


class LessonsOnDemand(dict[str, Lesson]):
    def __init__(self, made_once: Callable[..., Path]):
        super().__init__()
        self.made_once = made_once

    def __missing__(self, name: str) -> Lesson:
        with patch.object(trained, "train_on", self.train_once):
            self[name] = make_lesson(name)
        return self[name]

    def train_once(
        self, decoder: Decoder, optimizer: Any, lesson: TrainedLesson, config: TrainingConfig
    ) -> list[float]:
        """`train_on`, or its results if another process has them."""

        def make(folder: Path) -> None:
            folder.mkdir()
            losses = train_on(decoder, optimizer, lesson, config)
            (folder / "losses.json").write_text(json.dumps(losses), encoding="utf-8")
            save_file(decoder.state_dict(), folder / "weights.safetensors")

        folder = self.made_once(f"lesson-{lesson.name}", make)
        decoder.load_state_dict(load_file(folder / "weights.safetensors"))
        decoder.eval()
        return json.loads((folder / "losses.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="session")
def lessons(made_once: Callable[..., Path]) -> LessonsOnDemand:
    return LessonsOnDemand(made_once)


@pytest.fixture
def altered():
    """A function that copies a lesson, with other values."""

    def of(lesson: Lesson, **values: object) -> Lesson:
        other = copy.copy(lesson)
        assert vars(other).keys() >= values.keys()
        vars(other).update(values)
        return other

    return of


@pytest.fixture
def failures():
    """A function that returns the names of the failed checks."""

    def of(checks: list[FigureCheck]) -> list[str]:
        return [check.what for check in checks if not check.passed]

    return of
