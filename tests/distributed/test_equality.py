"""Many processes train as one does."""

from __future__ import annotations

import pytest

KINDS = ["adamw", "muon", "sgd", "accumulated"]
BOUND = 2e-5  # of losses and gradient norms, relative: sums in another order, through five steps


@pytest.mark.parametrize("size", [2, pytest.param(4, marks=pytest.mark.long)])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_losses_are_those_of_one_process(results, size: int, kind: str, parallel: str) -> None:
    figures = results(size)["trainings"][kind]
    assert figures[parallel] == pytest.approx(figures["alone"], rel=BOUND)
