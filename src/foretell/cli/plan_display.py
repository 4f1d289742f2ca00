"""Output of `foretell plan`: a plan as a table and as JSON, and the table of predictions next to measurements."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from foretell.files import format_bytes
from foretell.planning.memory import total
from foretell.planning.probe import Probe
from foretell.planning.ranges import Range

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import Console

    from foretell.config import ModelConfig, TrainingConfig
    from foretell.planning.backtest import Prediction
    from foretell.planning.calibration import Basis
    from foretell.planning.inference import Generation
    from foretell.planning.plan import Place, TrainingPlan

UNITS = ((86_400 * 365, "years"), (86_400, "days"), (3600, "hours"), (60, "minutes"), (1, "seconds"))


def plan_facts(
    size: str,
    model: ModelConfig,
    training: TrainingConfig,
    tokens: float,
    place: Place,
    trained: TrainingPlan | None,
    generated: Generation | None,
) -> dict[str, Any]:
    """The plan as plain values."""
    from foretell.model.cost import count_parameters

    accelerator = asdict(place.accelerator)
    facts = {"size": size, "parameters": count_parameters(model), "config": model.model_dump(mode="json")}
    facts |= {"gpu": accelerator, "gpus": place.count}
    if trained is not None:
        facts["training"] = {
            "tokens": tokens,
            "steps": math.ceil(tokens / (training.batch_size * model.context_length)),
            "batch_size": training.batch_size,
            "rows_at_once": trained.rows,
            "optimizer": training.optimizer,
            "parallel": training.parallel,
            "checkpoint_activations": list(training.checkpoint_activations),
            "memory": {name: asdict(size) for name, size in trained.memory.items()},
            "memory_together": asdict(total(trained.memory)),
            **asdict(trained.cost),
            "basis": basis_facts(trained.basis),
        }
    if generated is not None:
        facts["generating"] = asdict(generated)
    return facts


def basis_facts(basis: Basis | Probe) -> dict[str, Any]:
    """What the time is based on: a row or a probe."""
    if isinstance(basis, Probe):
        return {"kind": "probe", **asdict(basis)}
    row = basis.row
    measured = {"name": row.name, "gpu": row.device, "share_of_peak": row.share, "source": row.source}
    return {"kind": "row", **measured, "share": asdict(basis.share), "factor": basis.factor, "is_near": basis.is_near}


# --- the table -------------------------------------------------------------------------------------------------------


def show(console: Console, facts: dict[str, Any]) -> None:
    """Print the plan as a table of at most 80 columns."""
    config = facts["config"]
    console.print(f"{facts['size']}: {facts['parameters']:,} parameters, context {config['context_length']:,}")
    if training := facts.get("training"):
        show_training(console, facts, training)
    if generating := facts.get("generating"):
        show_generating(console, facts["gpu"], generating)


def show_training(console: Console, facts: dict[str, Any], training: dict[str, Any]) -> None:
    """Memory, cost, and what the time is based on."""
    again = ", activations computed again" if training["checkpoint_activations"] else ""
    spread = f" by {training['parallel']}" if facts["gpus"] > 1 else ""
    context = facts["config"]["context_length"]
    console.print(
        f"trained on {training['tokens']:.3g} tokens, {training['steps']:,} steps of {training['batch_size']:,} rows"
    )
    console.print(
        f"{facts['gpus']} x {facts['gpu']['name']}{spread}, {training['optimizer']}, {training['rows_at_once']:,} x "
        f"{context:,} tokens at once{again}"
    )
    console.print(f"\n{'memory of each device':<26} {'at least':>14} {'at most':>14}", style="bold")
    for name, size in training["memory"].items():
        console.print(line(f"  {name}", size, format_bytes))
    console.print(
        line(f"  together, of {format_bytes(facts['gpu']['memory'])}", training["memory_together"], format_bytes)
    )
    if training["memory_together"]["high"] > facts["gpu"]["memory"]:
        console.print("  it may not fit; fewer rows at once or --checkpoint-activations need less")
    console.print(f"\n{'training':<26} {'at least':>14} {'at most':>14}", style="bold")
    console.print(line("  FLOPs", training["flops"], lambda value: f"{value:.3g}"))
    console.print(line("  time", training["seconds"], format_seconds))
    console.print(line("  device hours", training["device_hours"], round_number))
    if training["money"]:
        console.print(line("  money", training["money"], round_number))
    show_basis(console, training["basis"], facts["gpu"]["name"])


def show_basis(console: Console, basis: dict[str, Any], gpu: str) -> None:
    """The row or the probe that the time is based on."""
    if basis["kind"] == "probe":
        console.print(
            f"based on a probe of this machine: {basis['layers']} layers, {basis['rows']} rows, "
            f"{basis['rate']['low'] / 1e9:,.0f} to {basis['rate']['high'] / 1e9:,.0f} GFLOP/s"
        )
        return
    console.print(f"based on {basis['name']} on {basis['gpu']}: {basis['share_of_peak']:.0%} of the peak")
    console.print(f"         {basis['source']}")
    console.print(f"assumed  {basis['share']['low']:.0%} to {basis['share']['high']:.0%} of the peak of {gpu}")
    if not basis["is_near"]:
        console.print(
            f"no measured training on {gpu} is within a factor of two in model size and FLOPs\n"
            f"(this one: a factor of {basis['factor']:,.1f}), so the range is wide"
        )


def show_generating(console: Console, gpu: dict[str, Any], generating: dict[str, Any]) -> None:
    """Cache, speed and users."""
    title = f"generating on one {gpu['name']}"
    console.print(f"\n{title:<26} {'at least':>14} {'at most':>14}", style="bold")
    for name, key in (("weights", "weights"), ("cache per token", "cache_per_token")):
        console.print(line(f"  {name}", asdict(Range.exact(generating[key])), format_bytes))
    console.print(line("  tokens/s, one user", generating["tokens_per_second"], round_number))
    console.print(line(f"  users of {generating['context']:,} tokens", generating["users"], round_number))
    console.print(
        f"one user: bound by reading {format_bytes(gpu['bandwidth'])}/s, with a full and an empty cache\n"
        "users: in a quarter of the memory, which the cache has by default, and in all;\n"
        f"together they get at most {round_number(generating['tokens_per_second_of_all'])} tokens/s"
    )


def line(name: str, size: dict[str, float], written: Callable[[float], str]) -> str:
    """A line of the table: a name and a range."""
    return f"{name:<26} {written(size['low']):>14} {written(size['high']):>14}"


def round_number(value: float) -> str:
    """A number with three digits or none after the point."""
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.3g}"


def format_seconds(seconds: float) -> str:
    """A time in the unit that suits it: 3.4 hours."""
    size, unit = next(((size, unit) for size, unit in UNITS if seconds >= 1.5 * size), UNITS[-1])
    return f"{round_number(seconds / size)} {unit}"


# --- predictions and measurements ------------------------------------------------------------------------------------


def backtest_facts(predictions: list[Prediction]) -> list[dict[str, Any]]:
    """The predictions as plain values."""
    return [
        {
            "name": each.row.name,
            "device": each.row.device,
            "device_hours": each.row.device_seconds / 3600,
            "predicted": asdict(each.device_seconds / 3600),
            "source": each.row.source,
            "basis": basis_facts(each.basis),
            "is_right": each.is_right,
        }
        for each in predictions
    ]


def show_backtest(console: Console, predictions: list[Prediction]) -> None:
    """Device hours of each measured training, predicted from the others and measured."""
    console.print(f"{'device hours of':<28} {'predicted':>20} {'measured':>10}  from", style="bold")
    for each in predictions:
        hours = each.device_seconds / 3600
        predicted = f"{hours_of(hours.low)} - {hours_of(hours.high)}"
        measured = hours_of(each.row.device_seconds / 3600)
        console.print(f"{each.row.name:<28} {predicted:>20} {measured:>10}  {each.basis.row.name[:18]}")


def hours_of(hours: float) -> str:
    """Hours with three digits."""
    return f"{hours:,.0f}" if hours >= 100 else f"{hours:.3g}"
