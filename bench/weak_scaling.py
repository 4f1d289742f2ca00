"""Weak scaling: one process, and two that each do the same work, on gloo with one thread each.

Two processes are slower than one for reasons that are measured apart:

- sharing and waiting: two processes that know nothing of each other, each training its own copy, started together for
  every step. What they take longer than one alone is CPU time (sharing), because both cores share memory, caches and
  clock; the other part (waiting) is when something else ran on a core;
- sums: the time in which a sum or a gathering of the process group runs during a step, by torch's profiler,
  waiting for the other process included. It may overlap with computing, where there is a core for it;
- the rest: packing, unpacking and hooks; below zero where collectives overlap with computing.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from multiprocessing import get_context
from typing import Any

import torch
from arguments import make_table
from measure import Spread, note
from processes import Child, free_port
from rich.console import Console
from scale_points import CPU, TRAINING, random_batch
from torch import nn
from torch.profiler import ProfilerActivity, profile

from foretell.config.model import ModelConfig
from foretell.distributed.placement import TrialLoss, replicate, shard
from foretell.distributed.world import ALONE, World, current_world, disconnect
from foretell.model.init import make_decoder
from foretell.planning.speed import peak_flops, read_bandwidth
from foretell.session.machine import Meter
from foretell.training.execution import make_objective
from foretell.training.objective import Objective
from foretell.training.optimizer import make_optimizer
from foretell.training.step import training_step

SETUPS = {"alone": 1, "separate": 2, "ddp": 2, "fsdp": 2}  # and its number of processes
NAMES = {"alone": "one process", "separate": "two, apart", "ddp": "two, ddp", "fsdp": "two, fsdp"}
STEPS, PROFILED = 5, 2  # of each process in a round
COLLECTIVE = "gloo:"  # how the profiler calls what the process group does

Result = dict[str, Any]
Work = Callable[[int, Callable[[], object]], object]  # with the rank of the process; the call waits for the others


def measure_weak_scaling(config: ModelConfig, rounds: int, nothing: int) -> dict[str, Any]:
    """The figures of each setup, and of the machine. nothing: bytes of a process that computes nothing."""
    results: dict[str, list[list[Result]]] = {setup: [] for setup in SETUPS}
    machine: dict[str, list[Result]] = {"alone": [], "separate": []}
    for round_index in range(rounds):
        note(f"round {round_index + 1} of {rounds}: weak scaling")
        for setup, count in SETUPS.items():
            results[setup].append(run_together(count, partial(train, config, setup, free_port())))
        for setup, rates in machine.items():
            rates += run_together(SETUPS[setup], measure_machine)
    return {
        "setups": with_parts({setup: figures_of(results[setup], nothing) for setup in SETUPS}),
        "machine": {
            setup: {name: asdict(Spread.of(rate[name] for rate in rates)) for name in rates[0]}
            for setup, rates in machine.items()
        },
    }


def run_together(count: int, work: Work) -> list[Any]:
    """What `work` returns in each of `count` new processes."""
    together = get_context("fork").Barrier(count)
    children = [Child.start(lambda rank=rank: work(rank, together.wait)) for rank in range(count)]
    return [child.result()[0] for child in children]


def figures_of(rounds: list[list[Result]], nothing: int) -> Result:
    """A setup's step, which ends when its last process ends, and what else its processes have measured."""
    steps = [max(times) for results in rounds for times in zip(*(result["steps"] for result in results), strict=True)]
    every = [result for results in rounds for result in results]
    return {
        "step": asdict(Spread.of(steps)),
        "cpu": asdict(Spread.of(seconds for result in every for seconds in result["cpu"])),
        "collectives": asdict(Spread.of(seconds for result in every for seconds in result["collectives"])),
        "calls": every[0]["calls"],
        "memory": max(result["memory"] for result in every) - nothing,
    }


def with_parts(setups: dict[str, Result]) -> dict[str, Result]:
    """The same with the efficiency of each setup, and the parts of the time it takes longer than one process."""
    alone, separate = setups["alone"], setups["separate"]
    longer, sharing = (separate[kind]["low"] - alone[kind]["low"] for kind in ("step", "cpu"))
    for setup, figures in setups.items():
        both = float(SETUPS[setup] > 1)
        parts = {"sharing": both * sharing, "waiting": both * (longer - sharing)}
        step = figures["step"]["low"]
        rest = step - alone["step"]["low"] - both * longer - figures["collectives"]["low"]
        figures |= {"efficiency": alone["step"]["low"] / step, **parts, "rest": rest}
    return setups


