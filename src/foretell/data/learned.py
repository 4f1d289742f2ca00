"""Fields of published data that mark answers as learned, or as only read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from foretell.data.table import list_names
from foretell.errors import DataError

# of a turn, or of a row for all its answers: OpenAI and Mistral; axolotl; verl; ms-swift
TURN_FIELDS = ("weight", "train", "training", "loss_mask", "loss")
VERDICTS = ("label", "kto_tag")  # of a row: TRL's unpaired preferences; LLaMA-Factory
ROW_FIELDS = (*TURN_FIELDS, *VERDICTS)
SPAN_FIELDS = ("train_detail", "training_detail")  # axolotl: parts of an answer
FLAGS = {"0": False, "1": True, "false": False, "true": True}
NOT_LEARNED = "rows that are marked as not to be learned are left out"


def is_empty(value: Any) -> bool:
    return value is None or value in ("", [], {})


def learned_flags(fields: Mapping[str, Any], names: Sequence[str]) -> dict[str, bool]:
    """The fields among `names` that hold a flag; a verdict of 0 or 1 may be a class, so it is none."""
    written = {name: _written(fields[name]) for name in names if not is_empty(fields.get(name))}
    return {
        name: FLAGS[text] for name, text in written.items() if text in FLAGS and not (name in VERDICTS and text in "01")
    }


def is_learned(flags: Mapping[str, bool], where: str) -> bool:
    """False if the flags mark an answer as only read. Raises DataError for flags that contradict each other."""
    if len(set(flags.values())) > 1:
        raise DataError(f"{where}: {list_names(list(flags))} contradict each other; keep one of them")
    return all(flags.values())


def _written(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value).strip().lower()
