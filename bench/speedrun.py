"""Time to quality: minutes until a model of Shakespeare's characters is as good as nanoGPT's published one.

    python bench/speedrun.py --data tinyshakespeare_input.txt            one run, seed 1
    python bench/speedrun.py --data FILE --seeds 1 2 3                   what a claim needs
    python bench/speedrun.py --data FILE --quick                         10 steps, to see that it runs

The text is cut as nanoGPT's data/shakespeare_char/prepare.py cuts it: characters, the last tenth held out. The loss is
that of the whole held-out text in windows of 256 that do not overlap; to reach is 1.4697 nats, what nanoGPT's README
gives for its run on a GPU. The clock counts training alone; looking at the held-out text stops it. The recipe is fixed
here, before a run begins; docs/speedrun.md holds what was tried. `train --kind characters --size small` does the same,
but for a warm-up of a hundred steps and its own way to hold text out.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from measure import describe_machine, describe_versions, heading, note

from foretell.config import ModelConfig, TrainingConfig, make_section
from foretell.data.batch import Batch, make_batch
from foretell.evaluation.perplexity import evaluate
from foretell.model.cost import count_parameters
from foretell.model.init import make_decoder
from foretell.model.presets import preset
from foretell.randomness import permutation, stream_key, uniform
from foretell.training.loop import Action, Progress, train
from foretell.training.objective import make_objective
from foretell.training.optimizer import make_optimizer

TARGET = 1.4697  # nats a character: nanoGPT's README, train_shakespeare_char on a GPU
LENGTH = 256
MODEL: dict[str, Any] = {**preset("small"), "dropout": 0.0}  # read 2.7 times over, the text needs no dropout
TRAINING: dict[str, Any] = {
    "steps": 1300,
    "batch_size": 8,
    "optimizer": "muon",
    "learning_rate": 4e-3,
    "final_learning_rate_share": 0.0,
    "warmup_steps": 40,
    "schedule": "linear",
    "weight_decay": 0.1,
    "evaluate_every": 100,
}


@dataclass(frozen=True)
class Characters:
    """The text as ids, and what is held out of it."""

    train: np.ndarray
    validation: np.ndarray
    vocab_size: int

    @classmethod
    def read(cls, path: Path) -> Characters:
        """All characters that occur are the vocabulary, in their order."""
        text = np.array(list(path.read_text(encoding="utf-8")))
        vocabulary, ids = np.unique(text, return_inverse=True)
        cut = int(0.9 * len(ids))
        return cls(ids[:cut], ids[cut:], len(vocabulary))


@dataclass(frozen=True)
class Windows:
    """Windows of the training text, each epoch in another order and cut at another offset."""

    ids: np.ndarray
    rows: int
    seed: int

    def batch(self, step: int) -> Batch:
        per_epoch = ((len(self.ids) - 1) // LENGTH - 1) // self.rows
        epoch, place = divmod(step, per_epoch)
        key = stream_key("speedrun", self.seed, epoch)
        offset = int(uniform(key, 0) * LENGTH)
        numbers = permutation(key, per_epoch * self.rows)[place * self.rows :][: self.rows].numpy()
        return make_batch(self.ids[offset + numbers[:, None] * LENGTH + np.arange(LENGTH + 1)])


def held_out(ids: np.ndarray, rows: int = 64) -> list[Batch]:
    """The whole of it but what no window is left for, in windows that do not overlap."""
    whole = (len(ids) - 1) // LENGTH
    windows = ids[np.arange(whole)[:, None] * LENGTH + np.arange(LENGTH + 1)]
    return [make_batch(windows[first : first + rows]) for first in range(0, whole, rows)]


def run(text: Characters, seed: int, steps: int | None) -> dict[str, Any]:
    """Train once; minutes of training when the target was reached, and the losses on the way."""
    config = make_section(ModelConfig, {**MODEL, "vocab_size": text.vocab_size})
    settings = make_section(TrainingConfig, {**TRAINING, "seed": seed, **({"steps": steps} if steps else {})})
    objective = make_objective(make_decoder(config, seed), torch.device("cpu"), torch.bfloat16)
    optimizer = make_optimizer(objective.decoder, settings, torch.bfloat16)
    batches, curve = held_out(text.validation), []

    def look(progress: Progress) -> None:
        loss = evaluate(objective, batches, torch.float32).loss
        objective.train()
        curve.append({"step": progress.step, "minutes": progress.seconds / 60, "loss": loss})
        rate = progress.tokens / progress.seconds
        note(
            f"seed {seed}  step {progress.step:>5}  {progress.seconds / 60:5.1f} min  {loss:.4f}  {rate:,.0f} tokens/s"
        )

    windows, looked_at = Windows(text.train, settings.batch_size, seed), Action(settings.evaluate_every, look)
    train(
        objective,
        optimizer,
        windows,
        settings,
        Progress(),
        [looked_at],
        device=torch.device("cpu"),
        dtype=torch.bfloat16,
    )
    reached = next((point["minutes"] for point in curve if point["loss"] <= TARGET), None)
    return {"seed": seed, "minutes_to_target": reached, "best": min(point["loss"] for point in curve), "curve": curve}


def main() -> None:
    """Run every seed and print what came out."""
    parser = argparse.ArgumentParser(description="Minutes to nanoGPT's published loss on Shakespeare's characters.")
    parser.add_argument("--data", type=Path, required=True, help="tinyshakespeare_input.txt")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    parser.add_argument("--quick", action="store_true", help="10 steps only")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args()
    text = Characters.read(arguments.data)
    runs = [run(text, seed, 10 if arguments.quick else None) for seed in arguments.seeds]
    parameters = count_parameters(make_section(ModelConfig, {**MODEL, "vocab_size": text.vocab_size}))
    about = {"machine": describe_machine(), "versions": describe_versions(), "parameters": parameters}
    if arguments.json:
        print(json.dumps({"benchmark": "speedrun", "target": TARGET, **about, "runs": runs}))
        return
    print(f"{heading(about['machine'], about['versions'])}\n{parameters:,} parameters, to reach: {TARGET}")
    for one in runs:
        reached = "not reached" if one["minutes_to_target"] is None else f"{one['minutes_to_target']:.1f} minutes"
        print(f"seed {one['seed']}: {reached}, best {one['best']:.4f}")


if __name__ == "__main__":
    main()
