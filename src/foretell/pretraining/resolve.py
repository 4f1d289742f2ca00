"""The configuration of a run: settings that the request leaves open follow from the text and the machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from foretell.config.model import ModelConfig
from foretell.config.section import make_section
from foretell.config.training import Config, TrainingConfig
from foretell.config.weight_shapes import count_parameters
from foretell.data.split import FEW_ROWS
from foretell.errors import DataError
from foretell.model.presets import SIZES, preset_config
from foretell.pretraining.request import TextRequest
from foretell.session.budget import MEMORISED
from foretell.session.request import default_dropout, intervals


class Repetition(NamedTuple):
    """The passes over a text if no time is given, and the dropout by their number."""

    most_epochs: int
    fewest_steps: int
    dropout_by_epochs: tuple[tuple[float, float], ...]
    reason: str


GENERALISE = Repetition(30, 50, ((3.0, 0.0), (8.0, 0.1), (float("inf"), 0.2)), MEMORISED)
# 100 steps left wrong answers in one of six sets of questions (two seeds), 200 in none (ten): docs/rows.md
MEMORISE = Repetition(
    100, 200, ((float("inf"), 0.0),), f"fewer than {FEW_ROWS} rows are learned by heart, without dropout"
)


class SizeRecipe(NamedTuple):
    """Settings that depend on the size: larger models need lower learning rates and more tokens per step."""

    learning_rate: float
    tokens_per_step: int


# Found by trial on several texts: less loss than with AdamW (docs/speedrun.md). "medium" is a guess from the others
MUON = {
    "toy": SizeRecipe(4e-3, 1024),
    "tiny": SizeRecipe(4e-3, 2048),
    "small": SizeRecipe(4e-3, 2048),
    "medium": SizeRecipe(3e-3, 4096),
}
ADAMW = {
    "toy": SizeRecipe(3e-3, 1024),
    "tiny": SizeRecipe(2e-3, 2048),
    "small": SizeRecipe(1.5e-3, 4096),
    "medium": SizeRecipe(1e-3, 8192),
}
LARGE = SizeRecipe(6e-4, 16_384)
LEAST_SIMILAR = 512  # smallest vocabulary to start with similar vectors; they slow characters down: docs/training.md
SCHEDULES = {"muon": {"schedule": "linear", "final_learning_rate_share": 0.0}}  # others: TrainingConfig's defaults
CONTINUED_SHARE = 0.1  # learning rate of a trained model that continues, as a share of a new model's
PROBED_EPOCHS = 5.0  # assumed when a shape's speed is measured; decides its dropout


@dataclass(frozen=True)
class RowFacts:
    """Facts about separate rows of the training text: their number, and the length and source of the longest."""

    count: int
    longest: int
    longest_source: str
    held_out: int = 0  # rows that are not in `count`
    packing: bool = False  # several in a row of a batch

    @property
    def repetition(self) -> Repetition:
        return MEMORISE if self.count < FEW_ROWS and not self.held_out else GENERALISE


@dataclass(frozen=True)
class Facts:
    """Facts about the tokens of a text."""

    vocab_size: int
    train_tokens: int
    rows: RowFacts | None = None
    as_bytes: int = 0  # bytes of the training text, if the kind of vocabulary is still open

    @property
    def repetition(self) -> Repetition:
        return GENERALISE if self.rows is None else self.rows.repetition


def shape_of(request: TextRequest, facts: Facts, size: str) -> ModelConfig:
    return request.model_config(size, facts.vocab_size, 0 if facts.rows is None else facts.rows.longest - 1)


def window_length(request: TextRequest, facts: Facts, model: ModelConfig) -> int:
    """Tokens per row of a text: the given number, or the context, or the whole of a shorter text.

    A new model gets no context longer than it can learn to use; a trained model keeps its context.
    """
    asked = request.configured("data").window_length
    if asked is None and request.start is not None and facts.train_tokens <= model.context_length:
        return max(1, facts.train_tokens - 1)
    return model.context_length if asked is None else asked


def mean_row(request: TextRequest, facts: Facts, model: ModelConfig) -> int:
    if facts.rows is None:
        return window_length(request, facts, model)
    if facts.rows.packing:
        return min(model.context_length, max(1, facts.train_tokens - 1))
    return max(1, round(facts.train_tokens / facts.rows.count) - 1)


def most_rows(facts: Facts, row: int) -> int | None:
    """The most rows of a step without repetition; None for no limit."""
    if facts.rows is not None:
        return max(1, facts.train_tokens // (row + 1)) if facts.rows.packing else facts.rows.count
    return 1 if facts.train_tokens == row + 1 else None


def describe_rows_read(request: TextRequest, facts: Facts, config: Config) -> list[str]:
    """A line about a context chosen for the longest row, or about rows shorter than the context."""
    window, context = config.window_length, config.model.context_length
    if facts.rows is not None:
        is_open = request.start is None and "context_length" not in request.section("model")
        follows = is_open and context <= facts.rows.longest - 1
        return [f"context     {context:,} tokens, for the longest row: {facts.rows.longest_source}"] if follows else []
    if window == context:
        return []
    whole = f", all of a text shorter than the context of {context:,}" if facts.train_tokens == window + 1 else ""
    return [f"window      {window:,} tokens per row{whole or f' of the context of {context:,}'}"]


def check_row_fits(rows: RowFacts, context_length: int) -> None:
    """Raise DataError if the longest row does not fit the context. The last token of a row is not read."""
    if rows.longest > context_length + 1:
        raise DataError(
            f"{rows.longest_source}: a row of {rows.longest:,} tokens, but the context is {context_length:,}; shorten "
            f"it, or take a model with a larger context (a new one: --model.context-length {rows.longest - 1})"
        )


def resolve_config(request: TextRequest, facts: Facts, size: str, steps: int | None = None) -> Config:
    """The configuration of a size; without steps, the one for measuring its speed, with the most likely dropout."""
    model = shape_of(request, facts, size)
    row = mean_row(request, facts, model)
    training = training_config(request, size, model, steps or 1, row, most_rows(facts, row))
    if "dropout" not in request.section("model"):
        epochs = PROBED_EPOCHS if steps is None else steps * training.batch_size * row / facts.train_tokens
        model = model.replaced(dropout=default_dropout(epochs, facts.repetition.dropout_by_epochs))
    data = request.configured("data")
    if facts.rows is None and (window := window_length(request, facts, model)) != model.context_length:
        data = data.model_copy(update={"window_length": window})
    return Config(model=model, tokenizer=request.configured("tokenizer"), data=data, training=training)


def training_config(
    request: TextRequest, size: str, model: ModelConfig, steps: int, row: int | None = None, most: int | None = None
) -> TrainingConfig:
    """The recipe of the size for rows of `row` tokens (None: the context), changed by what the user set."""
    chosen = request.section("training")
    make_section(TrainingConfig, {**chosen, "steps": steps}, "training")  # checks the user's settings first
    if request.start is None:
        defaults = training_defaults(size, model, steps, chosen, row)
        defaults["similar_vectors"] = model.vocab_size >= LEAST_SIMILAR
    else:
        defaults = continued_defaults(model, steps, chosen, row)
    if most is not None:
        defaults["batch_size"] = min(most, defaults["batch_size"])
    return make_section(TrainingConfig, {**defaults, **chosen, "steps": steps}, "training")


def in_times(epochs: float) -> str:
    return f"{epochs:.{1 if epochs >= 0.05 else 4}f} times"


def training_defaults(
    size: str, config: ModelConfig, steps: int, chosen: Mapping[str, Any] = MappingProxyType({}), row: int | None = None
) -> dict[str, Any]:
    """Default settings for a new model on rows of `row` tokens (None: the context); some depend on `chosen` ones."""
    optimizer = chosen.get("optimizer", "muon" if size in MUON else "adamw")
    recipe = (MUON if optimizer == "muon" else ADAMW).get(size, LARGE)
    return {
        "optimizer": optimizer,
        "learning_rate": recipe.learning_rate,
        **({} if "schedule" in chosen else SCHEDULES.get(optimizer, {})),
        "steps": steps,
        "batch_size": max(1, recipe.tokens_per_step // (row or config.context_length)),
        "warmup_steps": min(100, max(1, steps // 10)),
        # ten evaluations take about a tenth of the training's arithmetic: a forward pass is a third of a step
        "evaluation_tokens": min(65_536, max(8_192, steps * recipe.tokens_per_step // 32)),
        **intervals(steps),
    }


def continued_defaults(
    config: ModelConfig, steps: int, chosen: Mapping[str, Any] = MappingProxyType({}), row: int | None = None
) -> dict[str, Any]:
    """Default settings to continue a trained model: AdamW, because most public models were trained with it."""
    defaults = training_defaults(nearest_size(config), config, steps, {"optimizer": "adamw", **chosen}, row)
    return {**defaults, "learning_rate": CONTINUED_SHARE * defaults["learning_rate"]}


def nearest_size(config: ModelConfig) -> str:
    parameters = count_parameters(config)
    others = {name: count_parameters(preset_config(name, vocab_size=config.vocab_size)) for name in SIZES}
    return min(others, key=lambda name: abs(np.log(others[name] / parameters)))
