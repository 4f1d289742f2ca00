"""What a user asks to be tuned on what: checked, completed with defaults, and turned into examples and settings."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar

from foretell.config import Section, TrainingConfig, make_section
from foretell.data.table import open_table
from foretell.device import DeviceName, DtypeName
from foretell.finding import default_run_directory
from foretell.finetuning.batches import EncodedExample
from foretell.finetuning.columns import find_columns
from foretell.finetuning.dev_split import describe_split, split_off_dev
from foretell.finetuning.examples import Example, read_examples
from foretell.finetuning.input_format import InputFormat, check_cuts
from foretell.finetuning.settings import Columns, FinetuneConfig, HeadSettings, Pool, TaskName, Truncate, TuningSettings
from foretell.finetuning.targets import target_of, with_targets
from foretell.finetuning.task import TaskData
from foretell.language_model import LanguageModel
from foretell.loading import Start
from foretell.model.lora import LoRAConfig
from foretell.session.request import TrainingRequest

EPOCHS, BATCH_SIZE, LEARNING_RATE = 3.0, 32, 6.25e-5  # Radford et al. 2018, section 4.1
DROPOUT = 0.1
SMALL_WIDTH = 512  # below it a model learns with the rate below; larger ones with the paper's
SMALL_LEARNING_RATE = 5e-4
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

    def lora_config(self) -> LoRAConfig | None:
        return make_section(LoRAConfig, self.section("lora"), "lora") if "lora" in self.overrides else None

    def check_same_run(self, config: FinetuneConfig, record: Mapping[str, Any]) -> None:
        super().check_same_run(config, record)
        for name, value in self.columns.model_dump().items():
            old = getattr(config.head.columns, name)
            if value not in (None, (), old):
                raise self.changed(f"{name} in the columns", old, value)

    def training_config(self, examples: int, width: int, steps: int | None = None) -> TrainingConfig:
        """The settings of the training, those of the paper where none are given."""
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


def read_files(
    data: Path, dev: Path | None, tuning: TuningSettings, head: Mapping[str, Any], columns: Columns, seed: int
) -> LabelledFiles:
    """The examples of a file, and held-out ones from another file or from a part of it. `head` has settings of it."""
    file = open_table(data, tuning.encoding, tuning.names)
    columns = find_columns(file.first_columns(), tuning.task, columns, str(data))
    train = read_examples(file, columns, tuning.task)
    settings = make_section(HeadSettings, {**head, "task": tuning.task, "columns": columns.model_dump()}, "head")
    settings = with_targets(settings, train)
    if dev is not None:
        held_out = read_examples(open_table(dev, tuning.encoding, tuning.names), columns, tuning.task)
        return LabelledFiles(settings, train, held_out, f"dev is {dev}")
    fraction, by_label = tuning.dev_fraction, not settings.is_number
    train, held_out = split_off_dev(train, fraction, seed, by_label)
    return LabelledFiles(settings, train, held_out, describe_split(fraction, seed, by_label))


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
    data: str | Path | None,
    out: str | Path | None = None,
    task: TaskName | None = None,
    *,
    text_column: str | Sequence[str] = (),
    label_column: str | None = None,
    choice_column: Sequence[str] = (),
    columns: Sequence[str] = (),
    dev: str | Path | None = None,
    epochs: float | None = None,
    minutes: float | None = None,
    dropout: float | None = None,
    pool: Pool | None = None,
    truncate: Truncate | None = None,
    training: Mapping[str, Any] = MappingProxyType({}),
    lora: Mapping[str, Any] | None = None,
    start: Start | None = None,
    device: DeviceName = "auto",
    dtype: DtypeName = "auto",
    **tuning: Any,
) -> FinetuneRequest:
    """A request from the options of the command line; `tuning` has further fields of `TuningSettings`."""
    texts = (text_column,) if isinstance(text_column, str) else tuple(text_column)
    tuning |= {"task": task, "names": tuple(columns) or None}
    sections: dict[str, Mapping[str, Any]] = {
        "model": given({"dropout": dropout}),
        "finetuning": given(tuning),
        "head": given({"pool": pool, "truncate": truncate}),
        "training": training,
    }
    overrides = {name: values for name, values in sections.items() if values}
    return FinetuneRequest(
        data=None if data is None else Path(data),
        out=default_run_directory([] if data is None else [data]) if out is None else Path(out),
        dev=None if dev is None else Path(dev),
        columns=Columns(texts=texts, label=label_column, choices=tuple(choice_column)),
        epochs=epochs,
        minutes=minutes,
        overrides=overrides if lora is None else {**overrides, "lora": lora},
        start=start,
        device=device,
        dtype=dtype,
    )


def given(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options that are not left open."""
    return {name: value for name, value in options.items() if value is not None}
