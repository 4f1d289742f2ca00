"""The request for a fine-tuning with a head: its options, and the recipe where they leave it open."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from foretell.config import Section, TrainingConfig, make_section
from foretell.distributed.world import current_world
from foretell.errors import UsageError
from foretell.finetuning.kind import find_kind
from foretell.finetuning.recipe import BATCH_SIZE, GPT1, LORA, RANDOM_WEIGHTS, Recipe
from foretell.finetuning.settings import Columns, FinetuneConfig, Pool, Truncate, TuningSettings
from foretell.model.presets import SIZES, preset
from foretell.session.request import TrainingRequest


@dataclass(frozen=True, kw_only=True)
class FinetuneRequest(TrainingRequest):
    """A model, a file of examples, and settings. Only resuming needs no data and no model."""

    config_type: ClassVar[type[Section]] = FinetuneConfig

    data: Path | None = None
    dev: Path | None = None
    columns: Columns = field(default_factory=lambda: Columns(texts=()))
    is_from_scratch: bool = False  # a new model of `size` with random weights, instead of `start`

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.is_from_scratch and self.start is not None:
            raise UsageError("--from-scratch makes a new model; leave MODEL out: foretell finetune DATA --from-scratch")
        if self.size is not None:
            if self.start is not None:
                raise UsageError(f"--size {self.size} is the size of a new model; give it with --from-scratch")
            preset(self.size, SIZES)
        if self.is_from_scratch and "lora" in self.overrides:
            raise UsageError("--lora keeps the weights of a trained model; omit it with --from-scratch")

    @property
    def choices(self) -> dict[str, Any]:
        return {"from_scratch": self.is_from_scratch or None}

    @property
    def described(self) -> list[str]:
        return [str(path) for path in (self.data, self.dev) if path is not None]

    @property
    def recipe(self) -> Recipe:
        """The defaults of what the options leave open."""
        if self.is_from_scratch:
            return RANDOM_WEIGHTS
        return LORA if "lora" in self.overrides else GPT1

    def tuning(self) -> TuningSettings:
        """The settings. With folds, the options that need held-out examples or a known time are refused."""
        given = self.section("finetuning")
        settings = make_section(TuningSettings, given, "finetuning")
        defaults = self.recipe.tuning_defaults(find_kind(settings.task))
        settings = make_section(TuningSettings, {**defaults, **given}, "finetuning")
        if settings.folds is not None:
            if self.dev is not None or settings.best_by != "loss":
                option = "--best-by" if self.dev is None else "--dev"
                raise UsageError(f"--folds trains the model on all of DATA, without held-out examples; omit {option}")
            if settings.ensemble:
                raise UsageError("--ensemble is weighted on held-out examples, which --folds leaves none of; omit one")
            if self.minutes is not None:
                raise UsageError(f"--folds trains {settings.folds + 1} models; give --epochs or --steps, not --minutes")
            if current_world().size > 1:
                raise UsageError("--folds trains in one process; start it without torchrun")
        return settings

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

    def training_config(self, examples: int, width: int, steps: int | None, has_dev: bool) -> TrainingConfig:
        """The settings of the training; the paper's where none are given."""
        given = self.section("training")
        checked = make_section(TrainingConfig, {"steps": 1, "batch_size": BATCH_SIZE, **given}, "training")
        batch_size = min(checked.batch_size, examples)
        per_epoch = examples // batch_size
        by_epochs = max(1, round(self.epochs * per_epoch)) if self.epochs else self.recipe.steps(per_epoch)
        steps = checked.steps if "steps" in given else steps or by_epochs
        defaults = self.recipe.training_defaults(find_kind(self.tuning().task), width, steps, per_epoch)
        patience = {"patience": 6 if has_dev else None}
        values = {**defaults, **patience, **given, "steps": steps, "batch_size": batch_size}
        return make_section(TrainingConfig, values, "training")


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
