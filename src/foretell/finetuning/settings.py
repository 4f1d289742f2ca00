"""Settings of a fine-tuning: those of the training (run.json) and those of the head, which the tuned model keeps."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from foretell.config import ModelConfig, Section, TrainingConfig
from foretell.model.lora import LoRAConfig

TaskName = Literal["classify", "regress", "similarity", "entailment", "choice"]
Pool = Literal["extract", "last", "mean"]
Truncate = Literal["head", "tail", "middle"]
TASKS: tuple[TaskName, ...] = ("classify", "regress", "similarity", "entailment", "choice")
PAIRED = ("similarity", "entailment")  # tasks on two texts


class Columns(Section):
    """The columns of a data file: one text, or two, or a question with its choices; and the label."""

    texts: tuple[str, ...]
    label: str | None = None  # None where the file needs no label: to predict
    choices: tuple[str, ...] = ()  # a column per choice; empty: a column `choices` with a list, as in JSON


class InputTokens(Section):
    """The names of the special tokens around texts; None where the format has none."""

    start: str | None = None
    delimiter: str | None = None
    extract: str | None = None


class HeadSettings(Section):
    """What a head predicts and what it reads; an entry of config.json.

    labels: the names of the classes in the order of the outputs. Without labels, `regress` and `similarity` predict a
    number, which is mean + deviation * output, and `choice` scores an answer.
    """

    task: TaskName
    labels: tuple[str, ...] = ()
    mean: float = 0.0
    deviation: float = Field(1.0, gt=0)
    pool: Pool = "extract"
    truncate: Truncate | None = None  # the part of a text that is left out where it does not fit the context
    tokens: InputTokens = InputTokens()
    columns: Columns

    @property
    def num_outputs(self) -> int:
        """Numbers that the linear layer gives for a text."""
        return len(self.labels) or 1

    @property
    def is_number(self) -> bool:
        """True where the prediction is a number."""
        return not self.labels and self.task != "choice"


class TuningSettings(Section):
    """Settings of fine-tuning that `TrainingConfig` does not have."""

    task: TaskName = "classify"
    lm_weight: float = Field(0.5, ge=0)  # lambda: the weight of the language modelling loss (Radford et al. 2018)
    head_dropout: float = Field(0.1, ge=0, lt=1)
    word_dropout: float = Field(
        0.0, ge=0, lt=1
    )  # the share of a text's tokens that a step leaves out (Iyyer et al. 2015)
    class_weights: Literal["balanced", "none"] = "none"
    dev_fraction: float = Field(0.1, gt=0, le=0.5)
    best_by: Literal["loss", "accuracy", "macro_f1"] = "loss"
    encoding: str = "utf-8"
    names: tuple[str, ...] = ()  # of the columns of a file without a header


class FinetuneConfig(Section):
    """The whole configuration of a fine-tuning, as run.json has it."""

    model: ModelConfig
    finetuning: TuningSettings
    head: HeadSettings
    training: TrainingConfig
    lora: LoRAConfig | None = None  # train low-rank updates and the head alone
