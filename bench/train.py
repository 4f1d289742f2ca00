"""Training speed beside nanoGPT, on nanoGPT's own two Shakespeare configurations, on the CPU.

    python bench/train.py --nanogpt DIR           every mode, nanoGPT compiled too: about ten minutes on two cores
    python bench/train.py --nanogpt DIR --quick   fewer rows and rounds: under a minute

DIR is a checkout of github.com/karpathy/nanoGPT; without it, foretell is measured alone. All contenders start from the
same weights and take the same optimizer step: forward, backward, clip, AdamW, each with its own code, in turns. Before
that the loss of both is compared. nanoGPT's own script stays in float32 on a CPU; bfloat16 by autocast is our addition.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import shutil
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from gpt2_names import gpt2_weights
from measure import (
    Run,
    Spread,
    describe_machine,
    describe_versions,
    heading,
    matrix_rate,
    note,
    rate,
    speed_ratio,
    time_interleaved,
)
from rich.console import Console
from rich.table import Table

from foretell.config import ModelConfig, TrainingConfig, make_section
from foretell.data.batch import Batch, make_batch
from foretell.data.corpora import embedded_corpus
from foretell.model.cost import count_parameters, training_flops_per_token
from foretell.model.init import make_decoder
from foretell.training.objective import Objective, make_objective
from foretell.training.optimizer import make_optimizer
from foretell.training.step import training_step

DROPOUTS = (0.2, 0.0)
RECIPE = "recipe"  # bfloat16, and dropout after the embedding and in the residuals alone
SEED = 1
LOSS_TOLERANCE = 1e-5  # relative, between two float32 implementations
NO_PEER = "nanoGPT is missing: give a checkout with --nanogpt DIR"
NO_COMPILER = "compiled nanoGPT is missing: torch.compile needs a C++ compiler"


@dataclass(frozen=True)
class Workload:
    """One of nanoGPT's published configurations and how it is measured."""

    name: str
    num_layers: int
    num_heads: int
    width: int
    context_length: int
    batch_size: int  # rows
    dropout: float  # the published rate, which the ratio is about
    steps: int  # optimizer steps in one timing
    vocab_size: int = 65

    @property
    def tokens(self) -> int:
        """Tokens in one timing."""
        return self.steps * self.batch_size * self.context_length

    def config(self, dropout: float, mode: str = "bfloat16") -> ModelConfig:
        """The shape in foretell's terms. A recipe of ours drops nothing out of attention."""
        places = {"embedding": dropout, "residual": dropout, "attention": 0.0 if mode == RECIPE else dropout}
        sizes = ("num_layers", "num_heads", "width", "context_length", "vocab_size")
        choices = {"bias": False, "activation": "gelu_erf", "dropout": places}
        return make_section(ModelConfig, {**{name: getattr(self, name) for name in sizes}, **choices})


# nanoGPT, config/train_shakespeare_char.py, and what its README.md gives for a computer without a GPU
SHAKESPEARE = Workload("10.7M", 6, 6, 384, context_length=256, batch_size=64, dropout=0.2, steps=1)
LAPTOP = Workload("0.8M", 4, 4, 128, context_length=64, batch_size=12, dropout=0.0, steps=10)
FULL = ((SHAKESPEARE, 3), (LAPTOP, 10))  # each with its number of rounds
QUICK = ((replace(SHAKESPEARE, batch_size=4), 3), (LAPTOP, 5))


@dataclass(frozen=True)
class Contender:
    """Who trains, how (compiled means bfloat16 too), with which dropout rate at all three places, or a recipe's two."""

    program: str
    mode: str
    dropout: float


