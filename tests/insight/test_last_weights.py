"""The attention weights of the last query alone: the same bits, without the weights of all queries."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from foretell.insight.explain.walk import walk
from foretell.insight.trace import Trace
from foretell.language_model import LanguageModel
from foretell.model.init import make_decoder
from foretell.model.presets import preset_config
from foretell.text import train_tokenizer

TEXT = "a text of some length that is read here, and then once more; " * 4


def make_model(**changes: Any) -> LanguageModel:
    tokenizer = train_tokenizer("bytes", ["any text"])
    config = preset_config("toy", vocab_size=tokenizer.vocab_size, context_length=256, init="torch", **changes)
    return LanguageModel(make_decoder(config, seed=1).eval(), tokenizer)


class LargestResult(TorchFunctionMode):
    """Notes the size of the largest tensor that a function returns."""

    elements = 0

    def __torch_function__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if isinstance(result, Tensor):
            self.elements = max(self.elements, result.numel())
        return result


@pytest.mark.parametrize("changes", [{}, {"window": 20}, {"num_kv_heads": 1}], ids=["causal", "window", "grouped"])
@pytest.mark.parametrize("count", [1, 3, 70, 240])
def test_last_weights_are_the_last_row_of_all_weights(changes, count) -> None:
    model, name = make_model(**changes), "trunk.blocks.1.attention.core.weights"
    with torch.no_grad(), Trace(model, name) as trace:
        model(model.encode(TEXT)[:count])
    assert torch.equal(trace.last_weights(name), trace[name][:, :, -1])


def test_a_walk_never_holds_the_weights_of_all_queries() -> None:
    model = make_model()
    heads, length = model.config.num_heads, len(model.encode(TEXT))
    with LargestResult() as largest:
        walk(model, TEXT)
    assert 0 < largest.elements < heads * length**2
