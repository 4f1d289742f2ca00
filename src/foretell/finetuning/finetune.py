"""Fine-tuning from a request to a tuned model: start a run, or resume one."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import nn

from foretell.adapters import LORA, add_adapters
from foretell.config import TrainingConfig, make_section
from foretell.device import choose_device, choose_training_dtype
from foretell.errors import CheckpointError, ConfigError, UsageError
from foretell.finetuning.head import head_of, with_head
from foretell.finetuning.report import write_report
from foretell.finetuning.request import FinetuneRequest
from foretell.finetuning.settings import FinetuneConfig
from foretell.finetuning.task import FinetuneTask
from foretell.language_model import load_model
from foretell.runs.run import RESUMABLE, is_unfinished
from foretell.session.environment import log_other_machine, name_of, resumed_precision, resumed_training
from foretell.session.opening import is_resumed, last_checkpoint, new_run, open_run, training_in
from foretell.session.reporter import Reporter
from foretell.session.session import Session
from foretell.start import Start, find_start

logger = logging.getLogger(__name__)


def finetune_new(request: FinetuneRequest, start: Start, reporter: Reporter) -> Session[FinetuneTask]:
    """A new run, trained to its end; if it fails before its first step, nothing is left behind."""
    with training_in(request.out) as world:
        is_resumed(request.out, request.described, resume=is_unfinished(request.out))  # clears what was left
        session = start_session(request, start, reporter)
        session.go()
        if world.is_first:
            write_report(session)
    return session


def finetune_again(
    directory: Path,
    reporter: Reporter,
    device: str = "auto",
    dtype: str = "auto",
    training: Mapping[str, Any] = MappingProxyType({}),
) -> Session[FinetuneTask]:
    """Continue an interrupted run to its end, from its last checkpoint; `training` has settings that may change."""
    with training_in(directory) as world:
        session = resume_session(directory, reporter, device, dtype, training)
        session.go()
        if world.is_first:
            write_report(session)
    return session


def start_session(request: FinetuneRequest, start: Start, reporter: Reporter) -> Session[FinetuneTask]:
    """A session before its first step."""
    device = choose_device(request.device)
    dtype = choose_training_dtype(request.dtype, device)
    files = request.examples  # read before anything is written
    config = make_config(request, start)
    with new_run(request.out, request.described) as run:
        logger.info(f"run         {run.directory}")
        task = make_task(request, start, config)
        for line in describe_task(task, Counter(example.label for example in files.train)):
            logger.info(line)
        logger.info(f"machine     {device.type}, {torch.get_num_threads()} threads, {name_of(dtype)} products")
        session = Session(run, task, config.training, device, dtype, reporter)
        session.start()
    return session


def make_config(request: FinetuneRequest, start: Start) -> FinetuneConfig:
    """The configuration of a new run; the model's shape is that of the start, but for dropout."""
    changed = {} if request.dropout is None else {"dropout": request.dropout}
    model = start.config.replaced(**changed)
    return FinetuneConfig(
        model=model,
        finetuning=request.tuning,
        head=request.head_settings(start.tokenizer),
        training=request.training_config(len(request.examples.train), model.width),
    )


def make_task(request: FinetuneRequest, start: Start, config: FinetuneConfig) -> FinetuneTask:
    """The task before its first step: the start's weights and a new head."""
    untuned = replace(start.model, decoder=start.decoder(config.model), notes=())
    model = with_head(untuned, config.head, config.training.seed)
    if config.finetuning.lora is not None:
        adapters = add_adapters(model.decoder, config.finetuning.lora, config.training.seed)
        model = replace(model, parts={**model.parts, LORA: adapters})
    about: dict[str, Any] = {"data": request.described, "size": start.name, "reasons": [], "from": start.record()}
    # the configuration names the shape with the rows of new tokens
    config = config.model_copy(update={"model": model.config})
    return FinetuneTask(config, request.examples.encoded(model, config.head), model, about)


