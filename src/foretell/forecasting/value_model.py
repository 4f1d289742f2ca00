"""A forecaster as a language model whose tokens are values, for explanations and pages."""

from __future__ import annotations

import copy
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from foretell.errors import UsageError
from foretell.forecasting.codec import Scale, SeriesCodec
from foretell.forecasting.forecaster import Forecaster
from foretell.forecasting.series import value_text
from foretell.language_model import LanguageModel
from foretell.text import Tokenizer
from foretell.text.tokenizer_json import word_level_json

SEPARATOR = re.compile(r"[\s,;]+")
MISSING_WORDS = frozenset(("", "-", "–", "?", "nan", "na", "null", "none", "missing"))


class ValueTokenizer(Tokenizer):
    """A tokenizer of ids that shows the value of each id in a scale."""

    def __init__(self, vocab_size: int):
        super().__init__(word_level_json([str(token_id) for token_id in range(vocab_size)], ()))
        self.texts: list[str] = []

    def text_of(self, token_id: int) -> str:
        return self.texts[token_id] if 0 <= token_id < len(self.texts) else super().text_of(token_id)


@dataclass(frozen=True, repr=False, kw_only=True)
class ValueModel(LanguageModel):
    """A forecaster's decoder in the scale of one context. A text is a list of values for `parse_values`.

    levels: the possible next values (bins,). context: the number of values that determine the scale. Made by
    `reading_values`.
    """

    codec: SeriesCodec
    scale: Scale
    levels: np.ndarray
    context: int

    def encode(self, text: str, allow_special: bool = False) -> list[int]:
        return self.codec.encode(parse_values(text), self.scale, -self.context).tolist()

    def texts_of(self, ids: Sequence[int]) -> list[str]:
        return [value_text(value) for value in self.codec.decode(ids, self.scale, -self.context)]

    def values_of(self, ids: Sequence[int]) -> list[float | None]:
        values = self.codec.decode(ids, self.scale, -self.context)
        return [None if np.isnan(value) else float(value) for value in values]


def reading_values(
    forecaster: Forecaster, text: str | np.ndarray, tokenizer: ValueTokenizer | None = None, read_after: int = 0
) -> ValueModel:
    """The model for a context, given as text or values. tokenizer: from an earlier call for the same forecaster.

    read_after: the number of values that a pass reads after the context; the next value follows these.

    Raises UsageError for a text that is not a list of values, DataError if all values are missing.
    """
    values = parse_values(text) if isinstance(text, str) else text
    codec, scale = forecaster.codec, forecaster.prompt(values, len(values)).scale
    following = codec.decode(np.arange(codec.vocab_size)[:, None], scale, read_after)[:, 0]
    named = copy.copy(tokenizer or ValueTokenizer(codec.vocab_size))
    named.texts = [value_text(value) for value in following]
    levels = np.maximum(following[: codec.config.bins], forecaster.least(values))
    return ValueModel(
        forecaster.decoder, named, forecaster.name, codec=codec, scale=scale, levels=levels, context=len(values)
    )


def parse_values(text: str) -> np.ndarray:
    """The values (T,) of a text, separated by white space, commas or semicolons; `-` or `missing` is NaN."""
    values = np.array([parse_value(word) for word in SEPARATOR.split(text.strip(" \t\r\n,;"))])
    if np.isinf(values).any():
        raise UsageError("a value is infinite; give finite numbers")
    return values


def parse_value(word: str) -> float:
    try:
        return np.nan if word.lower() in MISSING_WORDS else float(word)
    except ValueError:
        message = f"{word[:40]!r} is not a number; give values with spaces between them, - for a missing one"
        raise UsageError(message) from None