# --- in a child process ----------------------------------------------------------------------------------------------


def train(config: ModelConfig, setup: str, port: int, rank: int, wait: Callable[[], object]) -> Result:
    """Timed steps, each of which all processes start together, then profiled ones."""
    torch.set_num_threads(1)
    os.environ["KINETO_LOG_LEVEL"] = "99"  # else the profiler writes to stderr when it begins and ends
    world = join(setup, port, rank)
    objective = make_objective(make_decoder(config, seed=1), CPU, torch.float32)
    batch = random_batch(config, seed=rank)
    spread = spread_over(objective, setup, world, lambda whole: whole(batch.rows(0, 1)).sum)
    optimizer = make_optimizer(objective.decoder, TRAINING)

    def step() -> tuple[float, float]:
        wait()
        started, working = time.perf_counter(), time.thread_time()
        _ = training_step(spread, optimizer, batch, 0, TRAINING, world=world).loss
        return time.perf_counter() - started, time.thread_time() - working

    step()
    steps, cpu = zip(*(step() for _ in range(STEPS)), strict=True)
    memory = Meter(None, CPU, torch.float32).peak_memory_bytes()
    spans = [collectives_in(step) for _ in range(PROFILED)]
    disconnect()
    collectives = {"collectives": [covered(each) for each in spans], "calls": len(spans[0])}
    return {"steps": steps, "cpu": cpu, "memory": memory, **collectives}


def join(setup: str, port: int, rank: int) -> World:
    """The processes of a setup: connected, or each alone."""
    if setup not in ("ddp", "fsdp"):
        return ALONE
    size = str(SETUPS[setup])
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    return current_world()


def spread_over(objective: Objective, setup: str, world: World, trial_loss: TrialLoss) -> nn.Module:
    """The objective as training spreads it."""
    if setup == "ddp":
        return replicate(objective, trial_loss)
    return shard(objective, [objective.decoder], world) if setup == "fsdp" else objective


def collectives_in(step: Callable[[], object]) -> list[tuple[float, float]]:
    """When the collectives of a step begin and end, in seconds."""
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        step()
    spans = [event.time_range for event in profiler.events() or () if event.name.startswith(COLLECTIVE)]
    return [(span.start / 1e6, span.end / 1e6) for span in spans]


def covered(spans: list[tuple[float, float]]) -> float:
    """Seconds in which at least one of the spans runs."""
    seconds, end = 0.0, float("-inf")
    for first, last in sorted(spans):
        seconds += max(0.0, last - max(first, end))
        end = max(end, last)
    return seconds


def measure_machine(rank: int, wait: Callable[[], object]) -> Result:
    """FLOP/s of a matmul and bytes per second of reading, while the other processes do the same."""
    torch.set_num_threads(1)
    wait()
    flops = peak_flops(CPU, torch.float32)
    wait()
    return {"matmul_flops": flops, "read_bandwidth": read_bandwidth(CPU)}


# --- tables ----------------------------------------------------------------------------------------------------------


def print_weak_scaling(console: Console, report: dict[str, Any]) -> None:
    """A row per setup with the parts of its loss, then what both cores share."""
    console.print("\nweak scaling: the same rows on each process, one thread each", style="bold")
    columns = ("", "step, ms", "efficiency", "sharing", "waiting", "sums", "rest", "memory, MB")
    table = make_table(columns, words={""})
    for setup, figures in report["setups"].items():
        parts = (figures["sharing"], figures["waiting"], figures["collectives"]["low"], figures["rest"])
        cells = [f"{1e3 * part:+,.0f}" for part in parts] if SETUPS[setup] > 1 else [""] * len(parts)
        step, memory = f"{1e3 * figures['step']['low']:,.0f}", f"{figures['memory'] / 1e6:,.0f}"
        table.add_row(NAMES[setup], step, f"{figures['efficiency']:.0%}", *cells, memory)
    console.print(table)
    for name, unit in (("matmul_flops", "GFLOP/s of a matmul"), ("read_bandwidth", "GB/s of reading memory")):
        alone, both = (report["machine"][setup][name]["high"] / 1e9 for setup in ("alone", "separate"))
        console.print(f"{unit}: {alone:.1f} alone, {both:.1f} each while both run ({both / alone:.0%})")
