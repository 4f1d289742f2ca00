"""Training speed compared to nanoGPT, on nanoGPT's two Shakespeare configurations, on the CPU.

    python bench/train.py --nanogpt DIR           every mode, with compiled nanoGPT: about ten minutes on two cores
    python bench/train.py --nanogpt DIR --quick   fewer rows and rounds: under a minute
    python bench/train.py --nanogpt DIR --modes float32 --cpu-time --threads 1    where other programs run
    python bench/train.py --nanogpt DIR --busy    another program computes on one core all the time

DIR is a checkout of github.com/karpathy/nanoGPT; without it, foretell is measured alone. All contenders start from the
same weights and take the same optimizer step (forward, backward, clip, AdamW), each with its own code, in turns. Before
the timings, the losses of both are compared. nanoGPT's own script trains in float32 on a CPU; bfloat16 by autocast is
added here. Freed memory stays with the process, as in `foretell train`, for all contenders: nanoGPT gains by it too.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import foretell  # isort: skip  # noqa: F401 - before torch, so that its threads wait as in the command line
import numpy as np
import torch
from arguments import BenchmarkReport, add_cpu_time, make_parser, make_table, print_report, start_report, use_threads
from gpt2_names import nanogpt_weights
from measure import Run, Spread, measure_peak_flops, note, rate, speed_ratio, time_interleaved
from rich.console import Console
from rich.table import Table

from foretell.config.model import ModelConfig
from foretell.config.section import make_section
from foretell.config.training import TrainingConfig
from foretell.config.weight_shapes import count_parameters
from foretell.data.batch import Batch, make_batch
from foretell.data.documents import embedded_corpus
from foretell.model.cost import training_flops_per_token
from foretell.model.init import make_decoder
from foretell.system.allocator import freed_memory_kept
from foretell.system.device import choose_training_dtype, find_dtype
from foretell.training.execution import make_objective
from foretell.training.objective import Objective
from foretell.training.optimizer import make_optimizer
from foretell.training.step import training_step

DROPOUTS = (0.2, 0.0)
# In the dtype that training chooses here; with dropout after the embedding and in the residuals, none in attention
RECIPE = "recipe"
MODES = ("float32", "bfloat16", "compiled", RECIPE)
SEED = 1
CPU = torch.device("cpu")
LOSS_TOLERANCE = 1e-5  # relative difference of two float32 implementations
NO_PEER = "nanoGPT is missing: give a checkout with --nanogpt DIR"
NO_COMPILER = "compiled nanoGPT is missing: torch.compile needs a C++ compiler"


@dataclass(frozen=True)
class Workload:
    """One of nanoGPT's published configurations, and the size of one timing."""

    name: str
    num_layers: int
    num_heads: int
    width: int
    context_length: int
    batch_size: int  # rows
    dropout: float  # the published rate; the headline ratio is measured at it
    steps: int  # optimizer steps in one timing
    vocab_size: int = 65

    @property
    def tokens(self) -> int:
        """Tokens in one timing."""
        return self.steps * self.batch_size * self.context_length

    def config(self, dropout: float, mode: str = "bfloat16") -> ModelConfig:
        """foretell's configuration of this shape. The recipe has no dropout in attention."""
        rates = {"embedding": dropout, "residual": dropout, "attention": 0.0 if mode == RECIPE else dropout}
        sizes = ("num_layers", "num_heads", "width", "context_length", "vocab_size")
        choices = {"bias": False, "activation": "gelu_erf", "dropout": rates}
        return make_section(ModelConfig, {**{name: getattr(self, name) for name in sizes}, **choices})


# nanoGPT's config/train_shakespeare_char.py, and the settings that its README.md gives for a computer without a GPU
SHAKESPEARE = Workload("10.7M", 6, 6, 384, context_length=256, batch_size=64, dropout=0.2, steps=1)
LAPTOP = Workload("0.8M", 4, 4, 128, context_length=64, batch_size=12, dropout=0.0, steps=10)
FULL = ((SHAKESPEARE, 3), (LAPTOP, 10))  # each with its number of rounds
QUICK = ((replace(SHAKESPEARE, batch_size=4), 3), (LAPTOP, 5))