def main() -> None:
    """Measure every workload and print a table or one JSON object."""
    arguments = parse_arguments()
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    nanogpt = load_nanogpt(arguments.nanogpt) if arguments.nanogpt else None
    with_compile = arguments.compile and has_compiler()
    workloads = QUICK if arguments.quick else FULL
    peak = matrix_rate()
    tables = [measure(workload, rounds, nanogpt, with_compile) for workload, rounds in workloads]
    report = {
        "benchmark": "train",
        "quick": arguments.quick,
        "machine": describe_machine(),
        "versions": describe_versions(),
        "matrix_gflops": peak / 1e9,
        "missing": name_missing(nanogpt, arguments.compile),
        "ratio_to_nanogpt": tables[0]["ratio_to_nanogpt"],
        "workloads": tables,
    }
    if arguments.json:
        print(json.dumps(report))
    else:
        print_report(report)


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="Training speed beside nanoGPT, on the CPU.")
    parser.add_argument("--nanogpt", type=Path, metavar="DIR", help="a checkout of github.com/karpathy/nanoGPT")
    parser.add_argument("--quick", action="store_true", help="fewer rows and rounds: under a minute")
    parser.add_argument(
        "--compile",
        action=argparse.BooleanOptionalAction,
        help="measure compiled nanoGPT too (default: yes, but not with --quick)",
    )
    parser.add_argument("--threads", type=int, help="threads for torch (default: its own choice)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args()
    if arguments.nanogpt and not (arguments.nanogpt / "model.py").is_file():
        parser.error(f"no model.py in {arguments.nanogpt}; --nanogpt wants a checkout of github.com/karpathy/nanoGPT")
    if arguments.compile is None:
        arguments.compile = not arguments.quick
    return arguments


def load_nanogpt(folder: Path) -> ModuleType:
    """nanoGPT's model.py as a module."""
    spec = importlib.util.spec_from_file_location("nanogpt_model", folder / "model.py")
    assert spec is not None and spec.loader is not None, "a path that ends in .py has a loader"
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where torch.compile looks it up
    spec.loader.exec_module(module)
    return module


def has_compiler() -> bool:
    """Is there a C++ compiler that torch.compile could call?"""
    return any(shutil.which(name) for name in (os.environ.get("CXX", "g++"), "g++", "clang++"))


def name_missing(nanogpt: ModuleType | None, wants_compile: bool) -> list[str]:
    """What could not be measured, and why."""
    if nanogpt is None:
        return [NO_PEER]
    return [NO_COMPILER] if wants_compile and not has_compiler() else []


def measure(workload: Workload, rounds: int, nanogpt: ModuleType | None, with_compile: bool) -> dict[str, Any]:
    """All contenders on one workload."""
    batch = make_real_batch(workload)
    if nanogpt is not None:
        check_same_loss(workload, batch, nanogpt)
    contenders = list(iter_contenders(nanogpt is not None, with_compile))
    note(f"{workload.name}: {len(contenders)} contenders, {rounds} rounds after a first that is not counted")
    runs = {contender: make_run(contender, workload, batch, nanogpt) for contender in contenders}
    seconds = time_interleaved(runs, rounds)
    bests = {dropout: best(seconds, "nanoGPT", dropout) for dropout in DROPOUTS}
    flops = training_flops_per_token(workload.config(0.0))
    ours, theirs = best(seconds, "foretell", workload.dropout), bests[workload.dropout]
    return {
        **asdict(workload),
        "parameters": count_parameters(workload.config(0.0)),
        "flops_per_token": flops,
        "rounds": rounds,
        "ratio_to_nanogpt": speed_ratio(seconds[ours], seconds[theirs]).median if ours and theirs else None,
        "contenders": [make_row(one, seconds, bests[one.dropout], workload.tokens, flops) for one in contenders],
    }


def make_real_batch(workload: Workload) -> Batch:
    """Rows cut evenly from the reference text inside Python, in its commonest characters."""
    text = "".join(document.text for document in embedded_corpus())
    alphabet = {pair[0]: index for index, pair in enumerate(Counter(text).most_common(workload.vocab_size))}
    ids = np.array([alphabet[character] for character in text if character in alphabet])
    starts = np.linspace(0, len(ids) - workload.context_length - 1, workload.batch_size, dtype=np.int64)
    return make_batch(ids[starts[:, None] + np.arange(workload.context_length + 1)])


def iter_contenders(with_nanogpt: bool, with_compile: bool) -> Iterator[Contender]:
    """Everyone who is measured, in the order of the table."""
    modes = {"foretell": ["float32", "bfloat16"]}
    if with_nanogpt:
        modes["nanoGPT"] = ["float32", "bfloat16", *(["compiled"] if with_compile else [])]
    for dropout in DROPOUTS:
        for program in modes:
            for mode in modes[program]:
                yield Contender(program, mode, dropout)
        if dropout:
            yield Contender("foretell", RECIPE, dropout)


def make_run(contender: Contender, workload: Workload, batch: Batch, nanogpt: ModuleType | None) -> Run:
    """What is timed: `workload.steps` optimizer steps."""
    if contender.program == "foretell":
        return make_foretell_run(contender, workload, batch)
    assert nanogpt is not None, "nanoGPT is a contender only where it was given"
    return make_nanogpt_run(contender, workload, batch, nanogpt)


def make_foretell_run(contender: Contender, workload: Workload, batch: Batch) -> Run:
    """Steps of foretell's own training loop."""
    config = TrainingConfig(steps=1, batch_size=workload.batch_size, beta2=0.99)
    dtype = torch.float32 if contender.mode == "float32" else torch.bfloat16
    decoder = make_decoder(workload.config(contender.dropout, contender.mode), SEED)
    objective = make_objective(decoder, torch.device("cpu"), dtype)
    optimizer = make_optimizer(objective, config)

    def run() -> None:
        for step in range(workload.steps):
            training_step(objective, optimizer, batch, step, config, dtype)

    return run


def make_nanogpt_run(contender: Contender, workload: Workload, batch: Batch, nanogpt: ModuleType) -> Run:
    """The step of nanoGPT's train.py, with its model, its optimizer and its settings."""
    model = make_nanogpt(workload, contender.dropout, nanogpt).train()
    with contextlib.redirect_stdout(None):  # it prints counts that are known
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


def make_nanogpt(workload: Workload, dropout: float, nanogpt: ModuleType) -> Any:
    """nanoGPT's model, with the weights that foretell's starts from."""
    shape = nanogpt.GPTConfig(
        n_layer=workload.num_layers,
        n_head=workload.num_heads,
        n_embd=workload.width,
        block_size=workload.context_length,
        vocab_size=workload.vocab_size,
        dropout=dropout,
        bias=False,
    )
    with contextlib.redirect_stdout(None):  # it prints counts that are known
        model = nanogpt.GPT(shape)
    model.load_state_dict(gpt2_weights(make_decoder(workload.config(0.0), SEED), inputs_first=False))
    return model


@torch.inference_mode()
def check_same_loss(workload: Workload, batch: Batch, nanogpt: ModuleType) -> None:
    """Stop where the two are not the same model: their losses on one batch, without dropout, in float32."""
    ours = Objective(make_decoder(workload.config(0.0), SEED)).eval()(batch).mean
    theirs = float(make_nanogpt(workload, 0.0, nanogpt).eval()(batch.ids, batch.targets.contiguous())[1])
    if abs(ours - theirs) > LOSS_TOLERANCE * theirs:
        sys.exit(f"bench/train.py: {workload.name}: not the same model, foretell's loss is {ours}, nanoGPT's {theirs}")
    note(f"{workload.name}: the same weights give the same loss, {ours:.6f} and {theirs:.6f}")


def best(seconds: dict[Contender, list[float]], program: str, dropout: float) -> Contender | None:
    """The fastest mode of a program at one dropout rate at all places, by the median; None where there is none."""
    modes = [one for one in seconds if (one.program, one.dropout) == (program, dropout) and one.mode != RECIPE]
    return min(modes, key=lambda one: Spread.of(seconds[one]).median, default=None)


def make_row(
    contender: Contender, seconds: dict[Contender, list[float]], peer: Contender | None, tokens: int, flops: int
) -> dict[str, Any]:
    """One contender's figures, against the peer's best mode at the same dropout rate."""
    speed = rate(tokens, seconds[contender])
    return {
        **asdict(contender),
        "tokens_per_second": asdict(speed),
        "gflops": speed.median * flops / 1e9,
        "ratio_to_nanogpt": asdict(speed_ratio(seconds[contender], seconds[peer])) if peer else None,
    }


def print_report(report: dict[str, Any]) -> None:
    """The tables, for people: median (smallest-largest) of the rounds."""
    console = Console(highlight=False, width=80)
    console.print(heading(report["machine"], report["versions"]))
    for workload in report["workloads"]:
        console.print(f"\n{title_of(workload)}", style="bold")
        console.print(make_table(workload, report["matrix_gflops"]))
        if workload["ratio_to_nanogpt"]:
            dropout, ratio = workload["dropout"], workload["ratio_to_nanogpt"]
            console.print(f"at its published dropout, {dropout}: {ratio:.2f} times nanoGPT's best mode")
    if report["quick"]:
        rows = report["workloads"][0]["batch_size"]
        console.print(
            f"\n--quick: {rows} rows of {SHAKESPEARE.name} instead of {SHAKESPEARE.batch_size}, few rounds;\n"
            "small differences mean nothing"
        )
    for line in report["missing"]:
        console.print(line)


def title_of(workload: dict[str, Any]) -> str:
    """The shape, and what training it costs."""
    shape = (
        "{name}: {num_layers} layers, {num_heads} heads, width {width}, context {context_length}, batch {batch_size}"
    )
    cost = f"{workload['parameters']:,} parameters, {workload['flops_per_token'] / 1e6:.1f} MFLOP a token"
    return f"{shape.format_map(workload)}\n{cost}"


def make_table(workload: dict[str, Any], matrix_gflops: float) -> Table:
    """A row for each contender; its share of the machine's fastest product in bfloat16."""
    table = Table(box=None, pad_edge=False)
    table.add_column("dropout")
    table.add_column("program")
    for column in ("tokens/s", "GFLOP/s", "of peak", "to nanoGPT's best"):
        table.add_column(column, justify="right")
    for row in workload["contenders"]:
        ratio = row["ratio_to_nanogpt"]
        table.add_row(
            str(row["dropout"]),
            f"{row['program']} {row['mode']}",
            str(Spread(**row["tokens_per_second"])),
            f"{row['gflops']:.0f}",
            f"{row['gflops'] / matrix_gflops:.0%}",
            str(Spread(**ratio)) if ratio else "-",
        )
    return table


if __name__ == "__main__":
    main()
