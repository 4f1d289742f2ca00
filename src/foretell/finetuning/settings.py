"""Settings of a fine-tuning: of the training (in run.json), and of the head (in the tuned model)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, SerializerFunctionWrapHandler, model_serializer

from foretell.config.model import ModelConfig
from foretell.config.section import Section, make_section
from foretell.config.training import TrainingConfig
from foretell.finetuning.kinds import DecimalMark, Pool, Truncate, known_task
from foretell.model.lora import LoRAConfig

TaskName = Annotated[str, AfterValidator(known_task)]


class Columns(Section):
    """The columns of a data file: a text, a pair, or a question with its choices; and the label."""

    texts: tuple[str, ...]
    label: str | None = None  # None if the file needs no label, for predictions
    choices: tuple[str, ...] = ()  # a column per choice; empty: a column `choices` with a list, as in JSON
    decimal: DecimalMark | None = None  # the decimal mark of number labels; None: a point, as in earlier versions

    @property
    def names(self) -> tuple[str, ...]:
        return (*self.texts, *self.choices, *([self.label] if self.label else []))

    @model_serializer(mode="wrap")
    def without_default_mark(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out the default mark, so that files are compatible with earlier versions."""
        return {name: value for name, value in write(self).items() if name != "decimal" or value is not None}


def make_columns(
    text: str | Sequence[str], label: str | None, choices: Sequence[str], decimal: DecimalMark | None = None
) -> Columns:
    """The columns that a user named; a text, or several."""
    texts = (text,) if isinstance(text, str) else tuple(text)
    return make_section(Columns, {"texts": texts, "label": label, "choices": tuple(choices), "decimal": decimal})


class InputTokens(Section):
    """The names of the special tokens around texts; None if the format does not have one."""

    start: str | None = None
    delimiter: str | None = None
    extract: str | None = None


class HeadSettings(Section):
    """The kind of a head, its inputs and its outputs; an entry of config.json.

    labels: the names of the classes in the order of the outputs; empty if the kind has none. A predicted number is
    mean + deviation * output.
    """

    task: TaskName
    labels: tuple[str, ...] = ()
    mean: float = 0.0
    deviation: float = Field(1.0, gt=0)
    pool: Pool = "extract"
    # The part to leave out of texts that do not fit the context; None, of earlier versions: refuse unless they are few
    truncate: Truncate | None = None
    tokens: InputTokens = InputTokens()
    columns: Columns

    @property
    def num_outputs(self) -> int:
        return len(self.labels) or 1


class TuningSettings(Section):
    """Settings of fine-tuning that are not in `TrainingConfig`."""

    task: TaskName = "classify"
    lm_weight: float = Field(0.5, ge=0)  # lambda: the weight of the language modelling loss (Radford et al. 2018)
    head_dropout: float = Field(0.1, ge=0, lt=1)
    word_dropout: float = Field(0.0, ge=0, lt=1)  # the share of tokens that a step leaves out (Iyyer et al. 2015)
    class_weights: Literal["balanced", "none"] = "none"
    dev_fraction: float = Field(0.1, gt=0, le=0.5)
    group_column: str | None = None  # examples of a group are held out together or not at all
    best_by: str = "loss"  # the figure that selects the best checkpoint: the loss, or a score of the kind
    encoding: str = "utf-8"
    names: tuple[str, ...] = ()  # the column names of a file without a header


class FinetuneConfig(Section):
    """The configuration of a fine-tuning in run.json."""

    model: ModelConfig
    finetuning: TuningSettings
    head: HeadSettings
    training: TrainingConfig
    lora: LoRAConfig | None = None  # train only low-rank updates and the head