@dataclass(frozen=True)
class Contender:
    """A program in one mode at one dropout rate.

    The mode is a dtype, `compiled` (in bfloat16) or `recipe`. The rate applies in the embedding, in the residuals
    and, except for the recipe, in attention.
    """

    program: str
    mode: str
    dropout: float


def main() -> None:
    """Measure every workload and print a table or one JSON object."""
    arguments = parse_arguments()
    use_threads(arguments.threads)
    nanogpt = load_nanogpt(arguments.nanogpt) if arguments.nanogpt else None
    modes = [mode for mode in arguments.modes if mode != "compiled" or (arguments.compile and has_compiler())]
    workloads = QUICK if arguments.quick else FULL
    peak_flops = measure_peak_flops()
    with freed_memory_kept(), another_program() if arguments.busy else contextlib.nullcontext():
        tables = [measure(workload, rounds, nanogpt, modes) for workload, rounds in workloads]
    report = {
        **start_report("train"),
        "quick": arguments.quick,
        "cpu_time": arguments.cpu_time,
        "busy": arguments.busy,
        "matrix_gflops": peak_flops / 1e9,
        "missing": list_missing(nanogpt, arguments.compile),
        "ratio_to_nanogpt": tables[0]["ratio_to_nanogpt"],
        "workloads": tables,
    }
    print_report(report, print_tables, as_json=arguments.json)


def parse_arguments() -> argparse.Namespace:
    """Parse the command line, and check that --nanogpt is a checkout."""
    parser = make_parser(
        "Training speed compared to nanoGPT, on the CPU.", "fewer rows and rounds: under a minute", with_threads=True
    )
    parser.add_argument("--nanogpt", type=Path, metavar="DIR", help="a checkout of github.com/karpathy/nanoGPT")
    parser.add_argument(
        "--compile",
        action=argparse.BooleanOptionalAction,
        help="measure compiled nanoGPT too (default: yes, except with --quick)",
    )
    parser.add_argument("--busy", action="store_true", help="while another program computes on one core")
    parser.add_argument("--modes", nargs="+", choices=MODES, default=list(MODES), help="default: all")
    add_cpu_time(parser)
    arguments = parser.parse_args()
    if arguments.nanogpt and not (arguments.nanogpt / "model.py").is_file():
        parser.error(f"no model.py in {arguments.nanogpt}; give --nanogpt a checkout of github.com/karpathy/nanoGPT")
    if arguments.compile is None:
        arguments.compile = not arguments.quick
    return arguments


@contextlib.contextmanager
def another_program() -> Iterator[None]:
    """A program that computes on one core during the block."""
    program = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        yield
    finally:
        program.kill()
        program.wait()


def load_nanogpt(folder: Path) -> ModuleType:
    """Import nanoGPT's model.py as a module."""
    spec = importlib.util.spec_from_file_location("nanogpt_model", folder / "model.py")
    assert spec is not None and spec.loader is not None, "a path that ends in .py has a loader"
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # torch.compile looks it up there
    spec.loader.exec_module(module)
    return module


def has_compiler() -> bool:
    """True if torch.compile can find a C++ compiler."""
    return any(shutil.which(name) for name in (os.environ.get("CXX", "g++"), "g++", "clang++"))


def list_missing(nanogpt: ModuleType | None, wants_compile: bool) -> list[str]:
    """A line for each contender that could not be measured."""
    if nanogpt is None:
        return [NO_PEER]
    return [NO_COMPILER] if wants_compile and not has_compiler() else []


def measure(workload: Workload, rounds: int, nanogpt: ModuleType | None, modes: list[str]) -> dict[str, Any]:
    batch = make_real_batch(workload)
    if nanogpt is not None:
        check_same_loss(workload, batch, nanogpt)
    contenders = list(iter_contenders(nanogpt is not None, modes))
    note(f"{workload.name}: {len(contenders)} contenders, {rounds} rounds after one warm-up round")
    runs = {contender: make_run(contender, workload, batch, nanogpt) for contender in contenders}
    seconds = time_interleaved(runs, rounds)
    peers = {dropout: fastest(seconds, "nanoGPT", dropout) for dropout in DROPOUTS}
    flops = training_flops_per_token(workload.config(0.0))
    ours, theirs = fastest(seconds, "foretell", workload.dropout), peers[workload.dropout]
    rows = [make_row(contender, seconds, peers[contender.dropout], workload.tokens, flops) for contender in contenders]
    return {
        **asdict(workload),
        "parameters": count_parameters(workload.config(0.0)),
        "flops_per_token": flops,
        "rounds": rounds,
        "ratio_to_nanogpt": speed_ratio(seconds[ours], seconds[theirs]).median if ours and theirs else None,
        "contenders": rows,
    }


