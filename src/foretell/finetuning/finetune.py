"""Fine-tuning with a head: the task of labelled texts as the protocol sees it."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from foretell.errors import CheckpointError, UsageError
from foretell.finetuning.head import head_of, with_head
from foretell.finetuning.input_format import choose_tokens
from foretell.finetuning.report import write_report
from foretell.finetuning.request import DROPOUT, FinetuneRequest, LabelledFiles, read_files
from foretell.finetuning.settings import FinetuneConfig, HeadSettings
from foretell.finetuning.task import FinetuneTask
from foretell.language_model import LanguageModel, load_model
from foretell.loading import Start
from foretell.model.init import weight_shapes
from foretell.runs.run import Run
from foretell.saved_model.model_parts import LORA, add_adapters
from foretell.session.duration import choose_steps
from foretell.session.protocol import Choice, Machine, Training, run_training
from foretell.session.reporter import Reporter
from foretell.session.resources import Footprint
from foretell.session.session import Session

NO_START = "give a MODEL to start from: foretell finetune MODEL DATA"


class FinetuneTraining(Training[FinetuneRequest, FinetuneTask]):
    """Training with a head on labelled texts. The run keeps copies of the files."""

    verb = "finetune"

    @property
    def start(self) -> Start:
        if self.request.start is None:
            raise UsageError(NO_START)
        return self.request.start

    def read(self, run: Run, reporter: Reporter) -> LabelledFiles:
        request = self.request
        assert request.data is not None
        head = {"pool": "extract", **request.section("head")}
        files = read_files(request.data, request.dev, request.tuning(), head, request.columns, request.seed)
        for part, path in (("data", request.data), ("dev", request.dev)):
            if path is not None:
                run.keep_file(path, part)
        return files

    def reopen(self, run: Run, record: dict[str, Any]) -> LabelledFiles:
        config = FinetuneConfig.model_validate(record["config"])
        data, head = run.kept_file("data"), config.head
        if data is None:
            raise CheckpointError(f"{run.tokens / 'data'} is missing; restore it, or start again with another --out")
        settings = {"pool": head.pool, "truncate": head.truncate}
        files = read_files(data, run.kept_file("dev"), config.finetuning, settings, head.columns, config.training.seed)
        return replace(files, split_rule=record.get("split", files.split_rule))

    def choose(self, data: LabelledFiles, machine: Machine) -> Choice:
        request, start = self.request, self.start
        model = start.config.replaced(**{"dropout": DROPOUT, **request.section("model")})
        head = data.settings
        config = FinetuneConfig(
            model=model,
            finetuning=request.tuning(),
            head=head.model_copy(update={"tokens": choose_tokens(start.tokenizer, head.task, head.pool)}),
            training=request.training_config(len(data.train), model.width),
            lora=request.lora_config(),
        )
        if request.minutes is None:
            return Choice(config, start.name, [])
        seconds = self.seconds_per_step(config, data, machine)
        steps, why = choose_steps(request.minutes, request.minutes, seconds, f"{seconds:.2f} s per step")
        training = request.training_config(len(data.train), model.width, steps)
        return Choice(config.model_copy(update={"training": training}), start.name, [f"steps       {steps:,}: {why}"])

    def footprint(self, config: FinetuneConfig, data: LabelledFiles) -> Footprint:
        """The memory of a row of one token at least: texts have no length before they are encoded."""
        return Footprint(weight_shapes(config.model), config.model.replaced(context_length=1))

    def first_model(self, config: FinetuneConfig, data: LabelledFiles, start: Start | None) -> LanguageModel:
        """The start's weights with a new head, rows for new tokens, and LoRA updates if they are asked for."""
        if start is None:
            raise UsageError(NO_START)
        shape = config.model.replaced(vocab_size=start.config.vocab_size)
        untuned = replace(start.model, decoder=start.decoder(shape), notes=())
        model = with_head(untuned, config.head, config.training.seed)
        if config.lora is None:
            return model
        adapters = add_adapters(model.decoder, config.lora, config.training.seed)
        return replace(model, parts={**model.parts, LORA: adapters})

    def load_model(self, directory: Path, device: torch.device) -> LanguageModel:
        return load_model(directory, device, for_training=True)

    def make_task(
        self, config: FinetuneConfig, data: LabelledFiles, model: LanguageModel, about: dict[str, Any]
    ) -> FinetuneTask:
        config = config.model_copy(update={"model": model.config})  # with the rows of new tokens
        return FinetuneTask(config, data.encoded(model, head_of(model).settings), model, about)

    def describe(self, task: FinetuneTask) -> list[str]:
        head, data, training = task.head.settings, task.data, task.config.training
        names = {name: token for name, token in head.tokens.model_dump().items() if token}
        tokens = ", ".join(f"{name} {token}" for name, token in names.items()) or "no new tokens"
        longest = max(example.length for example in data.train)
        columns = ", ".join((*head.columns.texts, *head.columns.choices))
        return [
            f"columns     {columns}; label {head.columns.label}",
            f"examples    {len(data.train):,} to learn from, {len(data.dev):,} held out: {data.split_rule}",
            f"labels      {describe_targets(head, [example.target for example in data.train])}",
            f"input       pool {head.pool}, {tokens}; at most {longest} of {task.config.model.context_length} tokens",
            f"trained     {describe_trained(task.model)}",
            *task.about["reasons"],
            f"recipe      {training.steps:,} steps of {training.batch_size} rows, learning rate "
            f"{training.learning_rate:g}, lambda {task.config.finetuning.lm_weight:g}",
        ]

    def closed(self, session: Session[FinetuneTask]) -> None:
        if session.world.is_first:
            write_report(session)


def finetune(request: FinetuneRequest, reporter: Reporter, *, resume: bool = False) -> Session[FinetuneTask]:
    """Fine-tune as requested; with `resume`, continue the run if it exists. The report is in report.json."""
    return run_training(FinetuneTraining(request), reporter, resume=resume)


def describe_targets(head: HeadSettings, targets: list[float]) -> str:
    """The labels with their numbers of examples, or the scale of the numbers."""
    if head.task == "choice":
        return "the index of the right answer"
    if head.is_number:
        return f"a number, mean {head.mean:.4g}, deviation {head.deviation:.4g}"
    counts = Counter(int(target) for target in targets)
    shown = ", ".join(f"{label} {counts[index]:,}" for index, label in enumerate(head.labels[:8]))
    return shown + (" ..." if len(head.labels) > 8 else "")


def describe_trained(model: nn.Module) -> str:
    """The number of trained weights: `all 812,034 weights`, `2,048 of 812,034 weights (0.25%)`."""
    weights = list(model.parameters())
    count = sum(weight.numel() for weight in weights)
    trained = sum(weight.numel() for weight in weights if weight.requires_grad)
    return f"all {count:,} weights" if trained == count else f"{trained:,} of {count:,} weights ({trained / count:.2%})"
