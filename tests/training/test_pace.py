"""Trainings of a given time: they end with it on a machine of any speed, with their schedule, and resume exactly."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from foretell.config.training import TrainingConfig
from foretell.training.pace import MOST_CLOSING, OVERTIME, FixedSteps, Mark, TimeBudget, learning_rate_at

SECONDS = 600.0
CONFIG = TrainingConfig(
    steps=600, warmup_steps=30, learning_rate=0.01, schedule="linear", final_learning_rate_share=0.0
)


class Machine:
    """A training on a clock: a step takes `seconds_per_step(now)`, an evaluation `evaluation` seconds."""

    def __init__(self, seconds_per_step: Callable[[float], float], evaluation: float = 0.0):
        self.seconds_per_step, self.evaluation, self.now = seconds_per_step, evaluation, 0.0
        self.marks: dict[int, Mark] = {}
        self.rates: list[float] = []

    def budget(self, most_steps: int | None = None, fewest_steps: int = 0) -> TimeBudget:
        return TimeBudget(
            CONFIG,
            SECONDS,
            marks=self.marks,
            record=self.marks.__setitem__,
            fewest_steps=fewest_steps,
            most_steps=most_steps,
            clock=lambda: self.now,
        )

    def train(self, pace: TimeBudget, step: int = 0, until: int | None = None, every: int = 50) -> int:
        share, known = pace.share(step), 0.0
        while share < 1 and step != until:
            self.rates.append(pace.learning_rate(step, share))
            self.now += self.seconds_per_step(self.now)
            step += 1
            is_due = step % every == 0
            share = pace.share(step, known * is_due, known)
            if is_due or share >= 1:
                known = self.evaluation
                self.now += self.evaluation
        return step


SPEEDS: dict[str, Callable[[float], float]] = {
    "as estimated": lambda now: 1.0,
    "three times slower": lambda now: 3.0,
    "ten times faster": lambda now: 0.1,
    "busy every other minute": lambda now: 3.0 if int(now / 60) % 2 else 0.7,
    "busy at the end": lambda now: 4.0 if now > 400 else 0.5,
    "idle at the end": lambda now: 0.5 if now > 400 else 4.0,
}


@pytest.mark.parametrize("speed", SPEEDS)
@pytest.mark.parametrize("evaluation", [0.0, 8.0])
def test_a_training_ends_with_its_time_and_its_schedule(speed, evaluation):
    machine = Machine(SPEEDS[speed], evaluation)
    pace = machine.budget()
    machine.now += 20  # between the start of the run and its first step
    machine.train(pace)
    assert machine.now == pytest.approx(20 + SECONDS, rel=0.03)
    assert max(machine.rates) == pytest.approx(CONFIG.learning_rate, rel=0.15)
    assert machine.rates[-1] < 0.03 * CONFIG.learning_rate
    assert machine.rates.index(max(machine.rates)) <= len(machine.rates) * 0.3  # the warm-up, in steps of any length


def test_an_evaluation_that_was_disturbed_does_not_end_the_training():
    machine = Machine(SPEEDS["as estimated"])
    pace = machine.budget()
    pace.share(0)
    machine.now += 60
    assert pace.share(1, closing=SECONDS) == pytest.approx(60 / (SECONDS * (1 - MOST_CLOSING)))


def test_the_rate_is_that_of_a_fixed_number_of_steps_where_all_take_the_same_time():
    machine = Machine(SPEEDS["as estimated"])
    steps = machine.train(machine.budget())
    assert steps == CONFIG.steps
    fixed = CONFIG.model_copy(
        update={"steps": steps, "warmup_steps": round(CONFIG.warmup_steps * steps / CONFIG.steps)}
    )
    assert machine.rates == pytest.approx([learning_rate_at(step, fixed) for step in range(steps)], rel=0.01, abs=1e-6)


@pytest.mark.parametrize(
    ("seconds_per_step", "steps", "seconds"),
    [(1.0, 600, SECONDS), (4.0, 200, 800.0), (9.0, 200, OVERTIME * SECONDS), (60.0, 30, OVERTIME * SECONDS)],
)
def test_a_slow_training_goes_on_to_its_fewest_steps_or_to_three_times_its_time(seconds_per_step, steps, seconds):
    machine = Machine(lambda now: seconds_per_step)
    assert machine.train(machine.budget(fewest_steps=200)) == pytest.approx(steps, abs=1)
    assert machine.now == pytest.approx(seconds, rel=0.02)
    assert machine.rates[-1] < 0.05 * CONFIG.learning_rate


def test_the_most_steps_of_the_data_limit_the_fewest():
    machine = Machine(lambda now: 20.0)
    assert machine.train(machine.budget(fewest_steps=200, most_steps=40)) == 40


def test_recorded_steps_are_taken_again_with_their_rates_and_the_clock_goes_on_after_them():
    machine = Machine(SPEEDS["busy every other minute"])
    stopped_after = machine.train(machine.budget(), until=200)
    before, marks, stopped_at = list(machine.rates), dict(machine.marks), machine.now
    machine.now += 5_000  # until somebody resumes it, from the checkpoint of step 150
    machine.rates.clear()
    machine.seconds_per_step = lambda now: 2.0
    machine.train(machine.budget(), step=150)
    assert stopped_after == 200
    assert machine.rates[:50] == before[150:]
    assert {step: machine.marks[step] for step in marks} == marks
    rest = machine.now - 5_000 - stopped_at - 50 * 2.0  # without the steps that were taken again
    assert stopped_at + rest == pytest.approx(SECONDS, rel=0.02)
    assert machine.rates[-1] < 0.03 * CONFIG.learning_rate


def test_a_finished_training_takes_no_further_step():
    machine = Machine(SPEEDS["as estimated"])
    steps = machine.train(machine.budget())
    assert machine.train(machine.budget(), step=steps) == steps


def test_the_number_of_steps_is_estimated_from_the_share():
    machine = Machine(SPEEDS["three times slower"])
    pace = machine.budget()
    step = machine.train(pace, until=50)
    assert pace.expected_steps(0, 0.0) == CONFIG.steps
    assert pace.expected_steps(step, pace.share(step)) == pytest.approx(200, abs=2)
    assert FixedSteps(CONFIG).expected_steps(step, step / CONFIG.steps) == CONFIG.steps


def test_the_most_steps_end_a_training_with_its_schedule_before_its_time():
    machine = Machine(SPEEDS["as estimated"])
    pace = machine.budget(most_steps=100)
    assert machine.train(pace) == 100
    assert machine.rates[-1] <= 0.011 * CONFIG.learning_rate
    assert pace.expected_steps(50, pace.share(50)) == 100
    assert pace.seconds_left(100) == pytest.approx(SECONDS - 100, abs=1)
    assert machine.train(machine.budget(most_steps=100), step=100) == 100


def test_the_time_ends_a_training_that_does_not_reach_its_most_steps():
    machine = Machine(SPEEDS["three times slower"])
    pace = machine.budget(most_steps=500)
    steps = machine.train(pace)
    assert steps == pytest.approx(SECONDS / 3, abs=2)
    assert machine.rates[-1] < 0.03 * CONFIG.learning_rate
    assert pace.seconds_left(steps) == 0


@pytest.mark.parametrize(
    ("pace", "warmup_steps", "words"),
    [
        (FixedSteps, 600, None),
        (FixedSteps, 601, "601 steps of a training of 600: the learning rate ends at 0.00998"),
        (partial(TimeBudget, seconds=60), 300, None),
        (partial(TimeBudget, seconds=60), 301, "301 steps of a training of 600: the learning rate rises for 50% of"),
    ],
)
def test_a_warm_up_that_is_too_long_is_a_warning(pace, warmup_steps, words, caplog):
    pace(CONFIG.model_copy(update={"warmup_steps": warmup_steps}))
    assert caplog.text == "" if words is None else words in caplog.text
