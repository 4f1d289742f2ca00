"""A small model with random weights to tune: its vocabulary is made from the training texts alone.

The same texts, shape and seed give the same model, so that a run needs no copy of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from foretell.config import ModelConfig
from foretell.finetuning.kind import Example, Kind
from foretell.language_model import LanguageModel
from foretell.loading import Start
from foretell.model.init import make_decoder
from foretell.model.presets import SIZES, preset, preset_config
from foretell.text import Tokenizer, train_tokenizer

SIZE = "toy"  # larger ones are slower and not better: docs/finetuning.md
VOCABULARY = 8192  # words, which are better than byte-pair tokens where all embeddings are random at first
MOST_CONTEXT = 2048
SPECIAL_TOKENS = 8  # at most this number in the input format, beyond the texts
# Dropped words and units keep the model from learning the examples by heart
TUNING: dict[str, float] = {"lm_weight": 0.0, "head_dropout": 0.3}
WORD_DROPOUT, DROPOUT, EPOCHS = 0.3, 0.3, 6.0
TRAINING: dict[str, Any] = {"weight_decay": 0.1}


def untrained(
    examples: Sequence[Example], seed: int, size: str | None = None, shape: ModelConfig | None = None
) -> Start:
    """A model of a size, or of a shape, whose tokenizer has the most frequent words of the examples."""
    name = size or SIZE
    tokenizer = train_tokenizer("words", (text for each in examples for text in each.texts), vocab_size=VOCABULARY)
    if shape is None:
        shape = preset_config(name, context_length=context_for(name, tokenizer, examples), vocab_size=1)
    decoder = make_decoder(shape.replaced(dropout=0.0, vocab_size=tokenizer.vocab_size), seed)
    return Start(name, LanguageModel(decoder, tokenizer, name))


def context_for(size: str, tokenizer: Tokenizer, examples: Sequence[Example]) -> int:
    """The context of the size, or a longer one for the longest example, up to MOST_CONTEXT."""
    longest = max(map(len, tokenizer.encode_batch([" ".join(each.texts) for each in examples])))
    return max(preset(size, SIZES)["context_length"], min(longest + SPECIAL_TOKENS, MOST_CONTEXT))


def tuning_defaults(kind: type[Kind]) -> dict[str, float]:
    return {**TUNING, "word_dropout": WORD_DROPOUT} if kind.drops_words else TUNING
