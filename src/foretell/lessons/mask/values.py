"""A sound model and one that peeks, both tried as the trainer tries every model before its first step."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from foretell.config import ModelConfig, make_section
from foretell.data.batch import Batch
from foretell.errors import TrainingError
from foretell.insight.trace import Trace
from foretell.lessons.practice import Rows
from foretell.model.attention import SDPAttention
from foretell.model.decoder import Decoder
from foretell.model.init import make_decoder
from foretell.model.mask import Mask
from foretell.textbook.arrays import Matrix
from foretell.training.mask_check import check_mask

VOCABULARY = ("the", "cat", "sat", "on", "mat", "dog", "ran", "off")
ROW = [0, 1, 2, 3, 0, 4, 0]  # the cat sat on the mat (and one more, which the last word would predict)
OTHER_FUTURE = [0, 1, 2, 7, 5, 6]  # the cat sat off dog ran
BORDER = 3  # from here on the words differ
SEED = 1
LEAK = "trunk.blocks.1.attention.core"
WATCHED = ("embed", "trunk.blocks.0.attention.core", "trunk.blocks.0", LEAK, "trunk.blocks.1", "head")


class PeekingCore(SDPAttention):
    """Attention that forgets to use its mask, as a slip of the hand would leave it."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
        return F.scaled_dot_product_attention(query, key, value, enable_gqa=self.is_grouped)  # (B, H, T, E)


@dataclass(frozen=True)
class Trial:
    """What came of a model: which positions moved when the future was exchanged, and what the trainer says."""

    moved: dict[str, list[bool]]  # module -> for each position: is any bit of its output another one?
    refusal: str | None  # the trainer's error; None where it would begin

    @property
    def leaked(self) -> list[str]:
        """The modules whose output moved before the border."""
        return [name for name, moved in self.moved.items() if any(moved[:BORDER])]


def config() -> ModelConfig:
    """Two layers, two heads, width 16."""
    sizes = {"num_layers": 2, "num_heads": 2, "width": 16, "context_length": 8, "vocab_size": len(VOCABULARY)}
    return make_section(ModelConfig, {**sizes, "init": "torch"})


def make_sound() -> Decoder:
    """A new decoder, as it is before its first step."""
    return make_decoder(config(), SEED)


def make_peeking() -> Decoder:
    """The same with one core exchanged."""
    decoder = make_sound()
    decoder.set_submodule(LEAK, PeekingCore(decoder.config))
    return decoder


def batch() -> Batch:
    """What the trainer's probe is tried on."""
    return Rows([ROW]).batch(0)


def try_model(decoder: Decoder) -> Trial:
    """Exchange the future, compare to the bit, and ask the trainer."""
    ids = batch().ids
    first, second = record(decoder, ids), record(decoder, torch.tensor([OTHER_FUTURE]))
    moved = {name: differs(first[name], second[name]) for name in WATCHED}
    return Trial(moved, refusal(decoder))


@torch.inference_mode()
def record(decoder: Decoder, ids: Tensor) -> dict[str, Tensor]:
    """What the watched modules hand out in one pass."""
    with Trace(decoder, WATCHED) as trace:
        decoder(ids)
    return {name: trace[name] for name in WATCHED}


def differs(first: Tensor, second: Tensor) -> list[bool]:
    """For each position: is any number not the same, to the bit? Positions are the last axis but one."""
    by_position = (first != second).movedim(-2, 0).flatten(1)  # (T, ...)
    return by_position.any(1).tolist()


def refusal(decoder: Decoder) -> str | None:
    """What stops the training of this model, where something does."""
    try:
        check_mask(decoder, batch())
    except TrainingError as error:
        return str(error)
    return None


def masks(length: int = 4) -> dict[str, Matrix]:
    """Three masks of the model's own making: 1 where the row's word sees the column's."""
    documents = torch.tensor([[0, 0, 1, 1]])
    found = {
        "causal": Mask(length, length),
        "with a window of 2": Mask(length, length, window=2),
        "with two documents": Mask(length, length, query_document_ids=documents, key_document_ids=documents),
    }
    return {name: mask.allowed[0, 0].numpy().astype(int) for name, mask in found.items()}