def make_real_batch(workload: Workload) -> Batch:
    """Evenly spaced rows of the Python language reference, restricted to its most common characters."""
    text = "".join(document.text for document in embedded_corpus())
    alphabet = {pair[0]: index for index, pair in enumerate(Counter(text).most_common(workload.vocab_size))}
    ids = np.array([alphabet[character] for character in text if character in alphabet])
    starts = np.linspace(0, len(ids) - workload.context_length - 1, workload.batch_size, dtype=np.int64)
    return make_batch(ids[starts[:, None] + np.arange(workload.context_length + 1)])


def iter_contenders(with_nanogpt: bool, modes: list[str]) -> Iterator[Contender]:
    """Yield all contenders in the order of the table."""
    by_program = {"foretell": ("float32", "bfloat16"), "nanoGPT": ("float32", "bfloat16", "compiled")}
    for dropout in DROPOUTS:
        for program in by_program if with_nanogpt else ("foretell",):
            yield from (Contender(program, mode, dropout) for mode in by_program[program] if mode in modes)
        if dropout and RECIPE in modes:
            yield Contender("foretell", RECIPE, dropout)


def make_run(contender: Contender, workload: Workload, batch: Batch, nanogpt: ModuleType | None) -> Run:
    """The timed call: `workload.steps` optimizer steps."""
    if contender.program == "foretell":
        return make_foretell_run(contender, workload, batch)
    assert nanogpt is not None, "nanoGPT is a contender only if --nanogpt was given"
    return make_nanogpt_run(contender, workload, batch, nanogpt)


def make_foretell_run(contender: Contender, workload: Workload, batch: Batch) -> Run:
    """Steps with foretell's `training_step`."""
    config = TrainingConfig(steps=1, batch_size=workload.batch_size, beta2=0.99)
    dtype = choose_training_dtype("auto", CPU) if contender.mode == RECIPE else find_dtype(contender.mode)
    decoder = make_decoder(workload.config(contender.dropout, contender.mode), SEED)
    objective = make_objective(decoder, CPU, dtype)
    optimizer = make_optimizer(objective, config)

    def run() -> None:
        for step in range(workload.steps):
            training_step(objective, optimizer, batch, step, config, dtype)

    return run


def make_nanogpt_run(contender: Contender, workload: Workload, batch: Batch, nanogpt: ModuleType) -> Run:
    """Steps as in nanoGPT's train.py, with its model, optimizer and settings."""
    model = make_nanogpt(nanogpt, workload.config(contender.dropout))
    with contextlib.redirect_stdout(None):  # it prints parameter counts
        optimizer = model.configure_optimizers(1e-1, 1e-3, (0.9, 0.99), "cpu")
    call = torch.compile(model) if contender.mode == "compiled" else model
    ids, targets = batch.ids.contiguous(), batch.targets.contiguous()

    def run() -> None:
        for _ in range(workload.steps):
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=contender.mode != "float32"):
                _, loss = call(ids, targets)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    return run


def make_nanogpt(nanogpt: ModuleType, config: ModelConfig) -> Any:
    """nanoGPT's model of a shape, in training mode, with the initial weights of foretell's."""
    shape = nanogpt.GPTConfig(
        n_layer=config.num_layers,
        n_head=config.num_heads,
        n_embd=config.width,
        block_size=config.context_length,
        vocab_size=config.vocab_size,
        dropout=config.dropout.residual,
        bias=config.bias.attention,
    )
    with contextlib.redirect_stdout(None):  # it prints parameter counts
        model = nanogpt.GPT(shape).train()
    model.load_state_dict(nanogpt_weights(make_decoder(config, SEED)))
    return model


