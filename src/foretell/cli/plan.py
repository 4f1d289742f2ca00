"""`foretell plan --size SIZE`: memory and time of a training, and of generation, in advance."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from cyclopts import Parameter

from foretell.cli import arguments
from foretell.cli.terminal import report

BLOCKS = ["**.blocks.*"]


def plan(
    *,
    size: Annotated[str, Parameter(help="toy, tiny, ..., gpt2, gpt2-xl, gpt3-175b: a preset.")],
    tokens: Annotated[float | None, Parameter(help="Training tokens, as 30e9 (default: 20 per parameter).")] = None,
    gpus: Annotated[int, Parameter(help="Number of devices.")] = 1,
    gpu: Annotated[
        str, Parameter(help="a100, a100-40gb, h100, h200, l4, rtx4090; this: this machine, measured for seconds.")
    ] = "this",
    parallel: Annotated[
        Literal["ddp", "fsdp"] | None,
        Parameter(help="Copies of the weights on each device (ddp), or shards."),
    ] = None,
    checkpoint_activations: Annotated[bool, Parameter(help="Recompute the values of blocks for the gradient.")] = False,
    context: Annotated[int | None, Parameter(help="Generated tokens (default: the model's context).")] = None,
    only: Annotated[
        Literal["training", "generating"] | None,
        Parameter(help="Plan only training, or only generating."),
    ] = None,
    settings: Annotated[
        list[str] | None,
        Parameter(name="--set", help="Set a field, also as --model.width 256, --training.batch-size 64."),
    ] = None,
    json: arguments.Json = False,
) -> None:
    """Estimate the memory by part, operations and time of a training, and memory and speed of generating.

    Figures are ranges. The time follows from a measurement of this machine, or
    from the share of the peak that a training reached on a GPU.
    """
    from foretell.cli.training_verbs import check_tables
    from foretell.config.section import check_known
    from foretell.pretraining.plan import plan as make_plan

    chosen = [*(settings or []), *([] if parallel is None else [f"training.parallel={parallel}"])]
    chosen += [f"training.checkpoint_activations={BLOCKS}"] if checkpoint_activations else []
    overrides: dict[str, Any] = arguments.parse_settings(chosen)
    check_tables(overrides, "--set")
    for name in overrides:
        check_known(name, ("model", "training"), "section of a plan")
    report(make_plan(size, tokens, gpus=gpus, gpu=gpu, context=context, only=only, **overrides), json)
