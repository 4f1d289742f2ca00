"""What the tests of this folder run on several processes; each returns values for JSON."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import nn

from foretell.cli.main import run as run_command
from foretell.config.model import ModelConfig
from foretell.config.sampling import SamplingConfig
from foretell.config.training import TrainingConfig
from foretell.data.batch import Batch, make_batch
from foretell.data.documents import TextDocument
from foretell.data.loader import Loader
from foretell.distributed.placement import freeing_gathered, replicate, shard
from foretell.distributed.world import ALONE, World, evaluations_shared_by
from foretell.errors import DataError
from foretell.evaluation.loss import evaluate
from foretell.generation.batch_generation import continue_prompt, generate
from foretell.generation.sampling import Sampler
from foretell.generation.sequence import Sequence
from foretell.insight.trace import Trace
from foretell.model.decoder import Decoder
from foretell.model.init import make_decoder
from foretell.model.kernels import fast_decoder
from foretell.pretraining.pretrain import TextTraining
from foretell.pretraining.request import TextRequest
from foretell.session.protocol import run_training
from foretell.session.reporter import Reporter
from foretell.storage.manifest import Manifest
from foretell.training.loop import Action, Progress, train
from foretell.training.mask_check import check_mask
from foretell.training.objective import Objective
from foretell.training.optimizer import make_optimizer
from foretell.training.step import own_rows

ROWS, TOKENS, VOCABULARY, STEPS = 8, 12, 31, 5
EVALUATED = 5  # batches, which two and four processes cannot share evenly
MODEL = ModelConfig(
    num_layers=2, num_heads=2, width=16, context_length=TOKENS, vocab_size=VOCABULARY, tie_embeddings=True, dropout=0.1
)
TRACED = ["trunk.blocks.1.attention.core.weights", "head"]


class UnevenBatches:
    """Random rows of different lengths, so that processes and micro-batches have different numbers of targets."""

    def batch(self, step: int) -> Batch:
        rng = np.random.default_rng(step)
        tokens = rng.integers(0, VOCABULARY, (ROWS, TOKENS + 1))
        return make_batch(tokens, rng.integers(2, TOKENS + 1, ROWS).tolist())


def losses(world: World, parallel: str, **settings: Any) -> list[float]:
    """The loss of each step, then the norm of each gradient, of a short training."""
    config = TrainingConfig(steps=STEPS, batch_size=ROWS, warmup_steps=0, learning_rate=1e-2, **settings)
    decoder = make_decoder(MODEL, seed=3)
    source = UnevenBatches()
    row = own_rows(source.batch(0), world).rows(0, 1)
    objective = Objective(decoder)
    if parallel == "ddp":
        objective = replicate(objective, lambda objective: objective(row).sum)
    elif parallel == "fsdp":
        objective = shard(objective, [decoder], world)
    optimizer = make_optimizer(decoder, config)
    seen: list[Progress] = []
    collect = Action(1, lambda progress: seen.append(Progress(**vars(progress))))
    train(objective, optimizer, source, config, Progress(), [collect], world=world)
    assert seen[-1].tokens == sum(int(source.batch(step).tokens) for step in range(STEPS))
    return [figure for progress in seen for figure in (progress.loss, progress.gradient_norm) if figure is not None]


def trainings(world: World) -> dict[str, dict[str, list[float]]]:
    """The same trainings on one process and on all, with each optimizer and in micro-batches."""
    kinds: dict[str, dict[str, Any]] = {
        "adamw": {"optimizer": "adamw"},
        "muon": {"optimizer": "muon"},
        "sgd": {"optimizer": "sgd"},
        "accumulated": {"optimizer": "adamw", "gradient_accumulation_steps": 2},
    }
    places = {"alone": ALONE, "ddp": world, "fsdp": world}
    return {
        kind: {
            parallel: losses(place, parallel, **settings)
            for parallel, place in places.items()
            if place is world or world.is_first  # whose results are kept
        }
        for kind, settings in kinds.items()
    }


# --- whole runs ------------------------------------------------------------------------------------------------------


def folder() -> Path:
    """The folder that the test has made for all processes."""
    return Path(os.environ["FORETELL_TEST_FOLDER"])


def request(out: Path, **training: Any) -> TextRequest:
    """A run of six steps with a checkpoint after every second one."""
    settings = {"steps": 6, "batch_size": 8, "warmup_steps": 0, "sample_every": 3, "evaluate_every": 3, "log_every": 1}
    settings |= {"checkpoint_every": 2, "keep_checkpoints": 10, "learning_rate": 1e-2}
    model = {"num_layers": 2, "num_heads": 2, "width": 16, "context_length": 16, "dropout": 0.1}
    sections = {"model": model, "tokenizer": {"kind": "bytes"}, "training": {**settings, **training}}
    text = [TextDocument("squares", " ".join(str(number * number) for number in range(500)))]
    return TextRequest(
        source=lambda: text, names=["squares"], out=out, size="toy", overrides=sections, device="cpu", dtype="float32"
    )


def digests(run: Path, step: int) -> dict[str, str]:
    """The SHA-256 of the files of a checkpoint."""
    return {name: entry["sha256"] for name, entry in Manifest.read(run / f"checkpoints/step-{step:06d}").files.items()}


def runs(world: World) -> dict[str, Any]:
    """A run with shards and one with copies, each resumed from its middle on the same number of processes."""
    results: dict[str, Any] = {}
    for parallel, optimizer in (("fsdp", "muon"), ("ddp", "adamw")):
        out = folder() / f"{parallel}-{world.size}"
        run_training(TextTraining(request(out, parallel=parallel, optimizer=optimizer), continue_prompt), Reporter())
        again = folder() / f"{parallel}-{world.size}-again"
        world.decide(lambda out=out, again=again: forget_steps_after(out, again, 4))
        run_training(
            TextTraining(request(again, parallel=parallel, optimizer=optimizer), continue_prompt),
            Reporter(),
            resume=True,
        )
        results[parallel] = {"whole": digests(out, 6), "resumed": digests(again, 6)}
    return results


def forget_steps_after(run: Path, again: Path, step: int) -> None:
    """A copy of a run as it was after a step."""
    shutil.copytree(run, again)
    for path in (again / "checkpoints").iterdir():
        if int(path.name.removeprefix("step-")) > step:
            shutil.rmtree(path)


def looking_inside(world: World) -> dict[str, float]:
    """How far a trace, an evaluation and a generation of a sharded model are from those of a whole one."""
    plain, sharded = make_decoder(MODEL, seed=3).eval(), make_decoder(MODEL, seed=3).eval()
    objective = shard(Objective(sharded), [sharded], world).eval()
    batch = UnevenBatches().batch(0)
    traces = []
    for decoder in (plain, sharded):
        with freeing_gathered(objective), torch.no_grad(), Trace(decoder, TRACED) as trace:
            decoder(batch.ids)
        traces.append({name: trace[name] for name in TRACED})
    with freeing_gathered(objective):
        check_mask(sharded, batch)
        evaluations = [evaluate(Objective(plain), [batch]).loss, evaluate(objective, [batch]).loss]
        shares = shared_evaluation(objective, plain, world)
        sequences = [Sequence([1, 2, 3], 0) for _ in range(2)]
        with patch.object(fast_decoder, "MIN_TOKENS", 1):
            for decoder, sequence in zip((plain, sharded), sequences, strict=True):  # kernels for long texts
                list(generate(decoder, [sequence], Sampler(SamplingConfig(temperature=0)), 6))
    return {
        "trace": max(float((traces[0][name] - traces[1][name]).abs().max()) for name in traces[0]),
        "evaluation": abs(evaluations[0] - evaluations[1]),
        "generation": float(sequences[0].generated != sequences[1].generated),
        **shares,
    }


def shared_evaluation(sharded: nn.Module, plain: Decoder, world: World) -> dict[str, float]:
    """How far an evaluation of which each process does its share is from that of one process, and who did too much."""
    batches = [UnevenBatches().batch(step) for step in range(EVALUATED)]
    alone = evaluate(Objective(plain), batches)
    differences, passes_taken = {}, []
    for name, objective in (("shards", sharded), ("copies", Objective(plain))):
        hook = objective.register_forward_hook(lambda *_: passes_taken.append(1))
        with evaluations_shared_by(world):
            shared = evaluate(objective, batches)
        hook.remove()
        differences[f"evaluation shared by {name}"] = abs(shared.loss - alone.loss) + abs(shared.tokens - alone.tokens)
    share = -(-EVALUATED // world.size)
    return {**differences, "passes more than its share": world.total(abs(len(passes_taken) - 2 * share))}


# --- failures --------------------------------------------------------------------------------------------------------


def at_step_4(world: World, happens: Callable[[], None]) -> None:
    """Let something happen on the process of rank 1 when it needs the batch of the fifth step."""
    batch_of = Loader.batch

    def batch(loader: Loader, step: int) -> Batch:
        if step == 4 and world.rank == 1:
            happens()
        return batch_of(loader, step)

    patch.object(Loader, "batch", batch).start()


def command_line(world: World, name: str) -> int:
    """`foretell train` on a file of all processes; returns its exit code."""
    text, out = folder() / f"{name}.txt", folder() / name
    world.decide(lambda: text.write_text(" ".join(str(number * number) for number in range(500))))
    sections = ["--model.num-layers", "1", "--model.width", "16", "--model.context-length", "16", "--batch-size", "8"]
    sections += ["--training.warmup-steps", "0", "--dtype", "float32", "--device", "cpu", "--kind", "bytes"]
    options = ["--size", "toy", "--steps", "60", "--checkpoint-every", "2", "--out", str(out)]
    return run_command(["train", str(text), *options, *sections])


def a_data_error(world: World) -> None:
    """The data of rank 1 cannot be read."""
    at_step_4(world, fail_to_read)
    os._exit(command_line(world, "a_data_error"))


def fail_to_read() -> None:
    raise DataError("shard-00007.npy is cut short")


def a_killed_process(world: World) -> None:
    """Rank 1 is killed."""
    at_step_4(world, lambda: os.kill(os.getpid(), signal.SIGKILL))
    os._exit(command_line(world, "a_killed_process"))


def a_stopped_process(world: World) -> None:
    """Rank 1 alone gets the signal to stop."""
    at_step_4(world, lambda: os.kill(os.getpid(), signal.SIGTERM))
    os._exit(command_line(world, "a_stopped_process"))


def a_bad_option(world: World) -> None:
    """A setting that is refused on every process."""
    os._exit(run_command(["train", "--out", str(folder() / "never"), "--training.steps", "-3"]))
