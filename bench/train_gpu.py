"""Training speed of GPT-2 124M's shape at context 1024 on one GPU, and what each measure for GPUs adds.

    python bench/train_gpu.py                              on a GPU: every variant, 32 rows at once; a few minutes
    python bench/train_gpu.py --optimizer muon --rows 64
    python bench/train_gpu.py --nanogpt DIR                with compiled nanoGPT (a checkout of its repository)
    python bench/train_gpu.py --quick --device cpu         a tiny shape, to try the script without a GPU

Each variant has one measure more than the one before it, and takes steps with `training_step` on random tokens. Before
the timings, a short training of a tiny model on the device is compared to the same one on the CPU in float32. MFU is
6N + 12LDT operations per token over --peak, the matrix rate of the data sheet in FLOP/s (default: H100 and H200, dense
bfloat16); the other share is of the matrix rate measured in this run.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from arguments import BenchmarkReport, make_parser, make_table, print_report, start_report
from measure import note
from rich.console import Console
from torch.profiler import ProfilerActivity, profile
from train import load_nanogpt, make_nanogpt

from foretell.config.model import ModelConfig
from foretell.config.training import TrainingConfig
from foretell.config.weight_shapes import count_parameters
from foretell.data.batch import Batch, make_batch
from foretell.model.cost import training_flops_per_token
from foretell.model.decoder import TiedHead
from foretell.model.dispatch import AlignedTiedHead
from foretell.model.init import make_decoder
from foretell.model.presets import preset_config
from foretell.model.surgery import recast, replace
from foretell.planning.speed import peak_flops
from foretell.system.device import choose_device, dtype_name, memory_of, to_device
from foretell.training.execution import compile_units, make_objective
from foretell.training.objective import Objective, logits_on_cpu
from foretell.training.optimizer import make_optimizer
from foretell.training.step import SkippingOptimizer, training_step

SEED = 1
PEAK = 989e12
TINY = {"num_layers": 2, "num_heads": 2, "width": 32, "context_length": 64, "vocab_size": 300}
WARM_UP, COMPARED_STEPS = 3, 20
TakeStep = Callable[[int], float]
LOSS_TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 2e-2}  # largest relative difference to the CPU in float32


@dataclass(frozen=True)
class Variant:
    """A way to train; the first is that of a CPU in float32."""

    name: str
    dtype: torch.dtype = torch.bfloat16
    is_aligned: bool = True
    is_chunked_for_gpu: bool = True
    waits: bool = False  # the host reads the loss of every step
    is_compiled: bool = False


VARIANTS = (
    Variant("float32", torch.float32, is_aligned=False, is_chunked_for_gpu=False, waits=True),
    Variant("bfloat16", is_aligned=False, is_chunked_for_gpu=False, waits=True),
    Variant("+ large chunks of logits", is_aligned=False, waits=True),
    Variant("+ aligned head", waits=True),
    Variant("+ the host does not wait"),
    Variant("+ compiled", is_compiled=True),
)


def main() -> None:
    """Compare the losses, measure every variant, and print a table or one JSON object."""
    parser = make_parser("Training speed of GPT-2 124M's shape on one GPU.", "a tiny shape and few steps")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--optimizer", choices=("adamw", "muon"), default="adamw")
    parser.add_argument("--rows", type=int, default=32, help="rows at once (default: 32)")
    parser.add_argument("--accumulate", type=int, default=1, metavar="N", help="micro-batches per step (default: 1)")
    parser.add_argument("--steps", type=int, default=20, help="timed steps of each variant (default: 20)")
    parser.add_argument("--nanogpt", type=Path, metavar="DIR", help="a checkout of github.com/karpathy/nanoGPT")
    parser.add_argument("--peak", type=float, default=PEAK, help="FLOP/s of the data sheet (default: 989e12)")
    arguments = parser.parse_args()
    device = choose_device(arguments.device)
    config = ModelConfig.model_validate(TINY) if arguments.quick else preset_config("gpt2")
    parts = arguments.accumulate
    training = TrainingConfig(
        steps=1,
        batch_size=arguments.rows * parts,
        gradient_accumulation_steps=parts,
        optimizer=arguments.optimizer,
        learning_rate=3e-4,
    )
    differences = {variant.name: compare_losses(variant, device) for variant in VARIANTS}
    matrix_rate = peak_flops(device, torch.bfloat16)
    rows = [
        measure(variant, config, training, device, 3 if arguments.quick else arguments.steps) for variant in VARIANTS
    ]
    if arguments.nanogpt:
        rows.append(measure_nanogpt(load_nanogpt(arguments.nanogpt), config, training, device, arguments.steps))
    flops = training_flops_per_token(config)
    for row in rows:
        used = row["tokens_per_second"] * flops
        row |= {"mfu": used / arguments.peak, "share_of_measured": used / matrix_rate}
        row |= {"loss_difference": differences.get(row["name"])}
    report = {
        **start_report("train_gpu"),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "device_memory": memory_of(device),
        "parameters": count_parameters(config),
        "flops_per_token": flops,
        "matrix_tflops": matrix_rate / 1e12,
        "rows": arguments.rows,
        "accumulate": parts,
        "optimizer": arguments.optimizer,
        "variants": rows,
        **profile_kernels(VARIANTS[-1], config, training, device),
    }
    print_report(report, print_tables, as_json=arguments.json)


def make_trained(
    variant: Variant, config: ModelConfig, training: TrainingConfig, device: torch.device, batch: Batch
) -> tuple[Objective, SkippingOptimizer]:
    """The objective and the optimizer of a variant, compiled where it says so."""
    objective = make_objective(make_decoder(config, SEED), device, variant.dtype)
    if not variant.is_chunked_for_gpu:
        objective.logits_at_once = logits_on_cpu(config.vocab_size)
    if not variant.is_aligned and isinstance(objective.decoder.head, AlignedTiedHead):
        replace(objective.decoder, "head", lambda head: recast(head, TiedHead))
    if variant.is_compiled and not compile_units(objective, first_part(batch, training), variant.dtype):
        raise SystemExit("bench/train_gpu.py: the model was not compiled; the log says why")
    return objective, make_optimizer(objective.decoder, training, variant.dtype)


def first_part(batch: Batch, training: TrainingConfig) -> Batch:
    return batch.rows(0, len(batch) // training.gradient_accumulation_steps)


def random_batch(config: ModelConfig, rows: int, seed: int = SEED) -> Batch:
    """Random tokens on the host, as a loader has them."""
    rng = np.random.default_rng(seed)
    return make_batch(rng.integers(0, config.vocab_size, (rows, config.context_length + 1)))


def compare_losses(variant: Variant, device: torch.device) -> float:
    """The largest relative difference of the losses of a short training from those on the CPU; exit if too large."""
    config, training = ModelConfig.model_validate(TINY), TrainingConfig(steps=1, batch_size=8, learning_rate=1e-3)
    batch = random_batch(config, 8)

    def losses(variant: Variant, device: torch.device) -> np.ndarray:
        objective, optimizer = make_trained(variant, config, training, device, batch)
        results = [
            training_step(objective, optimizer, batch, step, training, variant.dtype) for step in range(COMPARED_STEPS)
        ]
        return np.array([result.loss for result in results])

    expected = losses(VARIANTS[0], torch.device("cpu"))
    difference = float(np.abs(losses(variant, device) / expected - 1).max())
    if not difference < LOSS_TOLERANCE[variant.dtype]:
        raise SystemExit(f"bench/train_gpu.py: {variant.name}: losses differ from the CPU's by {difference:.2g}")
    return difference


def measure(
    variant: Variant, config: ModelConfig, training: TrainingConfig, device: torch.device, steps: int
) -> dict[str, Any]:
    """Speed and peak memory of a variant."""
    note(f"{variant.name}: {steps} steps")
    batches = [random_batch(config, training.batch_size, seed) for seed in range(4)]

    def prepare() -> TakeStep:
        objective, optimizer = make_trained(variant, config, training, device, batches[0])

        def take(step: int) -> float:
            result = training_step(objective, optimizer, batches[step % 4], step, training, variant.dtype)
            return result.loss if variant.waits or step == steps - 1 else 0.0

        return take

    settings = {**asdict(variant), "dtype": dtype_name(variant.dtype)}
    return settings | time_steps(prepare, training.batch_size * config.context_length, steps, device)


def measure_nanogpt(
    nanogpt: ModuleType, config: ModelConfig, training: TrainingConfig, device: torch.device, steps: int
) -> dict[str, Any]:
    """The same for nanoGPT in the best mode of its train.py: compiled, in bfloat16, and it does not wait for the loss.

    Its vocabulary is 50,304: ours, rounded up to a multiple of 64.
    """
    note(f"nanoGPT, compiled: {steps} steps")
    batches = [random_batch(config, training.batch_size, seed) for seed in range(4)]

    def prepare() -> TakeStep:
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
        model = make_nanogpt(nanogpt, config.replaced(vocab_size=-(-config.vocab_size // 64) * 64)).to(device)
        with contextlib.redirect_stdout(None):  # it prints parameter counts
            optimizer = model.configure_optimizers(1e-1, 3e-4, (0.9, 0.95), device.type)
        compiled = torch.compile(model)

        def take(step: int) -> float:
            batch = batches[step % 4]
            ids, targets = (to_device(each.contiguous(), device) for each in (batch.ids, batch.targets))
            with torch.autocast(device.type, dtype=torch.bfloat16):
                _, loss = compiled(ids, targets)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            return loss.item() if step == steps - 1 else 0.0

        return take

    return {"name": "nanoGPT, compiled"} | time_steps(
        prepare, training.batch_size * config.context_length, steps, device
    )


def time_steps(prepare: Callable[[], TakeStep], tokens: int, steps: int, device: torch.device) -> dict[str, Any]:
    """Speed and peak memory of training steps, the last of which waits for the device. tokens: in one step."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
    begun = time.perf_counter()
    take = prepare()
    for _ in range(WARM_UP):
        take(steps - 1)
    ready = time.perf_counter()
    for step in range(steps):
        take(step)
    seconds = (time.perf_counter() - ready) / steps
    return {
        "tokens_per_second": tokens / seconds,
        "milliseconds_per_step": seconds * 1e3,
        "seconds_until_ready": ready - begun,
        "peak_memory_bytes": torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None,
    }


