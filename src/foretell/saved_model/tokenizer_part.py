"""A text tokenizer as a part of a saved model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

from torch import Tensor

from foretell.files import TOKENIZER_FILE
from foretell.saved_model.part import PartSource, register_part
from foretell.text import Tokenizer, load_tokenizer

TOKENIZER = "tokenizer"


@register_part
@dataclass(frozen=True)
class TokenizerPart:
    """A text tokenizer, in the one file of `file_names`."""

    kind: ClassVar[str] = TOKENIZER
    is_inside_decoder: ClassVar[bool] = False
    file_names: ClassVar[tuple[str, ...]] = (TOKENIZER_FILE,)
    tokenizer: Tokenizer

    def config(self) -> dict[str, Any]:
        return {}

    def weights(self) -> Mapping[str, Tensor]:
        return {}

    def save_files(self, directory: Path) -> None:
        self.tokenizer.save(directory / self.file_names[0])

    @classmethod
    def load(cls, values: Mapping[str, Any], source: PartSource) -> Self:
        return cls(load_tokenizer(source.directory / cls.file_names[0]))
