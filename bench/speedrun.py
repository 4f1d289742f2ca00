"""Time to quality: minutes until a character model of Shakespeare reaches nanoGPT's published loss.

    python bench/speedrun.py --data tinyshakespeare_input.txt            one run, seed 1
    python bench/speedrun.py --data FILE --seeds 1 2 3                   three seeds, as a claim needs
    python bench/speedrun.py --data FILE --quick                         10 steps, to see that it runs

The text is split as in nanoGPT's data/shakespeare_char/prepare.py: characters, the last tenth held out. The loss is
measured on the whole held-out text in windows of 256 that do not overlap. The target is 1.4697 nats, the loss that
nanoGPT's README reports for its run on a GPU. The clock counts training only; it stops during evaluation. The recipe is
fixed here, before a run begins; docs/speedrun.md records what was tried. `train --kind characters --size small` does
nearly the same; it warms up for a hundred steps and holds out text in its own way.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from arguments import BenchmarkReport, make_parser, print_report, start_report
from measure import note
from rich.console import Console

from foretell.config import ModelConfig, TrainingConfig, make_section
from foretell.data.batch import Batch, make_batch
from foretell.evaluation.perplexity import evaluate
from foretell.model.init import make_decoder
from foretell.model.presets import preset
from foretell.randomness import permutation, stream_key, uniform
from foretell.training.loop import Action, Progress, train
from foretell.training.objective import make_objective
from foretell.training.optimizer import make_optimizer
from foretell.weight_shapes import count_parameters

TARGET = 1.4697  # nats per character: nanoGPT's README, train_shakespeare_char on a GPU
LENGTH = 256
MODEL: dict[str, Any] = {**preset("small"), "dropout": 0.0}  # the text is seen 2.7 times, so dropout does not help
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


def main() -> None:
    """Train with every seed and print a table or one JSON object."""
    parser = make_parser("Minutes to nanoGPT's published loss on Shakespeare's characters.", "10 steps only")
    parser.add_argument("--data", type=Path, required=True, help="tinyshakespeare_input.txt")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1], help="one run per seed (default: 1)")
    arguments = parser.parse_args()
    text = Characters.read(arguments.data)
    runs = [run(text, seed, 10 if arguments.quick else None) for seed in arguments.seeds]
    parameters = count_parameters(make_section(ModelConfig, {**MODEL, "vocab_size": text.vocab_size}))
    report = {**start_report("speedrun"), "target": TARGET, "parameters": parameters, "runs": runs}
    print_report(report, print_tables, as_json=arguments.json)


@dataclass(frozen=True)
class Characters:
    """The text as ids, split into training and held-out text."""

    train: np.ndarray
    validation: np.ndarray
    vocab_size: int

    @classmethod
    def read(cls, path: Path) -> Characters:
        """Read a text file. The vocabulary is the sorted set of its characters."""
        text = np.array(list(path.read_text(encoding="utf-8")))
        vocabulary, ids = np.unique(text, return_inverse=True)
        split = int(0.9 * len(ids))
        return cls(ids[:split], ids[split:], len(vocabulary))


@dataclass(frozen=True)
class Windows:
    """Windows of the training text, with a new order and a new offset in each epoch."""

    ids: np.ndarray
    rows: int
    seed: int

    def batch(self, step: int) -> Batch:
        per_epoch = ((len(self.ids) - 1) // LENGTH - 1) // self.rows
        epoch, index = divmod(step, per_epoch)
        key = stream_key("speedrun", self.seed, epoch)
        offset = int(uniform(key, 0) * LENGTH)
        windows = permutation(key, per_epoch * self.rows)[index * self.rows :][: self.rows].numpy()
        return make_batch(self.ids[offset + windows[:, None] * LENGTH + np.arange(LENGTH + 1)])


def held_out(ids: np.ndarray, rows: int = 64) -> list[Batch]:
    """The held-out text in windows that do not overlap; a last, incomplete window is left out."""
    count = (len(ids) - 1) // LENGTH
    windows = ids[np.arange(count)[:, None] * LENGTH + np.arange(LENGTH + 1)]
    return [make_batch(windows[first : first + rows]) for first in range(0, count, rows)]


def run(text: Characters, seed: int, steps: int | None) -> dict[str, Any]:
    """Train once; returns the minutes of training to the target (None if missed), and the curve of the loss."""
    config = make_section(ModelConfig, {**MODEL, "vocab_size": text.vocab_size})
    settings = make_section(TrainingConfig, {**TRAINING, "seed": seed, **({"steps": steps} if steps else {})})
    objective = make_objective(make_decoder(config, seed), torch.device("cpu"), torch.bfloat16)
    optimizer = make_optimizer(objective.decoder, settings, torch.bfloat16)
    batches, curve = held_out(text.validation), []

    def evaluate_held_out(progress: Progress) -> None:
        loss = evaluate(objective, batches, torch.float32).loss
        objective.train()
        curve.append({"step": progress.step, "minutes": progress.seconds / 60, "loss": loss})
        rate = progress.tokens / progress.seconds
        note(
            f"seed {seed}  step {progress.step:>5}  {progress.seconds / 60:5.1f} min  {loss:.4f}  {rate:,.0f} tokens/s"
        )

    windows, evaluation = (
        Windows(text.train, settings.batch_size, seed),
        Action(settings.evaluate_every, evaluate_held_out),
    )
    train(objective, optimizer, windows, settings, Progress(), [evaluation], dtype=torch.bfloat16)
    reached = next((point["minutes"] for point in curve if point["loss"] <= TARGET), None)
    return {"seed": seed, "minutes_to_target": reached, "best": min(point["loss"] for point in curve), "curve": curve}


def print_tables(console: Console, report: BenchmarkReport) -> None:
    """A line per seed."""
    console.print(f"{report['parameters']:,} parameters, target loss {report['target']}")
    for result in report["runs"]:
        minutes = result["minutes_to_target"]
        outcome = "not reached" if minutes is None else f"{minutes:.1f} minutes"
        console.print(f"seed {result['seed']}: {outcome}, best loss {result['best']:.4f}")


if __name__ == "__main__":
    main()
