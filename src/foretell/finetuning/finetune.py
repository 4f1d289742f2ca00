"""Fine-tuning with a head: the request, and the training as the protocol sees it."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

from torch import nn

from foretell.config import Section, TrainingConfig, make_section
from foretell.finetuning.baseline import tuned_baseline
from foretell.finetuning.figures import describe_figures
from foretell.finetuning.head import with_head
from foretell.finetuning.inputs import InputFormat, choose_tokens, with_input_tokens
from foretell.finetuning.kind import kind_of
from foretell.finetuning.report import compared, write_report
from foretell.finetuning.settings import Columns, FinetuneConfig, Pool, Truncate, TuningSettings
from foretell.finetuning.task import FinetuneTask, LabelledFiles, TaskData, read_files
from foretell.finetuning.tuning import SMALL_WIDTH, TunedTraining, with_updates
from foretell.language_model import LanguageModel
from foretell.loading import Start
from foretell.model.lora import LoRAConfig
from foretell.runs.run import Run
from foretell.session.machine import Footprint
from foretell.session.protocol import kept_data
from foretell.session.reporter import Reporter
from foretell.session.request import TrainingRequest
from foretell.session.session import Session
from foretell.text import Tokenizer

EPOCHS, BATCH_SIZE, LEARNING_RATE = 3.0, 32, 6.25e-5  # Radford et al. 2018, section 4.1
DROPOUT = 0.1
SMALL_LEARNING_RATE = 5e-4  # for models below SMALL_WIDTH
WARMUP_SHARE = 0.002  # of the steps, as in the paper
EVALUATIONS_PER_EPOCH = 2

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class FinetuneRequest(TrainingRequest):
    """A model, a file of examples, and settings. Only resuming needs no data and no model."""

    config_type: ClassVar[type[Section]] = FinetuneConfig

    data: Path | None = None
    dev: Path | None = None
    columns: Columns = field(default_factory=lambda: Columns(texts=()))

    @property
    def described(self) -> list[str]:
        return [str(path) for path in (self.data, self.dev) if path is not None]

    def tuning(self) -> TuningSettings:
        return make_section(TuningSettings, self.section("finetuning"), "finetuning")

    @property
    def seed(self) -> int:
        """The seed of the training, which also chooses the held-out examples."""
        seeds = {key: value for key, value in self.section("training").items() if key == "seed"}
        return make_section(TrainingConfig, {"steps": 1, **seeds}, "training").seed

    def check_same_run(self, config: FinetuneConfig, record: Mapping[str, Any]) -> None:
        super().check_same_run(config, record)
        for name, value in self.columns.model_dump().items():
            old = getattr(config.head.columns, name)
            if value not in (None, (), old):
                raise self.changed(f"{name} in the columns", old, value)

    def training_config(self, examples: int, width: int, steps: int | None = None) -> TrainingConfig:
        """The settings of the training; the paper's where none are given."""
        given = self.section("training")
        checked = make_section(TrainingConfig, {"steps": 1, "batch_size": BATCH_SIZE, **given}, "training")
        batch_size = min(checked.batch_size, examples)
        per_epoch = examples // batch_size
        by_epochs = max(1, round((self.epochs or EPOCHS) * per_epoch))
        steps = checked.steps if "steps" in given else steps or by_epochs
        every = max(1, per_epoch // EVALUATIONS_PER_EPOCH)
        defaults = {
            "steps": steps,
            "learning_rate": LEARNING_RATE if width >= SMALL_WIDTH else SMALL_LEARNING_RATE,
            "schedule": "linear",
            "final_learning_rate_share": 0.0,
            "warmup_steps": max(1, round(WARMUP_SHARE * steps)),
            "weight_decay": 0.01,
            "beta2": 0.999,
            "patience": 6,
            "evaluate_every": every,
            "log_every": max(1, min(10, steps // 50)),
            "checkpoint_every": max(every, steps // 5),
            "keep_checkpoints": 1,
        }
        return make_section(TrainingConfig, {**defaults, **given, "steps": steps, "batch_size": batch_size}, "training")


class FinetuneTraining(TunedTraining[FinetuneRequest, FinetuneTask]):
    """Training with a head on labelled texts. The run keeps copies of the files."""

    verb = "finetune"
    encoded: TaskData | None = None
    baseline: dict[str, Any]

    def read(self, run: Run, reporter: Reporter) -> LabelledFiles:
        request = self.request
        assert request.data is not None
        head = request.section("head")
        files = read_files(request.data, request.dev, request.tuning(), head, request.columns, request.seed)
        kind_of(files.settings).check(request.tuning())
        for part, path in (("data", request.data), ("dev", request.dev)):
            if path is not None:
                run.keep_file(path, part)
        return files

    def reopen(self, run: Run, record: dict[str, Any]) -> LabelledFiles:
        config = FinetuneConfig.model_validate(record["config"])
        head = config.head
        settings = {"pool": head.pool, "truncate": head.truncate}
        files = read_files(
            kept_data(run), run.kept_file("dev"), config.finetuning, settings, head.columns, config.training.seed
        )
        return replace(files, split_rule=record.get("split", files.split_rule))

    def configure(self, data: LabelledFiles, steps: int | None = None) -> FinetuneConfig:
        request, start, head = self.request, self.start, data.settings
        model = start.config.replaced(**{"dropout": DROPOUT, **request.section("model")})
        tokens = choose_tokens(start.tokenizer, head.pool, kind_of(head).has_delimiter)
        return FinetuneConfig(
            model=model,
            finetuning=request.tuning(),
            head=head.model_copy(update={"tokens": tokens}),
            training=request.training_config(len(data.train), model.width, steps),
            lora=make_section(LoRAConfig, request.section("lora"), "lora") if "lora" in request.overrides else None,
        )

    def footprint(self, config: FinetuneConfig, data: LabelledFiles) -> Footprint:
        """A lower bound: the batch with the example of the most tokens, whose sequences the others are padded to."""
        tokenizer = with_input_tokens(self.start.tokenizer, config.head.tokens)
        examples = self.encode(config, data, tokenizer).train
        largest = max(examples, key=lambda example: example.length * len(example.sequences))
        row = config.model.replaced(context_length=largest.length)
        return self.footprint_of(config, row, config.training.batch_size * len(largest.sequences))

    def encode(self, config: FinetuneConfig, data: LabelledFiles, tokenizer: Tokenizer) -> TaskData:
        """The examples as tokens, made once: encoding many texts takes long."""
        if self.encoded is None:
            head, context_length = config.head, config.model.context_length
            self.encoded = data.encoded(InputFormat(tokenizer, head.tokens, context_length, head.truncate))
        return self.encoded

    def first_model(self, config: FinetuneConfig, data: LabelledFiles, start: Start | None) -> LanguageModel:
        """The start's weights with a new head, rows for new tokens, and LoRA updates if they are asked for."""
        assert start is not None, "a fine-tuning begins with a model"
        shape = config.model.replaced(vocab_size=start.config.vocab_size)
        untuned = replace(start.model, decoder=start.decoder(shape), notes=())
        return with_updates(with_head(untuned, config.head, config.training.seed), config.lora, config.training.seed)

    def make_task(
        self, config: FinetuneConfig, data: LabelledFiles, model: LanguageModel, about: dict[str, Any]
    ) -> FinetuneTask:
        config = config.model_copy(update={"model": model.config})  # with the rows of new tokens
        return FinetuneTask(config, self.encode(config, data, model.tokenizer), model, about)

    def describe(self, task: FinetuneTask) -> list[str]:
        head, data, training = task.head.settings, task.data, task.config.training
        names = {name: token for name, token in head.tokens.model_dump().items() if token}
        tokens = ", ".join(f"{name} {token}" for name, token in names.items()) or "no new tokens"
        longest = max(example.length for example in data.train)
        columns = ", ".join((*head.columns.texts, *head.columns.choices))
        return [
            f"columns     {columns}; label {head.columns.label}",
            f"examples    {len(data.train):,} to learn from, {len(data.dev):,} held out: {data.files.split_rule}",
            f"labels      {task.head.task.describe_targets([example.target for example in data.train])}",
            f"input       pool {head.pool}, {tokens}; at most {longest} of {task.config.model.context_length} tokens",
            f"trained     {describe_trained(task.model)}",
            *task.about["reasons"],
            f"recipe      {training.steps:,} steps of {training.batch_size} rows, learning rate "
            f"{training.learning_rate:g}, lambda {task.config.finetuning.lm_weight:g}",
        ]

    def opened(self, session: Session[FinetuneTask]) -> None:
        """Compute the baseline first, so that the training can be compared with it while it runs."""
        if session.world.is_first:
            files = session.task.data.files
            self.baseline = tuned_baseline(session.task.head.task, files.train, files.dev)
            logger.info(f"baseline    {describe_figures(compared(self.baseline))} with {self.baseline['rule']}")

    def closed(self, session: Session[FinetuneTask]) -> None:
        if session.world.is_first:
            write_report(session, self.baseline)


def describe_trained(model: nn.Module) -> str:
    """The number of trained weights: `all 812,034 weights`, `2,048 of 812,034 weights (0.25%)`."""
    weights = list(model.parameters())
    count = sum(weight.numel() for weight in weights)
    trained = sum(weight.numel() for weight in weights if weight.requires_grad)
    return f"all {count:,} weights" if trained == count else f"{trained:,} of {count:,} weights ({trained / count:.2%})"


def make_request(
    data: str | Path | None,
    *,
    task: str | None = None,
    text_column: str | Sequence[str] = (),
    label_column: str | None = None,
    choice_column: Sequence[str] = (),
    columns: Sequence[str] = (),
    dev: str | Path | None = None,
    dropout: float | None = None,
    pool: Pool | None = None,
    truncate: Truncate | None = None,
    training: Mapping[str, Any] | None = None,
    lora: Mapping[str, Any] | None = None,
    **options: Any,
) -> FinetuneRequest:
    """A request from options of the command line; `options` has fields of `TuningSettings` and `FinetuneRequest`."""
    tuning = {name: options.pop(name) for name in TuningSettings.model_fields if name in options}
    sections: dict[str, Mapping[str, Any]] = {
        "model": {"dropout": dropout},
        "finetuning": {**tuning, "task": task, "names": tuple(columns) or None},
        "head": {"pool": pool, "truncate": truncate},
    }
    given = {name: {key: value for key, value in each.items() if value is not None} for name, each in sections.items()}
    overrides = {name: values for name, values in {**given, "training": training}.items() if values}
    return FinetuneRequest(
        data=None if data is None else Path(data),
        dev=None if dev is None else Path(dev),
        columns=Columns(
            texts=(text_column,) if isinstance(text_column, str) else tuple(text_column),
            label=label_column,
            choices=tuple(choice_column),
        ),
        overrides=overrides if lora is None else {**overrides, "lora": lora},
        **options,
    )
