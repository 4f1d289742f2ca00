"""The kinds of fine-tuning with a head, by the names that `finetune --task` gives them, and the options of fine-tuning.

A kind is a subclass of `Kind` and an entry here. Its module is imported only when used, so that `--help` is instant.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

from foretell.config.options import option
from foretell.errors import did_you_mean

KINDS: dict[str, str] = {
    "classify": "foretell.finetuning.label_kind:ClassifyKind",
    "regress": "foretell.finetuning.number_kind:NumberKind",
    "similarity": "foretell.finetuning.pair_kinds:SimilarityKind",
    "entailment": "foretell.finetuning.pair_kinds:EntailmentKind",
    "choice": "foretell.finetuning.choice_kind:ChoiceKind",
    "tag": "foretell.finetuning.tag_kind:TagKind",
}
Pool = Literal["extract", "last", "mean"]
DecimalMark = Literal[".", ","]
Encoding = Literal["utf-8", "latin-1", "cp1252"]
Truncate = Literal["head", "tail", "middle", "never"]
Truncation = Literal["drop", "tail", "never"]  # of conversations
EPOCHS = "Passes over the data (default: 3, or 6 from scratch; more for few examples)."


@dataclass(frozen=True, kw_only=True)
class TableOptions:
    """The form of a file of rows."""

    choice_column: Sequence[str] = option("A column with an answer; may be repeated.", default=())
    columns: Sequence[str] = option(
        "The columns of a file without a header: text,label.", default=(), sets="finetuning.names"
    )
    encoding: Encoding | None = option("utf-8, latin-1 or cp1252 (default: utf-8).", sets="finetuning.encoding")
    truncate: Truncate | None = option(
        "What a text that does not fit loses: tail, head or middle; never: refuse.", sets="head.truncate"
    )


@dataclass(frozen=True, kw_only=True)
class HeadOptions(TableOptions):
    """Options of `foretell finetune` for the kinds."""

    sections: ClassVar[tuple[str, ...]] = ("training", "lora")

    task: str | None = option(f"{', '.join(KINDS)}, chat or text (default: classify).", sets="finetuning.task")
    dev_fraction: float | None = option(
        "The share of DATA that is held out (default: 0.1).", sets="finetuning.dev_fraction"
    )
    group_column: str | None = option(
        "A column of groups; the rows of a group are held out together.", sets="finetuning.group_column"
    )
    text_column: Sequence[str] = option("The column with the text; twice for a pair of texts.", default=())
    label_column: str | None = option("The column with the label.")
    decimal: DecimalMark | None = option('The decimal mark in labels that are numbers: "." or ",".')
    pool: Pool | None = option(
        "What the new layer reads: mean, the mean of the vectors of a text's tokens (default of classify); extract, "
        "the vector of a new token after the text (default of most tasks); last, the vector of the text's last token "
        "(default of tag).",
        sets="head.pool",
    )
    lm_weight: float | None = option(
        "The weight of language modelling in the loss (default: 0.5; 0 from scratch and for widths from 512).",
        sets="finetuning.lm_weight",
    )
    class_weights: Literal["balanced", "none"] | None = option(
        "balanced: all labels weigh the same (default: none).", sets="finetuning.class_weights"
    )
    best_by: str | None = option(
        "The figure that selects the best checkpoint, such as accuracy (default: loss).", sets="finetuning.best_by"
    )
    size: str | None = option("The size of a new model: toy (default), tiny, small, ...")
    epochs: float | None = option(EPOCHS)
    dropout: float | None = option(
        "Dropout of the whole model (default: 0.1, or 0.3 from scratch; the model's own for widths from 512).",
        sets="model.dropout",
    )
    head_dropout: float | None = option(
        "Dropout before the new layer (default: 0.1, or 0.3 from scratch; 0 for widths from 512).",
        sets="finetuning.head_dropout",
    )
    word_dropout: float | None = option(
        "The share of tokens that each step leaves out (default: 0, or 0.3 from scratch).",
        sets="finetuning.word_dropout",
    )
    is_from_scratch: bool = option(
        "Make a new model of the data's words; the default without MODEL: finetune DATA.", default=False
    )


@dataclass(frozen=True, kw_only=True)
class ChatOptions:
    """Options of `foretell finetune --task chat`."""

    sections: ClassVar[tuple[str, ...]] = ("model", "data", "training", "lora")

    dev: Path | None = option("A file to hold out (default: a tenth of the data).")
    template: str | None = option("plain, chatml, alpaca, llama3 or a Jinja file (default: the model's own).")
    truncate: Truncation | None = option(
        "Conversations longer than the context: cut the end (default), drop them, or never: refuse."
    )
    spell_tokens: bool = option(
        "Write the template's special tokens as text (default: add them to the vocabulary).", default=False
    )
    epochs: float | None = option(EPOCHS)


def known_task(task: str) -> str:
    """The name, if a kind has it; else a ValueError, which pydantic reports."""
    if task not in KINDS:
        raise ValueError(f"unknown task '{task}'{did_you_mean(task, KINDS)}; known: {', '.join(KINDS)}")
    return task
