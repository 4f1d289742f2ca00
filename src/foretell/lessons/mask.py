"""The mask: a correct model and one without a mask in one layer. Both get the test that training applies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from foretell.config.model import ModelConfig
from foretell.config.section import make_section
from foretell.data.batch import Batch
from foretell.errors import TrainingError
from foretell.insight.trace import Trace
from foretell.lessons.exercise import Exercise
from foretell.lessons.lesson import FigureCheck, Lesson, RepeatedRows, same
from foretell.model.attention import SDPAttention
from foretell.model.decoder import Decoder
from foretell.model.init import make_decoder
from foretell.model.mask import Mask
from foretell.model.surgery import replace
from foretell.training.mask_check import check_mask
from foretell.typesetting.document import Table

VOCABULARY = ("the", "cat", "sat", "on", "mat", "dog", "ran", "off")
ROW = [0, 1, 2, 3, 0, 4, 0]  # "the cat sat on the mat", and the last word's target
OTHER_FUTURE = [0, 1, 2, 7, 5, 6]  # "the cat sat off dog ran"
FIRST_CHANGED = 3  # the first position where the words differ
SEED = 1
TWO_DOCUMENTS = [[1, 0, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 1, 1]]
WINDOW = [[1, 0, 0, 0], [1, 1, 0, 0], [0, 1, 1, 0], [0, 0, 1, 1]]
LEAK = "trunk.blocks.1.attention.core"
WATCHED_MODULES = ("embed", "trunk.blocks.0.attention.core", "trunk.blocks.0", LEAK, "trunk.blocks.1", "head")


class UnmaskedAttention(SDPAttention):
    """Attention with a bug: it ignores its mask."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
        return F.scaled_dot_product_attention(query, key, value, enable_gqa=self.is_grouped)  # (B, H, T, E)


@dataclass(frozen=True)
class MaskTest:
    """The effect of replacing future words: which outputs changed, and the error that stops training."""

    changed: dict[str, list[bool]]  # module -> for each position: did any bit of its output change?
    error: str | None  # None if training would start

    @property
    def leaking(self) -> list[str]:
        """The modules whose output changed before the first replaced word."""
        return [name for name, changed in self.changed.items() if any(changed[:FIRST_CHANGED])]


class MaskLesson(Lesson):
    """A correct model and one that sees the future. `broken` shows the second one; the checks always test both."""

    name = "mask"

    def __init__(self, broken: bool = False, correct: Decoder | None = None, peeking: Decoder | None = None):
        self.broken = broken
        self.correct = run_mask_test(correct or make_correct())
        self.peeking = run_mask_test(peeking or make_peeking())

    def shown(self) -> dict[str, Any]:
        words = [VOCABULARY[token] for token in ROW[:-1]]
        causal, window, documents = example_masks()
        return {
            "causal": causal,
            "window": window,
            "documents": documents,
            "words": " ".join(words),
            "other_words": " ".join(VOCABULARY[token] for token in OTHER_FUTURE),
            "first_changed": FIRST_CHANGED + 1,
            "changes": change_table(words, self.correct),
            "verdict": verdict(self.correct),
            "broken": self.broken,
            "leak": LEAK,
            "broken_changes": change_table(words, self.peeking),
            "broken_verdict": verdict(self.peeking),
        }

    def checks(self) -> list[FigureCheck]:
        causal, window, documents = example_masks()
        message = (self.peeking.error or "none").partition(",")[0]
        after_leak = list(WATCHED_MODULES[WATCHED_MODULES.index(LEAK) :])
        reads_itself = all(self.correct.changed["head"][FIRST_CHANGED:])
        return [
            same("the causal mask", np.tril(np.ones((4, 4), dtype=int)), causal),
            same("a window of 2", WINDOW, window),
            same("two documents in a row", TWO_DOCUMENTS, documents),
            same("correct model: modules that see the future", [], self.correct.leaking),
            same("correct model: logits change with their own words", True, reads_itself),
            same("correct model: training error", None, self.correct.error),
            same("model without a mask: modules that see the future", after_leak, self.peeking.leaking),
            same("model without a mask: training error", f"{LEAK} sees the future", message),
        ]

    def solutions(self) -> list[Exercise]:
        causal, window = (Mask(10, 10, window=window).allowed.sum() for window in (None, 3))
        readers = Mask(6, 6).allowed[..., 1].sum()
        return [
            Exercise(int(causal), "10 · 11 / 2", "1 + 2 + … + 10, row by row"),
            Exercise(int(window), "1 + 2 + 8 · 3", "row by row"),
            Exercise(int(readers), "6 - 1", "the column of the second word in the mask"),
        ]


def change_table(words: list[str], test: MaskTest) -> Table:
    """One row per module: which words' outputs changed."""
    rows = [(name, *("differ" if change else "same" for change in line)) for name, line in test.changed.items()]
    return Table(("", *words), rows)


def verdict(test: MaskTest) -> str:
    """The result of the check before training, as the command line shows it."""
    return "the mask is correct." if test.error is None else f"foretell: {test.error}"


def make_correct() -> Decoder:
    """A decoder with random weights."""
    sizes = {"num_layers": 2, "num_heads": 2, "width": 16, "context_length": 8, "vocab_size": len(VOCABULARY)}
    return make_decoder(make_section(ModelConfig, {**sizes, "init": "torch"}), SEED)


def make_peeking() -> Decoder:
    """A decoder with the weights of `make_correct`, without a mask in one layer."""
    decoder = make_correct()
    replace(decoder, LEAK, lambda core: UnmaskedAttention(decoder.config))
    return decoder


def probe_batch() -> Batch:
    """The batch for the mask check of training."""
    return RepeatedRows([ROW]).batch(0)


def run_mask_test(decoder: Decoder) -> MaskTest:
    """Replace the future words, compare all outputs bit by bit, and run the mask check of training."""
    ids = probe_batch().ids
    first, second = outputs(decoder, ids), outputs(decoder, torch.tensor([OTHER_FUTURE]))
    changed = {name: changed_positions(first[name], second[name]) for name in WATCHED_MODULES}
    return MaskTest(changed, training_error(decoder))


@torch.inference_mode()
def outputs(decoder: Decoder, ids: Tensor) -> dict[str, Tensor]:
    """The watched modules' outputs in one forward pass."""
    with Trace(decoder, WATCHED_MODULES) as trace:
        decoder(ids)
    return {name: trace[name] for name in WATCHED_MODULES}


def changed_positions(first: Tensor, second: Tensor) -> list[bool]:
    """For each position: do the two differ in any bit? Positions are the second-to-last axis."""
    by_position = (first != second).movedim(-2, 0).flatten(1)  # (T, ...)
    return by_position.any(1).tolist()


def training_error(decoder: Decoder) -> str | None:
    """The message of training's refusal of this model; None if it would train."""
    try:
        check_mask(decoder, probe_batch())
    except TrainingError as error:
        return str(error)
    return None


def example_masks() -> list[np.ndarray]:
    """Three masks of a model: causal, with a window of 2, with two documents; 1 if the row's word sees the column's."""
    ids = torch.tensor([[0, 0, 1, 1]])
    masks = (Mask(4, 4), Mask(4, 4, window=2), Mask(4, 4, query_document_ids=ids, key_document_ids=ids))
    return [mask.allowed[0, 0].numpy().astype(int) for mask in masks]
