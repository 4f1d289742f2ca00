"""The attention weights of the last query alone: the same bits, without the weights of all queries."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from foretell.insight.explain.walk import walk
from foretell.insight.trace import Trace
from tests.toy import make_toy

TEXT = "a text of some length that is read here, and then once more; " * 4


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
    model, name = make_toy(seed=1, context_length=256, **changes), "trunk.blocks.1.attention.core.weights"
    with torch.no_grad(), Trace(model, name) as trace:
        model(model.encode(TEXT)[:count])
    assert torch.equal(trace.last_weights(name), trace[name][:, :, -1])


def test_a_walk_never_holds_the_weights_of_all_queries() -> None:
    model = make_toy(seed=1, context_length=256)
    heads, length = model.config.num_heads, len(model.encode(TEXT))
    with LargestResult() as largest:
        walk(model, TEXT)
    assert 0 < largest.elements < heads * length**2
