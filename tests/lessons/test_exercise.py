"""Exercises: their formulas give their answers, and replies are judged as a reader expects."""

from __future__ import annotations

import math
import re

import pytest

from foretell.errors import UsageError
from foretell.insight.explain.explain_address import explain_value
from foretell.lessons.exercise import Exercise
from foretell.lessons.registry import ENTRIES, EXERCISES
from foretell.lessons.smallest import IDS, make_smallest

SLOW = "induction"
NAMES = [pytest.param(entry.name, marks=pytest.mark.long if entry.name == SLOW else ()) for entry in ENTRIES]
FUNCTIONS = {"exp": math.exp, "ln": math.log, "sqrt": math.sqrt, "sin": math.sin}


def computed(formula: str) -> float:
    for written, python in {"·": "*", "√": "sqrt", "^": "**"}.items():
        formula = formula.replace(written, python)
    return eval(formula, FUNCTIONS)


@pytest.mark.parametrize("name", NAMES)
def test_an_exercise_asks_what_its_formula_answers(lessons, name):
    exercises = lessons[name].exercises()
    assert len(exercises) == EXERCISES
    for each in exercises:
        assert each.question.endswith(("?", ".")) or "?" in each.question
        assert each.accepts(each.shown)
        if not isinstance(each.answer, str):
            assert each.accepts(f"{computed(each.formula):.6f}"), each
            assert not each.accepts(str(each.answer + max(0.01, 2 * each.tolerance)))


@pytest.mark.parametrize("name", NAMES)
def test_the_lesson_shows_its_questions_but_not_their_answers(lessons, name):
    text = " ".join(str(lessons[name]).split())
    shown = text.partition(" Exercises ")[2]
    for number, each in enumerate(lessons[name].exercises(), start=1):
        assert f"{number}. {' '.join(each.question.split())}" in shown
        assert each.formula not in shown


def test_the_report_of_a_lesson_covers_its_exercises(lessons):
    checks = lessons["smallest"].report().checks
    assert sum(check.what.startswith("exercise") for check in checks) == EXERCISES


def test_operands_of_the_smallest_decoder_are_at_their_addresses(lessons):
    word, without_mask, _ = lessons["smallest"].solutions()
    model = make_smallest(lessons["smallest"].weights)

    def numbers(where: str) -> list[float]:
        return [explain_value(model, IDS, where.replace(":", str(key))).stored for key in range(len(IDS))]

    assert ", ".join(f"{number:.4f}" for number in numbers(word.where)) in word.formula
    assert re.findall(r"exp\((.*?)\)", without_mask.formula)[1:] == [f"{n:.2f}" for n in numbers(without_mask.where)]


@pytest.mark.parametrize(
    ("answer", "reply", "is_right"),
    [
        (0.4841, "0.48", True),
        (0.4841, " 0,484 ", True),
        (0.4841, "0.47", False),
        (0.4841, "nan", False),
        (40, "40.0", True),
        (40, "40.01", False),
        ("good", "'Good'", True),
        ("good", "am", False),
    ],
)
def test_replies_are_judged(answer, reply, is_right):
    exercise = Exercise(answer, "1 / 2", "section 1")
    assert exercise.accepts(reply) is is_right
    assert exercise.verdict(reply).startswith("right, " if is_right else "no, the answer is ")
    assert exercise.to_json(reply)["right"] is is_right


def test_a_word_in_place_of_a_number_is_an_error():
    with pytest.raises(UsageError, match="'half' is not a number"):
        Exercise(0.5, "1 / 2", "section 1").accepts("half")