@torch.inference_mode()
def check_same_loss(workload: Workload, batch: Batch, nanogpt: ModuleType) -> None:
    """Exit unless both models have the same loss on one batch, without dropout, in float32."""
    ours = Objective(make_decoder(workload.config(0.0), SEED)).eval()(batch).mean
    theirs = float(make_nanogpt(nanogpt, workload.config(0.0)).eval()(batch.ids, batch.targets.contiguous())[1])
    if abs(ours - theirs) > LOSS_TOLERANCE * theirs:
        sys.exit(f"bench/train.py: {workload.name}: the models differ: foretell's loss is {ours}, nanoGPT's {theirs}")
    note(f"{workload.name}: the same weights give the same loss: {ours:.6f} and {theirs:.6f}")


def fastest(seconds: dict[Contender, list[float]], program: str, dropout: float) -> Contender | None:
    """A program's fastest mode at one dropout rate by the median, without the recipe; None if it has none."""

    def is_candidate(contender: Contender) -> bool:
        return (contender.program, contender.dropout) == (program, dropout) and contender.mode != RECIPE

    candidates = [contender for contender in seconds if is_candidate(contender)]
    return min(candidates, key=lambda contender: Spread.of(seconds[contender]).median, default=None)


def make_row(
    contender: Contender, seconds: dict[Contender, list[float]], peer: Contender | None, tokens: int, flops: int
) -> dict[str, Any]:
    """One contender's row, with its ratio to `peer`, nanoGPT's fastest mode at the same dropout rate."""
    speed = rate(tokens, seconds[contender])
    return {
        **asdict(contender),
        "tokens_per_second": asdict(speed),
        "gflops": speed.median * flops / 1e9,
        "ratio_to_nanogpt": asdict(speed_ratio(seconds[contender], seconds[peer])) if peer else None,
    }


def print_tables(console: Console, report: BenchmarkReport) -> None:
    """A table per workload: median (low-high) of the rounds."""
    for workload in report["workloads"]:
        console.print(f"\n{workload_title(workload)}", style="bold")
        console.print(make_workload_table(workload, report["matrix_gflops"]))
        if workload["ratio_to_nanogpt"]:
            dropout, ratio = workload["dropout"], workload["ratio_to_nanogpt"]
            console.print(f"at its published dropout, {dropout}: {ratio:.2f} times the speed of nanoGPT's best mode")
    if report["cpu_time"]:
        console.print("tokens per second of CPU time")
    if report["quick"]:
        rows = report["workloads"][0]["batch_size"]
        console.print(
            f"\n--quick: {rows} rows of {SHAKESPEARE.name} instead of {SHAKESPEARE.batch_size}, few rounds;\n"
            "small differences mean nothing"
        )
    for line in report["missing"]:
        console.print(line)


def workload_title(workload: dict[str, Any]) -> str:
    """The shape of a workload, and its training cost."""
    shape = (
        "{name}: {num_layers} layers, {num_heads} heads, width {width}, context {context_length}, batch {batch_size}"
    )
    cost = f"{workload['parameters']:,} parameters, {workload['flops_per_token'] / 1e6:.1f} MFLOP per token"
    return f"{shape.format_map(workload)}\n{cost}"


def make_workload_table(workload: dict[str, Any], matrix_gflops: float) -> Table:
    """A row per contender; `of peak` is its share of the machine's fastest bfloat16 matmul."""
    columns = ("dropout", "program", "tokens/s", "GFLOP/s", "of peak", "to nanoGPT's best")
    table = make_table(columns, words={"dropout", "program"})
    for row in workload["contenders"]:
        speed, ratio = Spread(**row["tokens_per_second"]), row["ratio_to_nanogpt"]
        share = f"{row['gflops'] / matrix_gflops:.0%}"
        contender = str(row["dropout"]), f"{row['program']} {row['mode']}"
        table.add_row(*contender, str(speed), f"{row['gflops']:.0f}", share, str(Spread(**ratio)) if ratio else "-")
    return table


if __name__ == "__main__":
    main()
