"""One update of a run: the weight is the one that training made, and follows from its operands."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import foretell
from foretell.errors import CheckpointError, UsageError
from foretell.insight.explain.explanation import Explanation
from foretell.runs.run import Run
from foretell.session.update import explain_weight
from foretell.trainings import replay_update

WEIGHT = "trunk.blocks.0.attention.value.weight"
SMALL: Any = {"num_layers": 1, "width": 16, "num_heads": 2, "context_length": 16}


def trained(folder: Path, every: int = 1, **training: Any) -> Run:
    text = folder / "text.txt"
    text.write_text("the cat sat on the mat, and the dog ran home. " * 200)
    settings: Any = {"checkpoint_every": every, "keep_checkpoints": 9, "weight_decay": 0.1, "batch_size": 2, **training}
    foretell.train(text, folder / "run", steps=4, model=SMALL, training=settings, device="cpu", progress=False)
    return Run.open(folder / "run")


def update(run: Run, number: int, address: str) -> Explanation:
    return explain_weight(replay_update(run, number), address)


@pytest.mark.parametrize("optimizer", ["adamw", "sgd", "muon"])
@pytest.mark.parametrize("clip_norm", [0.01, None])
def test_an_update_is_that_of_the_run_and_follows_from_its_operands(tmp_path, optimizer, clip_norm):
    run = trained(tmp_path, optimizer=optimizer, clip_norm=clip_norm)
    for number in (1, 3, 4):
        explanation = update(run, number, f"update:{WEIGHT}[3,5]")
        after = foretell.load(run.checkpoints / f"step-{number:06d}").decoder.get_parameter(WEIGHT).detach()
        assert explanation.stored == float(after[3, 5])
        assert explanation.agrees
        assert explanation.has_operands == (optimizer != "muon")


def test_a_step_that_the_run_did_not_take_and_an_unknown_weight_are_one_line(tmp_path):
    run = trained(tmp_path, every=2, frozen=["embed.token.weight"])
    with pytest.raises(CheckpointError, match="has the updates 1 to 4, not 9"):
        update(run, 9, f"update:{WEIGHT}[0,0]")
    for number, address, words in (
        (3, "update:trunk.norms.weight[0]", "near it: trunk.norm.weight"),
        (3, "update:embed.token.weight[0,0]", "frozen"),
        (3, f"update:{WEIGHT}[0,99]", "out of range"),
    ):
        with pytest.raises(UsageError, match=words):
            update(run, number, address)
