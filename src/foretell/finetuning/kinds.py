"""Fine-tuning with a head: its kinds, by the name that `finetune --task` gives them, and its options.

A kind is a subclass of `Kind` and an entry here. Its module is imported only when used, so that `--help` is instant.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal, TypedDict

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
Truncate = Literal["head", "tail", "middle", "never"]


class HeadFields(TypedDict, total=False):
    """The options as keywords of `foretell.finetune`. The text in an annotation is the help on the command line."""

    dev_fraction: Annotated[float, "The share of DATA that is held out (default: 0.1)."]
    group_column: Annotated[str | None, "A column of groups; the rows of a group are held out together."]
    text_column: Annotated[Sequence[str], "The column with the text; twice for a pair of texts."]
    label_column: Annotated[str | None, "The column with the label."]
    choice_column: Sequence[str]
    columns: Sequence[str]
    encoding: str
    decimal: DecimalMark
    truncate: Truncate | None
    pool: Annotated[
        Pool | None,
        "What the new layer reads: mean, the mean of the vectors of a text's tokens (default of classify); extract, "
        "the vector of a new token after the text (default of most tasks); last, the vector of the text's last token "
        "(default of tag).",
    ]
    lm_weight: Annotated[float, "The weight of language modelling in the loss (default: 0.5, or 0 from scratch)."]
    class_weights: Annotated[Literal["balanced", "none"], "balanced: all labels weigh the same (default: none)."]
    best_by: Annotated[str, "The figure that selects the best checkpoint, such as accuracy (default: loss)."]
    size: Annotated[str | None, "The size of a new model: toy (default), tiny, small, ..."]
    epochs: Annotated[float | None, "Passes over the data (default: 3, or 6 from scratch; more for few examples)."]
    dropout: Annotated[float | None, "Dropout of the whole model (default: 0.1, or 0.3 from scratch)."]
    head_dropout: Annotated[float, "Dropout before the new layer (default: 0.1, or 0.3 from scratch)."]
    word_dropout: Annotated[float, "The share of tokens that each step leaves out (default: 0, or 0.3 from scratch)."]


def known_task(task: str) -> str:
    """The name, if a kind has it; else a ValueError, which pydantic reports."""
    if task not in KINDS:
        raise ValueError(f"unknown task '{task}'{did_you_mean(task, KINDS)}; known: {', '.join(KINDS)}")
    return task