def profile_kernels(
    variant: Variant, config: ModelConfig, training: TrainingConfig, device: torch.device, count: int = 12
) -> dict[str, Any]:
    """The time of all kernels of a step on a GPU, and the longest with their shares; nothing on a CPU."""
    if device.type != "cuda":
        return {"kernel_milliseconds": None, "kernels": []}
    batch = random_batch(config, training.batch_size)
    objective, optimizer = make_trained(variant, config, training, device, batch)
    for step in range(WARM_UP):
        _ = training_step(objective, optimizer, batch, step, training, variant.dtype).loss
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        _ = training_step(objective, optimizer, batch, WARM_UP, training, variant.dtype).loss
    events = [event for event in profiler.key_averages() if event.self_device_time_total > 0]
    events.sort(key=lambda event: event.self_device_time_total, reverse=True)
    total = sum(event.self_device_time_total for event in events)  # microseconds
    kernels = [
        {"kernel": event.key, "calls": event.count, "share": event.self_device_time_total / total}
        for event in events[:count]
    ]
    return {"kernel_milliseconds": total / 1e3, "kernels": kernels}


def print_tables(console: Console, report: BenchmarkReport) -> None:
    """The variants, then the kernels of the last one."""
    rows = f"{report['accumulate']} times {report['rows']} rows, {report['optimizer']}"
    console.print(f"\n{report['device']}, {report['parameters']:,} parameters, {rows}")
    console.print(f"fastest matmul {report['matrix_tflops']:.3g} TFLOP/s")
    table = make_table(("variant", "tokens/s", "MFU", "of measured", "GB", "loss"), words={"variant"})
    for row in report["variants"]:
        memory = "-" if row["peak_memory_bytes"] is None else f"{row['peak_memory_bytes'] / 1e9:.1f}"
        shares = f"{row['mfu']:.1%}", f"{row['share_of_measured']:.1%}"
        speed = f"{row['tokens_per_second']:,.0f}"
        difference = "" if row["loss_difference"] is None else f"{row['loss_difference']:.1e}"
        table.add_row(row["name"], speed, *shares, memory, difference)
    console.print(table)
    console.print("loss: largest relative difference of 20 losses of a tiny model from those on the CPU in float32")
    if report["kernel_milliseconds"]:
        compiled = next(row for row in report["variants"] if row["name"] == VARIANTS[-1].name)
        step = compiled["milliseconds_per_step"]
        console.print(f"{VARIANTS[-1].name}: kernels run for {report['kernel_milliseconds']:.1f} of {step:.1f} ms")
    for kernel in report["kernels"]:
        console.print(f"{kernel['share']:6.1%}  {kernel['calls']:4}  {kernel['kernel'][:60]}")


if __name__ == "__main__":
    main()
