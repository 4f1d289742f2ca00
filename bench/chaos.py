"""Crash tests of training: SIGKILL at random moments of every task, and damage to every file of a checkpoint.

    python bench/chaos.py           50 kills per task and 10,000 damages: some minutes on two cores (`make chaos`)
    python bench/chaos.py --quick   5 kills per task and 500 damages: about a minute

Each run is killed up to four times, at moments that the seed decides, from before its text is read to after its last
save. Then it is resumed to its end. The result must be bit-identical to that of a run that was never stopped: weights,
optimizer moments, training state, metrics and samples. Damage is a changed byte, a truncation, a deletion or appended
bytes, in any file of the newest checkpoint. It must be detected, the file named, and the checkpoint before it used.
Exit code 1 if any of this fails.
"""

from __future__ import annotations

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
from arguments import BenchmarkReport, make_parser, print_report, start_report
from chaos_tasks import TASKS, prepare
from measure import note
from processes import fork, time_in_child, wait_for
from rich.console import Console

from foretell.errors import CheckpointError
from foretell.runs.checkpoint import list_checkpoints
from foretell.runs.record import MEASURED
from foretell.runs.run import Run, is_run
from foretell.session import session
from foretell.session.protocol import run_training
from foretell.session.reporter import Reporter

KILLS_PER_RUN = 4
DAMAGED_TASK = "text"
RESUMED_EVERY = 200  # after each so many damages, training is resumed to its end


@dataclass
class Findings:
    """Counts of what was tried, and a line for each failure."""

    runs: int = 0
    unequal: list[str] = field(default_factory=list)
    killed: Counter[str] = field(default_factory=Counter)  # by task, and what the process was doing
    damaged: Counter[str] = field(default_factory=Counter)  # by kind of damage
    unnoticed: list[str] = field(default_factory=list)
    resumed: int = 0


def main() -> None:
    """Kill, damage, and print a summary or one JSON object; exit with 1 after a failure."""
    parser = make_parser(
        "Crash tests of training: kills and damage.", "5 kills per task and 500 damages: about a minute"
    )
    parser.add_argument("--seed", type=int, default=1, help="decides the moments of the kills, and the damages")
    arguments = parser.parse_args()
    kills, damages = (5, 500) if arguments.quick else (50, 10_000)
    torch.set_num_threads(1)  # a thread pool does not survive the fork
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    findings, rng, started = Findings(), random.Random(arguments.seed), time.perf_counter()
    # drawing the loss curve takes longer than these trainings
    with tempfile.TemporaryDirectory() as folder, mock.patch.object(session, "draw_curve"):
        prepare(Path(folder))
        for task in TASKS:
            train(task, uninterrupted := Path(folder) / task)
            kill_runs(task, uninterrupted, kills, rng, findings)
        damage_checkpoints(Path(folder) / DAMAGED_TASK, damages, rng, findings)
    report = {
        **start_report("chaos"),
        "quick": arguments.quick,
        "seed": arguments.seed,
        "seconds": round(time.perf_counter() - started, 1),
        **vars(findings),
    }
    print_report(report, print_summary, as_json=arguments.json)
    raise SystemExit(1 if findings.unequal or findings.unnoticed else 0)


def train(task: str, out: Path) -> None:
    """Start a run of a task in `out`, or resume it; the data of all tasks is next to it."""
    run_training(TASKS[task](out.parent, out), Reporter(), resume=True)


# --- kills -----------------------------------------------------------------------------------------------------------


def kill_runs(task: str, uninterrupted: Path, kills: int, rng: random.Random, findings: Findings) -> None:
    """Kill runs repeatedly, resume each to its end, and compare it with the uninterrupted run."""
    seconds = min(time_in_child(lambda: train(task, empty(uninterrupted.with_name("timed")))) for _ in range(3))
    note(f"{task}: {kills} kills, within {seconds:.2f} s of each start")
    done = 0
    while done < kills:
        out = empty(uninterrupted.with_name("killed"))
        for _ in range(KILLS_PER_RUN):
            done += kill_after(rng.uniform(0, 1.1 * seconds), task, out, findings)
            if done == kills:
                break
        findings.runs += 1
        code = wait_for(fork(lambda out=out: train(task, out)))
        compare(out, uninterrupted, f"{task}, run {findings.runs}", code, findings)


def kill_after(seconds: float, task: str, out: Path, findings: Findings) -> bool:
    """Train in a child process and kill it after `seconds`; False if it ended before."""
    child_id = fork(lambda: train(task, out))
    time.sleep(seconds)
    os.kill(child_id, signal.SIGKILL)
    if wait_for(child_id) != -signal.SIGKILL:
        return False
    findings.killed[f"{task}: {phase(out)}"] += 1
    return True


def phase(out: Path) -> str:
    """What a killed process was doing, judged by the files that it left."""
    if not is_run(out):
        return "before the run was prepared"
    if list((out / "checkpoints").glob(".replaced-foretell-*")) or list((out / "checkpoints").glob(".tmp-*")):
        return "while a checkpoint was written or removed"
    if list(out.glob(".tmp-*")) or list((out / "samples").glob(".tmp-*")):
        return "while another file was written"
    return "between writes"


