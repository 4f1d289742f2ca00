"""The defaults of a fine-tuning with a head, by the model that it starts from; and a new model with random weights.

The vocabulary of a new model is made from the training texts alone. The same texts, shape and seed give the same model,
so that a run needs no copy of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from foretell.config import ModelConfig
from foretell.finetuning.kind import Example, Kind
from foretell.finetuning.tuning import SMALL_WIDTH
from foretell.language_model import LanguageModel
from foretell.loading import Start
from foretell.model.init import make_decoder
from foretell.model.presets import SIZES, preset, preset_config
from foretell.text import Tokenizer, train_lower_case_words, train_tokenizer

BATCH_SIZE = 32  # Radford et al. 2018, section 4.1
WARMUP_SHARE = 0.002  # of the steps, as in the paper
EVALUATIONS_PER_EPOCH = 2
MOST_EVALUATIONS = 12  # about; with few examples six without improvement would otherwise come too early
FEWEST_STEPS = 120  # of few examples, in more epochs
# of a new model
SIZE = "toy"  # larger ones are slower and not better: docs/finetuning.md
VOCABULARY = 8192  # words in lower case: better than byte-pair tokens where all embeddings are random at first
MOST_CONTEXT = 2048
SPECIAL_TOKENS = 8  # at most this number in the input format, beyond the texts


@dataclass(frozen=True)
class Recipe:
    """Defaults of the epochs, of `model.dropout`, and of fields of `TuningSettings` and `TrainingConfig`.

    learning_rate: of models of width SMALL_WIDTH and more. small_factor: times the kind's own, of smaller ones.
    word_dropout: for kinds that drop words.
    """

    epochs: float = 3.0
    dropout: float = 0.1
    learning_rate: float = 6.25e-5
    small_factor: float = 1.0
    word_dropout: float = 0.0
    weight_decay: float = 0.01
    tuning: Mapping[str, Any] = field(default_factory=dict)

    def tuning_defaults(self, kind: type[Kind]) -> dict[str, Any]:
        return {**self.tuning, "word_dropout": self.word_dropout if kind.drops_words else 0.0}

    def steps(self, per_epoch: int) -> int:
        return max(FEWEST_STEPS, round(self.epochs * per_epoch))

    def training_defaults(self, kind: type[Kind], width: int, steps: int, per_epoch: int) -> dict[str, Any]:
        """Fields of `TrainingConfig` for a model of a width; per_epoch: the steps of an epoch."""
        every = max(1, per_epoch // EVALUATIONS_PER_EPOCH, steps // MOST_EVALUATIONS)
        return {
            "learning_rate": self.learning_rate if width >= SMALL_WIDTH else self.small_factor * kind.learning_rate,
            "schedule": "linear",
            "final_learning_rate_share": 0.0,
            "warmup_steps": max(1, round(WARMUP_SHARE * steps)),
            "weight_decay": self.weight_decay,
            "beta2": 0.999,
            "evaluate_every": every,
            "log_every": max(1, min(10, steps // 50)),
            "checkpoint_every": max(every, steps // 5),
            "keep_checkpoints": 1,
        }


GPT1 = Recipe()  # Radford et al. 2018, section 4.1; the learning rate of small models and the pool are measured
LORA = Recipe(learning_rate=2e-4, small_factor=5.0)  # Hu et al. 2021, appendix D.3; the factor is measured on primer
# Dropped words and units keep a new model from learning the examples by heart
RANDOM_WEIGHTS = Recipe(
    epochs=6.0, dropout=0.3, word_dropout=0.3, weight_decay=0.1, tuning={"lm_weight": 0.0, "head_dropout": 0.3}
)


# --- a new model -----------------------------------------------------------------------------------------------------


def untrained(
    kind: type[Kind], examples: Sequence[Example], seed: int, size: str | None = None, shape: ModelConfig | None = None
) -> Start:
    """A model of a size, or of a shape, whose tokenizer has the most frequent words of a kind's examples."""
    name = size or SIZE
    texts = (text for each in examples for text in each.texts)
    train = partial(train_tokenizer, "words") if kind.reads_case else train_lower_case_words
    tokenizer = train(texts, vocab_size=VOCABULARY)
    if shape is None:
        shape = preset_config(name, context_length=context_for(name, tokenizer, examples), vocab_size=1)
    decoder = make_decoder(shape.replaced(dropout=0.0, vocab_size=tokenizer.vocab_size), seed)
    return Start(name, LanguageModel(decoder, tokenizer, name))


def context_for(size: str, tokenizer: Tokenizer, examples: Sequence[Example]) -> int:
    """The context of the size, or a longer one for the longest example, up to MOST_CONTEXT."""
    longest = max(map(len, tokenizer.encode_batch([" ".join(each.texts) for each in examples])))
    return max(preset(size, SIZES)["context_length"], min(longest + SPECIAL_TOKENS, MOST_CONTEXT))
