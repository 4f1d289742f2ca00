"""Start a run, or go on with one: from a request to a trained model."""

from __future__ import annotations

import os
import platform
import shutil
from importlib.metadata import version
from typing import Any

import torch

from foretell.config import Config, ModelConfig, TrainingConfig, make_section
from foretell.data.loader import check_enough_tokens
from foretell.device import choose_device, choose_training_dtype
from foretell.files import sync
from foretell.language_model import load_model
from foretell.model.cost import count_parameters
from foretell.model.decoder import Decoder
from foretell.model.init import make_decoder
from foretell.pretraining.failures import memory_errors_explained
from foretell.pretraining.memory import check_batch_fits, check_disk_fits, check_model_fits
from foretell.pretraining.plan import Plan, plan_run
from foretell.pretraining.prepare import TokenizedText, open_tokens, tokenize_text
from foretell.pretraining.reporter import Reporter
from foretell.pretraining.request import Request
from foretell.pretraining.session import ContinuedSession, Session
from foretell.pretraining.start import Start, find_start
from foretell.runs.checkpoint import list_checkpoints
from foretell.runs.lock import held
from foretell.runs.run import Run, is_run, is_unfinished


def pretrain(request: Request, reporter: Reporter, *, resume: bool = False) -> Session:
    """Train as requested; with `resume`, go on with the run where it exists."""
    with held(request.out), memory_errors_explained():
        if resume and is_unfinished(request.out):
            Run.clear_unfinished(request.out, request.described)
            reporter.note(f"starting    {request.out} again: it was interrupted before its first step")
        prepare = resume_session if resume and is_run(request.out) else start_session
        session = prepare(request, reporter)
        session.go()
    return session


def start_session(request: Request, reporter: Reporter) -> Session:
    """A new run directory with the tokens in it, and a new model; nothing is left behind where that fails."""
    device = choose_device(request.device)
    dtype = choose_training_dtype(request.dtype, device)
    if request.size is not None:  # before any text is read; the vocabulary can only add to it
        check_model_fits(request.model_config(request.size, vocab_size=1), device)
    run = Run.create(request.out, request.described)
    try:
        reporter.note(f"run         {run.directory}")
        for line in [] if request.start is None else request.start.notes():
            reporter.note(line)
        text = load_text(request, run, reporter)
        config, plan = configure(request, text, device, dtype)
        check_disk_fits(config, run.directory)
        for line in describe(config, plan, text, device, dtype):
            reporter.note(line)
        decoder = first_decoder(config, request.start)
        session = session_class(request.start)(run, config, text, decoder, device, dtype, reporter)
        session.check_mask()
        environment = describe_environment(device, dtype)
        record = {
            "config": config.model_dump(mode="json"),
            "data": request.described,
            "size": plan.size,
            "reasons": plan.reasons,
            "split": text.split_rule,
            **({"from": request.start.record()} if request.start else {}),
            "device": environment["device"],
            "dtype": environment["dtype"],
        }
        run.write_record(record, environment)
    except BaseException:
        shutil.rmtree(run.directory, ignore_errors=True)
        raise
    return session


def resume_session(request: Request, reporter: Reporter) -> Session:
    """The run as it was after its last intact checkpoint, or before its first step where there is none yet."""
    run = Run.open(request.out)
    record = run.record()
    config = make_section(Config, record["config"], str(run.directory))
    text = open_tokens(run.tokens)
    text.store.verify()  # a changed id would be learned without a word
    request.check_unchanged(config, record["size"])
    request.check_exportable(config.model)
    request.check_same_data(record["data"], text.tokenizer)
    request.check_same_start(record.get("from"))
    device, dtype = resumed_precision(request, record, reporter)
    config = resumed_accumulation(request, run, config, reporter)
    note_other_machine(run, describe_environment(device, dtype), reporter)
    run.clear_leftovers()
    if request.minutes is not None:
        reporter.note(f"steps       {config.training.steps:,}, as fixed when the run was started")
    if not list_checkpoints(run.checkpoints):
        reporter.note(f"resuming    {run.directory} from the start: it was stopped before its first checkpoint")
        run.forget_metrics_after(0)
        start = find_start(record.get("from"), run.directory)
        return session_class(start)(run, config, text, first_decoder(config, start), device, dtype, reporter)
    checkpoint = run.last_intact(reporter.note)
    model = load_model(checkpoint.directory, device, for_training=True)
    session = Session(run, config, text, model.decoder, device, dtype, reporter)
    session.restore(checkpoint)
    session.check_mask()
    reporter.note(f"resuming    {run.directory} after step {checkpoint.step:,} of {config.training.steps:,}")
    return session


def resumed_precision(request: Request, record: dict[str, Any], reporter: Reporter) -> tuple[torch.device, torch.dtype]:
    """Device and precision of the run, so that it stays the same one; a wish for others is granted and said."""
    device = choose_device(record["device"] if request.device == "auto" else request.device)
    dtype = choose_training_dtype(record["dtype"] if request.dtype == "auto" else request.dtype, device)
    now = (device.type, str(dtype).removeprefix("torch."))
    if now != (record["device"], record["dtype"]):
        started = f"{record['device']} in {record['dtype']}"
        reporter.note(
            f"precision   {now[0]} in {now[1]}, not {started} as before: the result will differ in the last digits"
        )
    return device, dtype


