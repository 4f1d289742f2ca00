"""What training survives: real kills at random moments, and damage to every file of a checkpoint.

    python bench/chaos.py           100 kills and 10,000 damages: some minutes on two cores (this is `make chaos`)
    python bench/chaos.py --quick   10 kills and 500 damages: under a minute

Each run is killed (SIGKILL) until it had its share, at moments that the seed decides, from before its text is read to
after its last save. It then goes on to its end, which must equal that of the run that was never stopped, to the bit:
weights, moments, training state, metrics and samples. Damage is a changed byte, a cut, a deletion or appended bytes, in
any file of the newest checkpoint: it must be noticed, the file named, and the checkpoint before used. Exit code 1 where
anything does not hold.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import random
import shutil
import signal
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from measure import describe_machine, describe_versions, heading, note
from processes import begin, time_of, wait_for

from foretell.data.documents import TextDocument
from foretell.errors import CheckpointError
from foretell.pretraining.pretrain import pretrain
from foretell.pretraining.request import Request
from foretell.runs.checkpoint import list_checkpoints
from foretell.runs.run import MEASURED, Run, is_run
from foretell.session import session
from foretell.session.reporter import Reporter

TEXT = "The cat sat on the mat, and the dog sat on the log.\n" * 12
KILLS_A_RUN = 4
RESUMED_EVERY = 200  # of the damages, so many apart, are followed by a whole training
SHAPE = {"num_layers": 1, "num_heads": 1, "width": 8, "context_length": 8, "dropout": 0.2}
TRAINING = {
    "steps": 8,
    "batch_size": 4,
    "gradient_accumulation_steps": 2,
    "checkpoint_every": 2,
    "evaluation_tokens": 16,
}


@dataclass
class Report:
    """What was tried and what held."""

    runs: int = 0
    unequal: list[str] = field(default_factory=list)
    killed: Counter[str] = field(default_factory=Counter)  # where the kill fell
    damaged: Counter[str] = field(default_factory=Counter)  # kind of damage
    unnoticed: list[str] = field(default_factory=list)
    resumed: int = 0


def main() -> None:
    """Kill, damage, and print a summary or one JSON object."""
    arguments = parse_arguments()
    kills, damages = (10, 500) if arguments.quick else (100, 10_000)
    torch.set_num_threads(1)  # more would not survive the copying of the process
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    report, choose, started = Report(), random.Random(arguments.seed), time.perf_counter()
    # a picture of the loss takes longer than these trainings
    with tempfile.TemporaryDirectory() as folder, mock.patch.object(session, "draw_curve"):
        whole = Path(folder) / "whole"
        train(whole)
        kill_runs(whole, kills, choose, report)
        damage_checkpoints(whole, damages, choose, report)
    finish(report, arguments, time.perf_counter() - started)


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="What training survives: kills and damage.")
    parser.add_argument("--quick", action="store_true", help="10 kills and 500 damages: under a minute")
    parser.add_argument("--seed", type=int, default=1, help="decides about moments and damages")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser.parse_args()


def train(out: Path) -> None:
    """Begin or go on with the tiny run: accumulation, dropout, bfloat16, a validation text, samples."""
    sections = {"model": SHAPE, "tokenizer": {"kind": "bytes"}, "training": TRAINING}
    request = Request(
        lambda: [TextDocument("cats.txt", TEXT)],
        described=["cats.txt"],
        out=out,
        size="toy",
        overrides=sections,
        device="cpu",
        dtype="bfloat16",
    )
    pretrain(request, Reporter(), resume=True)


# --- kills -----------------------------------------------------------------------------------------------------------


def kill_runs(whole: Path, kills: int, choose: random.Random, report: Report) -> None:
    """Runs that are killed again and again, each then compared with the one that was not."""
    seconds = min(time_of(lambda: train(fresh(whole.with_name("timed")))) for _ in range(3))
    note(f"{kills} kills, within {seconds:.2f} s of each start")
    done = 0
    while done < kills:
        out = fresh(whole.with_name("killed"))
        for _ in range(KILLS_A_RUN):
            done += killed_after(choose.uniform(0, 1.1 * seconds), out, report)
            if done == kills:
                break
        report.runs += 1
        code = wait_for(begin(lambda out=out: train(out)))
        compare(out, whole, f"run {report.runs}", code, report)


def killed_after(seconds: float, out: Path, report: Report) -> bool:
    """Train in another process and kill it; False where it had ended before."""
    child = begin(lambda: train(out))
    time.sleep(seconds)
    os.kill(child, signal.SIGKILL)
    if wait_for(child) != -signal.SIGKILL:
        return False
    report.killed[phase(out)] += 1
    return True


def phase(out: Path) -> str:
    """What a process was doing when it was killed, by what it left."""
    if not is_run(out):
        return "before the run was prepared"
    if list((out / "checkpoints").glob("*.replaced")) or list((out / "checkpoints").glob(".tmp-*")):
        return "while a checkpoint was written or removed"
    if list(out.glob(".tmp-*")) or list((out / "samples").glob(".tmp-*")):
        return "while another file was written"
    return "between its writings"


def compare(out: Path, whole: Path, what: str, code: int, report: Report) -> None:
    """Note in which parts a run that was stopped ends otherwise than the one that was not."""
    if code != 0:
        report.unequal.append(f"{what}: exit code {code}")
        return
    found, expected = final_state(out), final_state(whole)
    if other := [part for part in expected if found[part] != expected[part]]:
        report.unequal.append(f"{what}: other {', '.join(other)}")


def final_state(out: Path) -> dict[str, Any]:
    """Everything that a run ends with, but how long it took and what it was killed over."""
    last = list_checkpoints(out / "checkpoints")[-1]
    training = last.training()
    del training["progress"]["seconds"]
    metrics = [{key: line[key] for key in line if key not in MEASURED} for line in Run(out).metrics()]
    return {
        "weights": (last.directory / "model.safetensors").read_bytes(),
        "moments": (last.directory / "optimizer.safetensors").read_bytes(),
        "training": training,
        "metrics": metrics,
        "samples": {path.name: path.read_text() for path in (out / "samples").iterdir()},
        "names": sorted(path.name for path in out.iterdir()),
    }


# --- damage ----------------------------------------------------------------------------------------------------------


def change_byte(path: Path, choose: random.Random) -> None:
    content = bytearray(path.read_bytes())
    content[choose.randrange(len(content))] ^= choose.randrange(1, 256)
    path.write_bytes(content)


def cut(path: Path, choose: random.Random) -> None:
    os.truncate(path, choose.randrange(path.stat().st_size))


def delete(path: Path, choose: random.Random) -> None:
    path.unlink()


def append(path: Path, choose: random.Random) -> None:
    with path.open("ab") as file:
        file.write(choose.choice([b"\0", b"\n", b" ", choose.randbytes(choose.randrange(1, 64))]))


DAMAGES = {"byte changed": change_byte, "cut": cut, "deleted": delete, "bytes appended": append}


def damage_checkpoints(whole: Path, count: int, choose: random.Random, report: Report) -> None:
    """One damage after the other to the newest checkpoint of a run, each mended before the next."""
    note(f"{count:,} damages")
    out = whole.with_name("damaged")
    shutil.copytree(whole, fresh(out))
    before, newest = list_checkpoints(out / "checkpoints")[-2:]
    names = sorted(path.name for path in newest.directory.iterdir())
    for number in range(count):
        kind, path = choose.choice(list(DAMAGES)), newest.directory / choose.choice(names)
        content = path.read_bytes()
        DAMAGES[kind](path, choose)
        report.damaged[kind] += 1
        if not is_noticed(out, path, before.step):
            report.unnoticed.append(f"{number}: {kind}, {path.name}")
        if number % RESUMED_EVERY == 0:
            report.resumed += 1
            resume_damaged(out, whole, f"damage {number}: {kind}, {path.name}", report)
        path.write_bytes(content)


def is_noticed(out: Path, path: Path, step_before: int) -> bool:
    """Is the damaged file named, and the checkpoint before used?"""
    lines = Lines()
    logging.getLogger("foretell").addHandler(lines)
    try:
        used = Run(out).last_intact().step
    except CheckpointError:
        return False
    finally:
        logging.getLogger("foretell").removeHandler(lines)
    return used == step_before and len(lines.logged) == 1 and str(path) in lines.logged[0]


class Lines(logging.Handler):
    """Collects the lines of the log."""

    def __init__(self) -> None:
        super().__init__()
        self.logged: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.logged.append(record.getMessage())


def resume_damaged(out: Path, whole: Path, what: str, report: Report) -> None:
    """Train on from the checkpoint before the damaged one, in a copy; the end must be the same."""
    copy = fresh(out.with_name("resumed"))
    shutil.copytree(out, copy)
    code = wait_for(begin(lambda: train(copy)))
    compare(copy, whole, what, code, report)


def fresh(out: Path) -> Path:
    """The path, with nothing there."""
    shutil.rmtree(out, ignore_errors=True)
    return out


# --- the summary -----------------------------------------------------------------------------------------------------


def finish(report: Report, arguments: argparse.Namespace, seconds: float) -> None:
    """Print what held, and leave with 1 where something did not."""
    machine, versions = describe_machine(), describe_versions()
    if arguments.json:
        names = ("runs", "killed", "unequal", "damaged", "unnoticed", "resumed")
        values = {name: getattr(report, name) for name in names}
        facts = {"quick": arguments.quick, "seed": arguments.seed, "seconds": round(seconds, 1)}
        print(json.dumps({"benchmark": "chaos", **facts, "machine": machine, "versions": versions, **values}))
    else:
        print(heading(machine, versions))
        print(summary(report, seconds))
    raise SystemExit(1 if report.unequal or report.unnoticed else 0)


def summary(report: Report, seconds: float) -> str:
    """The numbers in a few lines, and what did not hold."""
    lines = [f"{report.killed.total()} kills of {report.runs} runs, {seconds:.0f} s with all that follows"]
    lines += [f"  {count:>6,} {where}" for where, count in report.killed.most_common()]
    lines += [f"{report.damaged.total():,} damages to the newest of several checkpoints"]
    lines += [f"  {count:>6,} {kind}" for kind, count in report.damaged.most_common()]
    lines += [f"  {len(report.unnoticed):>6,} unnoticed, not named, or not followed by the checkpoint before"]
    ends = report.runs + report.resumed
    lines += [f"{ends} resumed runs compared with the uninterrupted one, to the bit: {len(report.unequal)} differ"]
    return "\n".join([*lines, *report.unequal, *report.unnoticed[:10]])


if __name__ == "__main__":
    main()
