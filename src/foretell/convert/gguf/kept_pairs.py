"""The pairs of a GGUF file that foretell does not compute: they stay with the model and leave with its next export.

They describe the model (name, licence, languages) and the special tokens of its vocabulary.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from foretell.convert.gguf.header import ALIGNMENT, ARCHITECTURE, GENERAL, GENERAL_BYTES
from foretell.convert.gguf.metadata import to_float32
from foretell.convert.gguf.vocabulary import KINDS, MERGES, MODEL, SCORES, START, TOKENS
from foretell.errors import CheckpointError
from foretell.language_model import LanguageModel
from foretell.saved_model.config_file import GGUF_PAIRS
from foretell.saved_model.part import Part, PartSource, register_part
from foretell.storage.files import CONFIG

FILE_TYPE, QUANTIZATION_VERSION = "general.file_type", "general.quantization_version"
COMPUTED = {ARCHITECTURE, ALIGNMENT, FILE_TYPE, QUANTIZATION_VERSION, MODEL, TOKENS, KINDS, MERGES, SCORES}
MAX_COUNT = 2**32 - 1


@register_part
@dataclass(frozen=True)
class KeptPairs(Part):
    """The kept pairs of the file that a model came from; config.json has them under their keys."""

    kind: ClassVar[str] = GGUF_PAIRS
    pairs: Mapping[str, Any]

    def config(self) -> dict[str, Any]:
        return dict(self.pairs)

    @classmethod
    def load(cls, values: Mapping[str, Any], source: PartSource) -> Self:
        if kept_pairs(values) != values:
            raise CheckpointError(
                f"{source.directory / CONFIG}: '{source.name}' has pairs that no GGUF file could have"
            )
        return cls(values)


def kept_pairs(pairs: Mapping[str, Any]) -> dict[str, Any]:
    """The pairs to keep; none if they are longer than the descriptions that `read_general` reads."""
    kept = {key: pairs[key] for key in pairs if is_description(key) and is_writable(key) and is_writable(pairs[key])}
    return kept if len(json.dumps(kept)) <= GENERAL_BYTES else {}


def dropped_pairs(pairs: Mapping[str, Any]) -> list[str]:
    """A note if pairs that describe the model are not kept."""
    dropped = [key for key in pairs.keys() - kept_pairs(pairs) if is_description(key)]
    return [f"an export will not have {len(dropped)} of its pairs, such as {min(dropped)[:80]}"] if dropped else []


def is_description(key: str) -> bool:
    return key.startswith((GENERAL, f"{START}.")) and key not in COMPUTED


def is_writable(value: Any) -> bool:
    """True if `write_gguf` writes the value as it is: a text, a number, a flag or a list of texts."""
    if isinstance(value, list):
        return bool(value) and all(isinstance(text, str) and is_writable(text) for text in value)
    if isinstance(value, str):
        return value.encode(errors="ignore").decode() == value  # without halves of surrogate pairs
    if isinstance(value, float):
        return math.isfinite(value) and to_float32(value) == value
    return isinstance(value, int) and 0 <= value <= MAX_COUNT


def pairs_of(model: LanguageModel) -> Mapping[str, Any]:
    """The kept pairs of a model; empty if it did not come from a GGUF file."""
    part = model.parts.get(GGUF_PAIRS)
    return part.pairs if isinstance(part, KeptPairs) else {}