def resumed_accumulation(request: Request, run: Run, config: Config, reporter: Reporter) -> Config:
    """The configuration with the accumulation that is now asked for, which decides about memory and not the result."""
    wanted = request.section("training").get("accumulation", config.training.accumulation)
    training = make_section(TrainingConfig, {**config.training.model_dump(), "accumulation": wanted}, "training")
    if training.accumulation == config.training.accumulation:
        return config
    reporter.note(
        f"accumulation {training.accumulation}, not {config.training.accumulation} as before: the result will "
        "differ in the last digits"
    )
    changed = config.model_copy(update={"training": training})
    record = run.record()
    record["config"]["training"]["accumulation"] = training.accumulation
    run.replace_record(record)
    return changed


def note_other_machine(run: Run, now: dict[str, Any], reporter: Reporter) -> None:
    """Say where the run goes on under circumstances that change the last digits."""
    before = run.environment()
    changed = [name for name in ("processor", "threads", "torch") if before.get(name, now[name]) != now[name]]
    if changed:
        seen = ", ".join(f"{name} {now[name]}, not {before[name]}" for name in changed)
        reporter.note(f"machine     {seen} as before: the result may differ in the last digits")


def load_text(request: Request, run: Run, reporter: Reporter) -> TokenizedText:
    """The tokens of the request: a store that is there, or one made now inside the run."""
    if request.tokens is not None:
        text = open_tokens(request.tokens, request.given_tokenizer)
        shutil.copytree(request.tokens, run.tokens, dirs_exist_ok=True)
        for path in run.tokens.iterdir():
            sync(path)
        return text
    tokenizer_config, data_config = request.tokenizer_config(), request.data_config()
    return tokenize_text(request.source, tokenizer_config, data_config, run.tokens, reporter, request.given_tokenizer)


def configure(request: Request, text: TokenizedText, device: torch.device, dtype: torch.dtype) -> tuple[Config, Plan]:
    """The configuration, with size and steps chosen where the request leaves them open."""
    vocab_size = text.tokenizer.vocab_size
    smallest = request.model_config(request.size or "toy", vocab_size)
    check_enough_tokens(len(text.store.split("train")), smallest.context_length)

    def model(size: str) -> ModelConfig:
        config = request.probed_config(size, vocab_size)
        check_model_fits(config, device)
        return config

    def training(size: str, model: ModelConfig, steps: int) -> TrainingConfig:
        config = request.training_config(size, model, steps)
        check_batch_fits(model, config, device)
        return config

    plan = plan_run(
        model,
        training,
        len(text.store.split("train")),
        size=request.given_size,
        minutes=request.minutes,
        steps=request.steps,
        device=device,
        dtype=dtype,
    )
    config = request.config(plan.size, vocab_size, plan.steps, len(text.store.split("train")))
    check_model_fits(config.model, device)
    check_batch_fits(config.model, config.training, device)
    return config, plan


def first_decoder(config: Config, start: Start | None) -> Decoder:
    """What a run begins with: a new model, or the one that it goes on from."""
    return make_decoder(config.model, config.training.seed) if start is None else start.decoder(config.model)


def session_class(start: Start | None) -> type[Session]:
    """A new model is looked at in another way than one that has learned already."""
    return Session if start is None else ContinuedSession


def describe(config: Config, plan: Plan, text: TokenizedText, device: torch.device, dtype: torch.dtype) -> list[str]:
    """What will be trained on what, and why, in a few lines."""
    train, held_out = text.store.split("train"), text.store.split("validation")
    model, training = config.model, config.training
    return [
        f"text        {train.bytes:,} bytes to learn from, {held_out.bytes:,} held out: {text.split_rule}",
        f"tokens      {len(train):,} and {len(held_out):,}, {train.bytes / max(1, len(train)):.2f} bytes each, "
        f"vocabulary {model.vocab_size:,}",
        *plan.reasons,
        f"model       {plan.size}, {count_parameters(model):,} parameters: {model.num_layers} layers, "
        f"{model.num_heads} heads, width {model.width}, context {model.context_length}",
        f"dropout     {describe_dropout(config, len(train))}",
        f"recipe      {training.optimizer}, learning rate {training.learning_rate:g}, {training.schedule} schedule, "
        f"{training.batch_size:,} rows a step",
        f"machine     {device.type}, {torch.get_num_threads()} threads, {str(dtype).removeprefix('torch.')} products",
    ]


def describe_dropout(config: Config, train_tokens: int) -> str:
    """The rates, beside how often the text is read."""
    rates = config.model.dropout
    training = config.training
    epochs = training.steps * training.batch_size * config.model.context_length / train_tokens
    shown = f"{rates.residual:g}" if rates.attention == 0 and rates.embedding == rates.residual else str(rates)
    return f"{shown}, for a text that is read {epochs:.1f} times"


def describe_environment(device: torch.device, dtype: torch.dtype) -> dict[str, Any]:
    """Versions and machine, for whoever reads the run later."""
    return {
        "foretell": version("foretell"),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": version("numpy"),
        "platform": platform.platform(),
        "processor": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "device": device.type,
        "dtype": str(dtype).removeprefix("torch."),
    }