def describe_task(task: FinetuneTask, counts: Counter[str]) -> list[str]:
    """The model, its input format and the examples, in a few lines."""
    head, data, training = task.head.settings, task.data, task.config.training
    names = {name: token for name, token in head.tokens.model_dump().items() if token}
    tokens = ", ".join(f"{name} {token}" for name, token in names.items()) or "no new tokens"
    kinds = (
        f"a number, mean {head.mean:.4g}, deviation {head.deviation:.4g}"
        if head.is_number
        else ", ".join(f"{label} {counts[label]:,}" for label in head.labels[:8])
        + (" ..." if len(head.labels) > 8 else "")
    )
    longest = max(example.length for example in data.train)
    columns = ", ".join((*head.columns.texts, *head.columns.choices))
    return [
        f"columns     {columns}; label {head.columns.label}",
        f"examples    {len(data.train):,} to learn from, {len(data.dev):,} held out: {data.split_rule}",
        f"labels      {kinds}" if head.task != "choice" else "labels      the index of the right answer",
        f"input       pool {head.pool}, {tokens}; at most {longest} of {task.config.model.context_length} tokens",
        f"trained     {describe_trained(task.model)}",
        f"recipe      {training.steps:,} steps of {training.batch_size} rows, learning rate "
        f"{training.learning_rate:g}, lambda {task.config.finetuning.lm_weight:g}",
    ]


def describe_trained(model: nn.Module) -> str:
    """How many of the weights are trained: `all 812,034 weights`, `2,048 of 812,034 weights (0.25%)`."""
    weights = list(model.parameters())
    count = sum(weight.numel() for weight in weights)
    trained = sum(weight.numel() for weight in weights if weight.requires_grad)
    return f"all {count:,} weights" if trained == count else f"{trained:,} of {count:,} weights ({trained / count:.2%})"


def resume_session(
    directory: Path, reporter: Reporter, device_name: Any, dtype_name: Any, given: Mapping[str, Any]
) -> Session[FinetuneTask]:
    """The run as it was after its last intact checkpoint, or before its first step if it has none yet."""
    run = open_run(directory)
    record = run.record()
    if "head" not in record["config"]:
        raise UsageError(f"{directory} is not a fine-tuning with a head; resume it with the command that started it")
    config = make_section(FinetuneConfig, record["config"], str(directory))
    check_resumable(directory, config.training, given)
    config = config.model_copy(update={"training": resumed_training(run, config.training, given)})
    request = recorded_request(directory, record, config)
    device, dtype = resumed_precision(record, device_name, dtype_name)
    log_other_machine(run, device, dtype)
    run.clear_leftovers()
    checkpoint = last_checkpoint(run)
    start = find_start(record.get("from"), directory) if checkpoint is None else None
    if start is not None:
        logger.info(f"resuming    {directory} from the start: it was stopped before its first checkpoint")
        run.forget_metrics_after(0)
        return Session(run, make_task(request, start, config), config.training, device, dtype, reporter)
    assert checkpoint is not None, "a fine-tuning begins with a model"
    model = load_model(checkpoint.directory, device, for_training=True)
    about = {key: record[key] for key in ("data", "size", "reasons", "from") if key in record}
    data = request.examples.encoded(model, head_of(model).settings)
    session = Session(run, FinetuneTask(config, data, model, about), config.training, device, dtype, reporter)
    session.restore(checkpoint)
    logger.info(f"resuming    {directory} after step {checkpoint.step:,} of {config.training.steps:,}")
    return session


def check_resumable(directory: Path, training: TrainingConfig, given: Mapping[str, Any]) -> None:
    """Refuse settings that a resumed run cannot change."""
    asked = make_section(TrainingConfig, {**training.model_dump(), **given}, "training")
    for key in given.keys() - RESUMABLE:
        if getattr(asked, key, None) != getattr(training, key, None):
            raise ConfigError(
                f"{directory} was started with training.{key} = {getattr(training, key)}, not {given[key]}; leave it "
                "out to resume, or start again with another --out"
            )


def recorded_request(directory: Path, record: dict[str, Any], config: FinetuneConfig) -> FinetuneRequest:
    """The request that a run was started with, but for its model."""
    data, *dev = [Path(path) for path in record["data"]]
    for path in (data, *dev):
        if not path.exists():
            raise CheckpointError(f"{directory} was started from {path}, which is not there; resume from its folder")
    return FinetuneRequest(
        data=data,
        out=directory,
        tuning=config.finetuning,
        dev=dev[0] if dev else None,
        columns=config.head.columns,
        pool=config.head.pool,
        truncate=config.head.truncate,
        training={"seed": config.training.seed},
    )
