"""What a user asks to be tuned on what: checked, completed with defaults, and turned into examples and settings."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any

from foretell.config import TrainingConfig, check_known, make_section, translate_training_input
from foretell.data.rows import RowFile
from foretell.device import DeviceName, DtypeName
from foretell.errors import ConfigError
from foretell.finding import default_run_directory
from foretell.finetuning.batches import EncodedExample
from foretell.finetuning.columns import find_columns
from foretell.finetuning.dev_split import describe_split, split_off_dev
from foretell.finetuning.examples import Example, read_examples
from foretell.finetuning.input_format import InputFormat, check_cuts, choose_tokens
from foretell.finetuning.settings import Columns, HeadSettings, Pool, TaskName, Truncate, TuningSettings
from foretell.finetuning.targets import target_of, with_targets
from foretell.finetuning.task import TaskData
from foretell.language_model import LanguageModel
from foretell.text import Tokenizer

EPOCHS, BATCH_SIZE, LEARNING_RATE = 3.0, 32, 6.25e-5  # Radford et al. 2018, section 4.1
DROPOUT = 0.1
SMALL_WIDTH = 512  # below it a model learns with the rate below; larger ones with the paper's
SMALL_LEARNING_RATE = 5e-4
WARMUP_SHARE = 0.002  # of the steps, as in the paper
EVALUATIONS_PER_EPOCH = 2

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class FinetuneRequest:
    """A model, a file of examples, and settings; what is left out gets its default."""

    data: Path
    out: Path
    tuning: TuningSettings
    dev: Path | None = None
    columns: Columns = field(default_factory=lambda: Columns(texts=()))
    pool: Pool = "extract"
    truncate: Truncate | None = None
    epochs: float = EPOCHS
    dropout: float | None = None
    training: Mapping[str, Any] = field(default_factory=dict)
    device: DeviceName = "auto"
    dtype: DtypeName = "auto"

    def __post_init__(self) -> None:
        for key in self.training:
            check_known(key, tuple(TrainingConfig.model_fields), "key in training:")
        make_section(TrainingConfig, {"steps": 1, **translate_training_input(self.training)}, "training")
        if not 0 < self.epochs <= 10_000:
            raise ConfigError(f"epochs must be a positive number of at most 10,000, not {self.epochs:g}")

    @property
    def described(self) -> list[str]:
        """The files, as run.json names them."""
        return [str(self.data), *([str(self.dev)] if self.dev else [])]

    def file(self, path: Path) -> RowFile:
        return RowFile(path, self.tuning.encoding, self.tuning.names)

    @cached_property
    def examples(self) -> LabelledFiles:
        """The examples of the files; read once."""
        file = self.file(self.data)
        columns = find_columns(file.first_columns(), self.tuning.task, self.columns, str(self.data))
        train = read_examples(file, columns, self.tuning.task)
        settings = HeadSettings(task=self.tuning.task, pool=self.pool, truncate=self.truncate, columns=columns)
        settings = with_targets(settings, train)
        seed = make_section(TrainingConfig, {"steps": 1, **self.training}, "training").seed
        if self.dev is not None:
            dev = read_examples(self.file(self.dev), columns, self.tuning.task)
            return LabelledFiles(settings, train, dev, f"dev is {self.dev}")
        fraction, by_label = self.tuning.dev_fraction, not settings.is_number
        train, dev = split_off_dev(train, fraction, seed, by_label)
        return LabelledFiles(settings, train, dev, describe_split(fraction, seed, by_label))

    def head_settings(self, tokenizer: Tokenizer) -> HeadSettings:
        """The settings of a new head on a model with this tokenizer."""
        settings = self.examples.settings
        return settings.model_copy(update={"tokens": choose_tokens(tokenizer, settings.task, settings.pool)})

    def training_config(self, examples: int, width: int) -> TrainingConfig:
        """The settings of the training, those of the paper where none are given."""
        given = translate_training_input(self.training)
        checked = make_section(TrainingConfig, {"steps": 1, "batch_size": BATCH_SIZE, **given}, "training")
        batch_size = min(checked.batch_size, examples)
        per_epoch = examples // batch_size
        steps = checked.steps if "steps" in given else max(1, round(self.epochs * per_epoch))
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


@dataclass(frozen=True)
class LabelledFiles:
    """Training and held-out examples, what the head predicts for them, and the rule of the split."""

    settings: HeadSettings
    train: list[Example]
    dev: list[Example]
    split_rule: str

    def encoded(self, model: LanguageModel, settings: HeadSettings) -> TaskData:
        """The examples as token sequences of a model; what does not fit is reported, or refused."""
        inputs = InputFormat(model.tokenizer, settings, model.config.context_length)
        encoded = encode_examples([*self.train, *self.dev], inputs, settings)
        count = len(self.train)
        return TaskData(encoded[:count], encoded[count:], self.split_rule, digest(self.train, self.dev))


def encode_examples(examples: Sequence[Example], inputs: InputFormat, settings: HeadSettings) -> list[EncodedExample]:
    """Examples as token sequences with their targets."""
    encoded = inputs.encode_all([example.texts for example in examples])
    if line := check_cuts(encoded, [example.where for example in examples], settings, inputs.context_length):
        logger.warning(line)
    return [
        EncodedExample(texts.sequences, target_of(example, settings), example.where)
        for texts, example in zip(encoded, examples, strict=True)
    ]


def digest(*parts: Sequence[Example]) -> str:
    """A hash of all texts and labels in their order."""
    state = hashlib.sha256()
    for part in parts:
        for example in part:
            state.update("\0".join((*example.texts, example.label, "")).encode("utf-8", "surrogatepass"))
        state.update(b"\n")
    return state.hexdigest()[:16]


def make_request(
    data: str | Path,
    out: str | Path | None = None,
    task: TaskName = "classify",
    *,
    text_column: str | Sequence[str] = (),
    label_column: str | None = None,
    choice_column: Sequence[str] = (),
    columns: Sequence[str] = (),
    dev: str | Path | None = None,
    epochs: float | None = None,
    dropout: float | None = None,
    pool: Pool = "extract",
    truncate: Truncate | None = None,
    training: Mapping[str, Any] = MappingProxyType({}),
    device: DeviceName = "auto",
    dtype: DtypeName = "auto",
    **tuning: Any,
) -> FinetuneRequest:
    """A request from the options of the command line; `tuning` are further fields of `TuningSettings`."""
    texts = (text_column,) if isinstance(text_column, str) else tuple(text_column)
    return FinetuneRequest(
        data=Path(data),
        out=default_run_directory([data]) if out is None else Path(out),
        tuning=make_section(TuningSettings, {"task": task, "names": tuple(columns), **tuning}, "finetuning"),
        dev=None if dev is None else Path(dev),
        columns=Columns(texts=texts, label=label_column, choices=tuple(choice_column)),
        pool=pool,
        truncate=truncate,
        epochs=EPOCHS if epochs is None else epochs,
        dropout=DROPOUT if dropout is None else dropout,
        training=training,
        device=device,
        dtype=dtype,
    )
