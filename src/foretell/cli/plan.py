"""`foretell plan --size SIZE`: memory, time and money of a training before it starts, and generation."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from foretell.cli.arguments import Flag, Json, Whole, parse_settings
from foretell.cli.terminal import note, print_json, report, write
from foretell.errors import UsageError

if TYPE_CHECKING:
    from foretell.config import ModelConfig, TrainingConfig
    from foretell.pretraining.request import TextRequest

VOCABULARY = 8192  # of a size whose vocabulary comes from the training text
BLOCKS = ("**.blocks.*",)


def plan(
    *,
    size: Annotated[str | None, Parameter(help="toy, tiny, ..., gpt2, gpt2-xl, gpt3-175b: a preset.")] = None,
    tokens: Annotated[float | None, Parameter(help="To train on, such as 30e9; default: 20 per parameter.")] = None,
    gpus: Annotated[int, Whole, Parameter(help="How many devices.")] = 1,
    gpu: Annotated[
        str, Parameter(help="a100, a100-40gb, h100, h200, l4, rtx4090; this: this machine, measured for seconds.")
    ] = "this",
    price: Annotated[float | None, Parameter(help="Of one device for an hour.", show_default=False)] = None,
    parallel: Annotated[
        Literal["ddp", "fsdp"] | None,
        Parameter(help="Copies of the weights on each device (ddp), or shards.", show_choices=False),
    ] = None,
    checkpoint_activations: Annotated[
        bool, Flag, Parameter(help="Compute the values of blocks again for the gradient.")
    ] = False,
    context: Annotated[
        int | None, Whole, Parameter(help="Tokens of each user in generation; default: the model's context.")
    ] = None,
    only: Annotated[
        Literal["training", "generating"] | None,
        Parameter(help="One of the two: training or generating.", show_choices=False),
    ] = None,
    settings: Annotated[
        list[str] | None,
        Parameter(name="--set", negative="", help="Any field, also as --model.width 256, --training.batch-size 64."),
    ] = None,
    backtest: Annotated[bool, Flag, Parameter(help="Predict each measured training from the others.")] = False,
    json: Json = False,
) -> None:
    """What a training will need: memory by part, operations, time and money; and what generating will.

    Figures are ranges. The time follows from the nearest of a few published
    trainings, which is named, or from a measurement of this machine.
    """
    from foretell.planning import calibration
    from foretell.typesetting.text import document_text

    if backtest:
        rows = calibration.backtest()
        print_json([row.to_json() for row in rows]) if json else write(
            document_text(calibration.backtest_document(rows))
        )
        return
    if size is None:
        raise UsageError("give the --size of the model, such as gpt2-xl, or --backtest (foretell plan --help)")
    from foretell.planning.plan import Plan, find_devices, plan_generating, plan_training

    request = make_request(size, settings or [], parallel, checkpoint_activations)
    model, training, tokens = resolve(request, size, tokens, gpus)
    devices = find_devices(gpu, gpus)
    trained = None if only == "generating" else plan_training(model, training, tokens, devices, price)
    generated = None if only == "training" else plan_generating(model, devices, context)
    report(Plan(size, model, training, tokens, devices, trained, generated), json)


def make_request(size: str, settings: list[str], parallel: str | None, is_checkpointed: bool) -> TextRequest:
    """The request of such a training, without data."""
    from foretell.cli.training import check_tables
    from foretell.pretraining.request import TextRequest

    overrides: dict[str, Any] = parse_settings(settings)
    check_tables(overrides, "--set")
    chosen: dict[str, Any] = {} if parallel is None else {"parallel": parallel}
    if is_checkpointed:
        chosen["checkpoint_activations"] = BLOCKS
    if chosen:
        overrides["training"] = {**overrides.get("training", {}), **chosen}
    return TextRequest(source=lambda: (), names=[], out=Path("runs/plan"), size=size, overrides=overrides)


def resolve(
    request: TextRequest, size: str, tokens: float | None, gpus: int
) -> tuple[ModelConfig, TrainingConfig, float]:
    """Model, training and tokens, with what `train` chooses where the request leaves it open."""
    from foretell.model.cost import count_parameters
    from foretell.model.presets import PUBLISHED, SIZES
    from foretell.pretraining.resolve import TOKENS_PER_PARAMETER, training_config

    is_given = "vocab_size" in request.section("model")
    is_assumed = size in SIZES and not is_given
    if is_assumed:
        note(f"the vocabulary of {size} comes from the text; {VOCABULARY:,} is assumed (--model.vocab-size)")
    vocabulary = 1 if is_given else PUBLISHED.get(size, {}).get("vocab_size", VOCABULARY)
    model = request.model_config(size, vocabulary)
    training = training_config(request, size, model, request.steps or 1)
    if "batch_size" not in request.section("training"):
        least = max(1, gpus) * training.gradient_accumulation_steps
        training = training.model_copy(update={"batch_size": -(-training.batch_size // least) * least})
    if tokens is None and request.steps is not None:
        tokens = float(request.steps * training.batch_size * model.context_length)
    if tokens is None:
        tokens = float(TOKENS_PER_PARAMETER * count_parameters(model))
        note(f"--tokens is not given; {tokens:.3g} are {TOKENS_PER_PARAMETER} per parameter")
    return model, training, tokens