def compare(out: Path, uninterrupted: Path, name: str, code: int, findings: Findings) -> None:
    """Record how the end of a stopped run differs from that of the uninterrupted one."""
    if code != 0:
        findings.unequal.append(f"{name}: exit code {code}")
        return
    actual, expected = final_state(out), final_state(uninterrupted)
    if different := [part for part in expected if actual[part] != expected[part]]:
        findings.unequal.append(f"{name}: different {', '.join(different)}")


def final_state(out: Path) -> dict[str, Any]:
    """Everything that a run leaves, without the times that it took."""
    last = list_checkpoints(out / "checkpoints")[-1]
    training = last.training()
    del training["progress"]["seconds"]
    metrics = [{key: line[key] for key in line if key not in MEASURED} for line in Run(out).metrics.records()]
    return {
        "weights": (last.directory / "model.safetensors").read_bytes(),
        "moments": (last.directory / "optimizer.safetensors").read_bytes(),
        "training": training,
        "metrics": metrics,
        "samples": {path.name: path.read_text() for path in (out / "samples").glob("*")},
        "names": sorted(path.name for path in out.iterdir()),
    }


# --- damage ----------------------------------------------------------------------------------------------------------


def change_byte(path: Path, rng: random.Random) -> None:
    content = bytearray(path.read_bytes())
    content[rng.randrange(len(content))] ^= rng.randrange(1, 256)
    path.write_bytes(content)


def cut(path: Path, rng: random.Random) -> None:
    os.truncate(path, rng.randrange(path.stat().st_size))


def delete(path: Path, rng: random.Random) -> None:
    path.unlink()


def append(path: Path, rng: random.Random) -> None:
    with path.open("ab") as file:
        file.write(rng.choice([b"\0", b"\n", b" ", rng.randbytes(rng.randrange(1, 64))]))


DAMAGES = {"byte changed": change_byte, "cut": cut, "deleted": delete, "bytes appended": append}


def damage_checkpoints(uninterrupted: Path, count: int, rng: random.Random, findings: Findings) -> None:
    """Damage the newest checkpoint of a run `count` times, and repair it after each damage."""
    note(f"{count:,} damages")
    out = uninterrupted.with_name("damaged")
    shutil.copytree(uninterrupted, empty(out))
    before, newest = list_checkpoints(out / "checkpoints")[-2:]
    names = sorted(path.name for path in newest.directory.iterdir())
    for index in range(count):
        kind, path = rng.choice(list(DAMAGES)), newest.directory / rng.choice(names)
        content = path.read_bytes()
        DAMAGES[kind](path, rng)
        findings.damaged[kind] += 1
        if not is_detected(out, path, before.step):
            findings.unnoticed.append(f"{index}: {kind}, {path.name}")
        if index % RESUMED_EVERY == 0:
            findings.resumed += 1
            resume_damaged(out, uninterrupted, f"damage {index}: {kind}, {path.name}", findings)
        path.write_bytes(content)


def is_detected(out: Path, path: Path, step_before: int) -> bool:
    """True if the damaged file is named in the log and the checkpoint before it is used."""
    handler, logger = LineHandler(), logging.getLogger("foretell")
    logger.addHandler(handler)
    try:
        used_step = Run(out).last_intact().step
    except CheckpointError:
        return False
    finally:
        logger.removeHandler(handler)
    return used_step == step_before and len(handler.lines) == 1 and str(path) in handler.lines[0]


class LineHandler(logging.Handler):
    """Collects the lines of the log."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def resume_damaged(out: Path, uninterrupted: Path, name: str, findings: Findings) -> None:
    """Resume a copy of a damaged run to its end, and compare it with the uninterrupted run."""
    copy = empty(out.with_name("resumed"))
    shutil.copytree(out, copy)
    code = wait_for(fork(lambda: train(DAMAGED_TASK, copy)))
    compare(copy, uninterrupted, name, code, findings)


def empty(out: Path) -> Path:
    """Remove a directory if it exists; returns its path."""
    shutil.rmtree(out, ignore_errors=True)
    return out


# --- the summary -----------------------------------------------------------------------------------------------------


def print_summary(console: Console, report: BenchmarkReport) -> None:
    """The counts, and the failures."""
    kills, damages = Counter(report["killed"]), Counter(report["damaged"])
    lines = [f"{kills.total()} kills in {report['runs']} runs; {report['seconds']:.0f} s in total"]
    lines += [f"  {count:>6,} {activity}" for activity, count in sorted(kills.items())]
    lines += [f"{damages.total():,} damages to the newest of several checkpoints"]
    lines += [f"  {count:>6,} {kind}" for kind, count in damages.most_common()]
    lines += [
        f"  {len(report['unnoticed']):>6,} not detected, or the file not named, or the checkpoint before not used"
    ]
    ends = report["runs"] + report["resumed"]
    lines += [f"{ends} resumed runs compared bit by bit with the uninterrupted one: {len(report['unequal'])} differ"]
    console.print("\n".join([*lines, *report["unequal"], *report["unnoticed"][:10]]), soft_wrap=True)


if __name__ == "__main__":
    main()
