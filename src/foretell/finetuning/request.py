"""The request for fine-tuning with a head: its options, their defaults, and new models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from foretell.config.model import ModelConfig
from foretell.config.section import Section, make_section
from foretell.config.training import TrainingConfig
from foretell.data.table import Table
from foretell.errors import UsageError
from foretell.finetuning.examples import Example
from foretell.finetuning.kind import Kind, find_kind
from foretell.finetuning.kinds import HeadOptions
from foretell.finetuning.settings import (
    Columns,
    FinetuneConfig,
    TuningSettings,
    make_columns,
)
from foretell.finetuning.tuning import SMALL_WIDTH
from foretell.language_model import LanguageModel
from foretell.model.init import make_decoder
from foretell.model.presets import SIZES, preset, preset_config
from foretell.runs.record import RunRecord
from foretell.session.request import TrainingRequest
from foretell.session.start import Start
from foretell.text import Tokenizer, train_lower_case_words, train_tokenizer

GPT1_WIDTH = 768
BATCH_SIZE = 32  # Radford et al. 2018, section 4.1
WARMUP_SHARE = 0.002  # share of the steps, as in the paper
PRETRAINED_WARMUP_SHARE = 0.06  # Hu et al. 2021, table 9: the first full steps would undo the head's probe
EVALUATIONS_PER_EPOCH = 2
MOST_EVALUATIONS = 12  # approximately; otherwise, with few examples, six without improvement would come too early
FEWEST_STEPS = 120  # with few examples there are more epochs
# Defaults of a new model
SIZE = "toy"  # larger ones are slower and not better: docs/finetuning-reference.md
VOCABULARY = 8192  # lower-case words: better than byte-pair tokens if all embeddings are initially random
MOST_CONTEXT = 2048
SPECIAL_TOKENS = 8  # an upper bound of the special tokens in an input format


@dataclass(frozen=True)
class TuningRecipe:
    """Defaults of epochs, batch, `model.dropout`, and of fields of `TuningSettings` and `TrainingConfig`.

    learning_rate: for a width of GPT1_WIDTH; larger models have smaller ones, in proportion to 1 / sqrt(width).
    small_factor: multiplies the kind's learning rate for models below SMALL_WIDTH. word_dropout: for kinds that support
    it.
    """

    epochs: float = 3.0
    batch_size: int = BATCH_SIZE
    dropout: float | None = 0.1  # None: the model's own
    learning_rate: float = 6.25e-5
    small_factor: float = 1.0
    word_dropout: float = 0.0
    weight_decay: float = 0.01
    tuning: Mapping[str, Any] = field(default_factory=dict)

    def rate(self, width: int) -> float:
        """The learning rate of a model of width SMALL_WIDTH or more."""
        return float(f"{self.learning_rate * (GPT1_WIDTH / width) ** 0.5:.3g}")

    def steps(self, per_epoch: int) -> int:
        return max(FEWEST_STEPS, round(self.epochs * per_epoch))

    def training_defaults(self, kind: type[Kind], width: int, steps: int, per_epoch: int) -> dict[str, Any]:
        """Fields of `TrainingConfig` for a model of this width. per_epoch: the steps per epoch."""
        every = max(1, per_epoch // EVALUATIONS_PER_EPOCH, steps // MOST_EVALUATIONS)
        return {
            "learning_rate": self.rate(width) if width >= SMALL_WIDTH else self.small_factor * kind.learning_rate,
            "schedule": "linear",
            "final_learning_rate_share": 0.0,
            "warmup_steps": max(1, round((WARMUP_SHARE if width < SMALL_WIDTH else PRETRAINED_WARMUP_SHARE) * steps)),
            "weight_decay": self.weight_decay,
            "beta2": 0.999,
            "evaluate_every": every,
            "log_every": max(1, min(10, steps // 50)),
            "checkpoint_every": 2 * every,  # a checkpoint between evaluations would need its own evaluation
            "keep_checkpoints": 1,
        }


GPT1 = TuningRecipe()  # Radford et al. 2018, section 4.1; the learning rate of small models and the pool are measured
LORA = TuningRecipe(learning_rate=5e-4, small_factor=5.0)  # Hu et al. 2021, table 9, at this width; a measured factor
# For models of SMALL_WIDTH or more: dropout that they were not trained with raises the loss, and language modelling
# over a large vocabulary takes most of the time and of the clipped gradient
PRETRAINED: dict[str, Any] = {"batch_size": 16, "dropout": None, "tuning": {"lm_weight": 0.0, "head_dropout": 0.0}}
# Word dropout and dropout keep a new model from memorising the examples
RANDOM_WEIGHTS = TuningRecipe(
    epochs=6.0, dropout=0.3, word_dropout=0.3, weight_decay=0.1, tuning={"lm_weight": 0.0, "head_dropout": 0.3}
)


def untrained(
    kind: type[Kind], examples: Sequence[Example], seed: int, size: str | None = None, shape: ModelConfig | None = None
) -> Start:
    """A new model of a size or shape, whose tokenizer has the most frequent words of a kind's examples.

    The same texts, shape and seed give the same model, so a run does not store it.
    """
    name = size or SIZE
    texts = (text for each in examples for text in each.texts)
    train = partial(train_tokenizer, "words") if kind.reads_case else train_lower_case_words
    tokenizer = train(texts, vocab_size=VOCABULARY)
    if shape is None:
        shape = preset_config(name, context_length=context_for(name, tokenizer, examples), vocab_size=1)
    decoder = make_decoder(shape.replaced(dropout=0.0, vocab_size=tokenizer.vocab_size), seed)
    return Start(name, LanguageModel(decoder, tokenizer, name))


def context_for(size: str, tokenizer: Tokenizer, examples: Sequence[Example]) -> int:
    """The context of the size, or a longer one for the longest example, up to MOST_CONTEXT."""
    longest = max(map(len, tokenizer.encode_batch([" ".join(each.texts) for each in examples])))
    return max(preset(size, SIZES)["context_length"], min(longest + SPECIAL_TOKENS, MOST_CONTEXT))


@dataclass(frozen=True, kw_only=True)
class FinetuneRequest(HeadOptions, TrainingRequest):
    """A model, a file of examples, and settings. Data and model can be missing only when resuming."""

    config_type: ClassVar[type[Section]] = FinetuneConfig

    data: Path | Table | None = None  # a table in memory, or the path of one
    dev: Path | Table | None = None

    def __post_init__(self) -> None:
        if self.is_from_scratch and self.start is not None:
            raise UsageError("--from-scratch makes a new model; leave MODEL out: foretell finetune DATA --from-scratch")
        if self.size is not None and self.start is not None:
            raise UsageError(f"--size {self.size} is the size of a new model; give it with --from-scratch")
        super().__post_init__()
        self.named_columns  # noqa: B018 - refuses wrong ones
        if self.size is not None:
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
    def recipe(self) -> TuningRecipe:
        """The defaults for options that are not given."""
        if self.is_from_scratch:
            return RANDOM_WEIGHTS
        recipe = LORA if "lora" in self.overrides else GPT1
        is_large = self.start is not None and self.start.config.width >= SMALL_WIDTH
        return replace(recipe, **PRETRAINED) if is_large else recipe

    def tuning(self) -> TuningSettings:
        """The settings, with the recipe's defaults."""
        given = self.section("finetuning")
        settings = make_section(TuningSettings, given, "finetuning")
        word_dropout = self.recipe.word_dropout if find_kind(settings.task).drops_words else 0.0
        defaults = {**self.recipe.tuning, "word_dropout": word_dropout}
        return make_section(TuningSettings, {**defaults, **given}, "finetuning")

    @property
    def named_columns(self) -> Columns:
        return make_columns(self.text_column, self.label_column, self.choice_column, self.decimal)

    @property
    def split_seed(self) -> int:
        """The seed of the training, which also chooses the held-out examples."""
        seeds = {key: value for key, value in self.section("training").items() if key == "seed"}
        return make_section(TrainingConfig, {"steps": 1, **seeds}, "training").seed

    def check_same_run(self, config: FinetuneConfig, record: RunRecord) -> None:
        super().check_same_run(config, record)
        for name, value in self.named_columns.model_dump().items():
            old = getattr(config.head.columns, name)
            if value not in (None, (), old):
                raise self.changed(f"{name} in the columns", old, value)

    def training_config(self, examples: int, width: int, steps: int | None, has_dev: bool) -> TrainingConfig:
        """The settings of the training; by default the paper's."""
        given = self.section("training")
        checked = make_section(TrainingConfig, {"steps": 1, "batch_size": self.recipe.batch_size, **given}, "training")
        batch_size = min(checked.batch_size, examples)
        per_epoch = examples // batch_size
        by_epochs = max(1, round(self.epochs * per_epoch)) if self.epochs else self.recipe.steps(per_epoch)
        steps = checked.steps if "steps" in given else steps or by_epochs
        defaults = self.recipe.training_defaults(find_kind(self.tuning().task), width, steps, per_epoch)
        patience = {"patience": 6 if has_dev else None}
        values = {**defaults, **patience, **given, "steps": steps, "batch_size": batch_size}
        return make_section(TrainingConfig, values, "training")


def command_words(start: Sequence[str], record: RunRecord, settings: TuningSettings) -> list[str]:
    """The words of a command that reads the data in the same way as a run's command."""
    data, *dev = [name if Path(name).exists() else "DATA" for name in record.data]  # it may have been in memory
    columns = Columns.model_validate(record.task.get("columns", {"texts": ()}))
    given = {
        "--dev": dev,
        "--text-column": columns.texts,
        "--label-column": [columns.label],
        "--choice-column": columns.choices,
        "--decimal": [columns.decimal],
        "--group-column": [settings.group_column],
        "--columns": [",".join(settings.names)],
        "--encoding": [settings.encoding if settings.encoding != TuningSettings().encoding else None],
    }
    options = [word for option, values in given.items() for value in values if value for word in (option, value)]
    return ["finetune", *start, data, "--task", settings.task, *options]
