"""Values that are computed again in the backward pass: the same gradients from less memory."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from foretell.config import ModelConfig
from foretell.data.batch import make_batch
from foretell.errors import ConfigError
from foretell.model.init import make_decoder
from foretell.model.surgery import copy_with
from foretell.training.execution import Recomputing
from foretell.training.objective import Objective
from foretell.training.step import seed_dropout

SHAPE = ModelConfig(num_layers=3, num_heads=2, width=16, context_length=12, vocab_size=29, dropout=0.2)
BATCH = make_batch(torch.randint(29, (4, 13), generator=torch.Generator().manual_seed(1)).numpy())


def gradients(*globs: str, move: bool = False) -> tuple[dict[str, Tensor], int]:
    """The gradients, and how many elements the graph keeps. move: the counters change before the backward pass."""
    decoder = make_decoder(SHAPE, seed=2)
    if globs:
        Recomputing(decoder, globs, decoder.dropout_rng)
    objective = Objective(decoder).train()
    seed_dropout(objective, 1, 5, 0, 4)
    kept: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.numel()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = objective(BATCH).sum
    if move:
        decoder.dropout_rng.step = 6
    loss.backward()
    return {path: weight.grad for path, weight in decoder.named_parameters() if weight.grad is not None}, sum(
        kept.values()
    )


@pytest.mark.parametrize("glob", ["trunk.blocks.*", "**.feedforward", "trunk.blocks.1"])
@pytest.mark.parametrize("move", [False, True])
def test_gradients_are_bit_identical_from_less_memory(glob: str, move: bool) -> None:
    expected, kept = gradients()
    actual, less = gradients(glob, move=move)
    assert all(torch.equal(expected[path], actual[path]) for path in expected)
    assert less < kept


def test_paths_classes_and_evaluation_stay() -> None:
    plain, changed = make_decoder(SHAPE, seed=2).eval(), make_decoder(SHAPE, seed=2).eval()
    recomputing = Recomputing(changed, ("trunk.blocks.*",), changed.dropout_rng)
    assert list(recomputing.modules) == [f"trunk.blocks.{i}" for i in range(3)]
    assert [(path, type(module)) for path, module in plain.named_modules()] == [
        (path, type(module)) for path, module in changed.named_modules()
    ]
    with torch.no_grad():
        assert torch.equal(plain(BATCH.ids), changed(BATCH.ids))


def test_copies_run_their_own_modules_while_it_is_suspended() -> None:
    decoder = make_decoder(SHAPE, seed=2).eval()
    recomputing = Recomputing(decoder, ("trunk.blocks.*",), decoder.dropout_rng)
    other = nn.Identity()
    with recomputing.suspended():
        changed = copy_with(decoder, {"trunk.blocks.0.feedforward": other})
        assert not torch.equal(changed(BATCH.ids), decoder(BATCH.ids))
    assert "forward" in vars(decoder.trunk.blocks[0])


def test_hooks_see_one_pass() -> None:
    decoder, seen = make_decoder(SHAPE, seed=2), list[nn.Module]()
    Recomputing(decoder, ("trunk.blocks.*",), decoder.dropout_rng)
    decoder.trunk.blocks[0].register_forward_hook(lambda module, inputs, output: seen.append(module))
    Objective(decoder).train()(BATCH).sum.backward()
    assert len(seen) == 1


def test_a_glob_without_a_match_is_refused() -> None:
    decoder = make_decoder(SHAPE, seed=2)
    with pytest.raises(ConfigError, match=r"checkpoint_activations: no module is named 'trunk.layers.\*'"):
        Recomputing(decoder, ("trunk.layers.*",), decoder.dropout_rng)
