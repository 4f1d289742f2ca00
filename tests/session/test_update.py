"""One update of a run: the weight is the one that training made, and follows from its operands."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import foretell
from foretell.data.documents import embedded_corpus
from foretell.errors import UsageError
from foretell.generation.batch_generation import continue_prompt
from foretell.insight.explain.explanation import Explanation
from foretell.pretraining.pretrain import TextTraining
from foretell.pretraining.request import TextRequest
from foretell.runs.run import Run
from foretell.session.update import explain_update, state_before

WEIGHT = "trunk.blocks.0.attention.value.weight"
SMALL: Any = {"num_layers": 1, "width": 16, "num_heads": 2, "context_length": 16}


def trained(folder: Path, every: int = 1, **training: Any) -> Run:
    text = folder / "text.txt"
    text.write_text("the cat sat on the mat, and the dog ran home. " * 200)
    settings: Any = {"checkpoint_every": every, "keep_checkpoints": 9, "weight_decay": 0.1, "batch_size": 2, **training}
    foretell.train(text, folder / "run", steps=4, model=SMALL, training=settings, device="cpu", progress=False)
    return Run.open(folder / "run")


def update(run: Run, number: int, address: str) -> Explanation:
    training = TextTraining(TextRequest(source=embedded_corpus, names=[], out=run.directory), continue_prompt)
    return explain_update(state_before(training, run, number), address)


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


def test_a_step_without_a_checkpoint_and_an_unknown_weight_are_one_line(tmp_path):
    run = trained(tmp_path, every=2, frozen=["embed.token.weight"])
    for number, address, words in (
        (2, f"update:{WEIGHT}[0,0]", "no checkpoint before update 2; its updates 1, 3 can be shown"),
        (9, f"update:{WEIGHT}[0,0]", "no checkpoint before update 9"),
        (3, "update:trunk.norms.weight[0]", "near it: trunk.norm.weight"),
        (3, "update:embed.token.weight[0,0]", "frozen"),
        (3, f"update:{WEIGHT}[0,99]", "out of range"),
    ):
        with pytest.raises(UsageError, match=words):
            update(run, number, address)
