"""The loss: cross entropy of the targets that count, in chunks or at once."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

from foretell.data.batch import Batch
from foretell.evaluation.loss import evaluate
from foretell.model.cache import FreshKVView
from foretell.training.objective import Objective, logits_on_cpu, logits_on_gpu

MakeObjective = Callable[..., Objective]

# of 8 * 6 rows of 14 logits each
CHUNKS = {"a row at a time": 1, "uneven chunks": 14 * 7, "two chunks": 14 * 24, "at once": 10**6}


def gradients(objective: Objective, batch: Batch) -> dict[str, torch.Tensor]:
    objective.zero_grad()
    objective(batch).sum.backward()
    return {path: one.grad.clone() for path, one in objective.decoder.named_parameters() if one.grad is not None}


def test_the_loss_is_the_cross_entropy_of_the_targets_that_count(make_objective: MakeObjective, batch: Batch) -> None:
    objective = make_objective()
    logits = objective.decoder(batch.ids, FreshKVView(batch.ids, batch.positions, batch.document_ids))
    expected = F.cross_entropy(logits[batch.loss_weights == 1], batch.targets[batch.loss_weights == 1], reduction="sum")
    loss = objective(batch)
    torch.testing.assert_close(loss.sum, expected)
    assert loss.count == batch.loss_weights.sum()
    assert loss.mean == pytest.approx(float(expected.detach()) / batch.count)
    assert torch.equal(loss.parts["cross_entropy"], loss.sum.detach())


@pytest.mark.parametrize("logits_at_once", CHUNKS.values(), ids=CHUNKS)
@pytest.mark.parametrize("tied", [True, False])
def test_chunked_loss_and_gradient_equal_the_unchunked_ones(
    logits_at_once: int, tied: bool, make_objective: MakeObjective, batch: Batch
) -> None:
    whole = make_objective(tie_embeddings=tied, dropout=0.2)
    in_chunks = make_objective(logits_at_once, tie_embeddings=tied, dropout=0.2)
    torch.testing.assert_close(in_chunks.token_losses(batch), whole.token_losses(batch), rtol=1e-6, atol=1e-6)
    expected = gradients(whole, batch)
    for path, gradient in gradients(in_chunks, batch).items():
        torch.testing.assert_close(gradient, expected[path], rtol=1e-5, atol=1e-6)


class SummedHead(torch.nn.Module):
    """A head whose two weights get one gradient, of which one is in no optimizer if it is frozen."""

    def __init__(self, width: int, vocab_size: int):
        super().__init__()
        self.first, self.second = (torch.nn.Parameter(torch.randn(vocab_size, width)) for _ in range(2))

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return F.linear(input, self.first + self.second)


@pytest.mark.parametrize("frozen", ["", "first", "all"])
def test_the_gradients_of_chunks_are_those_of_any_head(
    frozen: str, make_objective: MakeObjective, batch: Batch
) -> None:
    objective = make_objective(14 * 7)
    objective.decoder.head = head = SummedHead(objective.decoder.config.width, 14)
    for name, weight in head.named_parameters():
        weight.requires_grad = frozen not in (name, "all")
    in_chunks = gradients(objective, batch)
    objective.logits_at_once = 10**6
    whole = gradients(objective, batch)
    assert in_chunks.keys() == whole.keys()
    for path, gradient in whole.items():
        torch.testing.assert_close(in_chunks[path], gradient, rtol=1e-5, atol=1e-6)


def test_chunks_stay_within_the_limit(make_objective: MakeObjective, batch: Batch) -> None:
    objective = make_objective(14 * 7)
    sizes = []
    objective.decoder.head.register_forward_hook(lambda module, inputs, logits: sizes.append(logits.numel()))
    for run in (lambda: evaluate(objective, [batch]), lambda: gradients(objective, batch)):
        sizes.clear()
        run()
        assert max(sizes) <= 14 * 7
        assert sum(sizes) == batch.count * 14  # once, and only for positions that count


def test_a_chunk_suits_the_cache_of_a_cpu_or_the_memory_of_a_gpu() -> None:
    assert [logits_on_cpu(vocab_size) for vocab_size in (65, 2**14, 2**15)] == [2**22, 2**22, 2**23]
    assert [logits_on_gpu(memory) for memory in (64 * 10**9, 10**12)] == [10**9, 2**31 - 1]


def test_targets_of_weight_0_change_neither_loss_nor_gradient(make_objective: MakeObjective, batch: Batch) -> None:
    other = dataclasses.replace(batch, targets=torch.where(batch.loss_weights == 1, batch.targets, 5))
    assert not torch.equal(other.targets, batch.targets)
    objective = make_objective()
    assert torch.equal(objective(batch).sum, objective(other).sum)
    expected = gradients(objective, batch)
    assert all(torch.equal(gradient, expected[path]) for path, gradient in gradients(objective, other).items())


def test_a_batch_without_targets_has_loss_0(make_objective: MakeObjective, batch: Batch) -> None:
    loss = make_objective()(dataclasses.replace(batch, loss_weights=torch.zeros_like(batch.loss_weights)))
    assert (float(loss.sum.detach()), float(loss.count), loss.mean) == (0, 0, 0)


def test_uniform_predictions_have_the_loss_ln_of_the_vocabulary(make_objective: MakeObjective, batch: Batch) -> None:
    objective = make_objective()
    torch.nn.init.zeros_(objective.decoder.embed.token.weight)
    evaluation = evaluate(objective, [batch])
    assert evaluation.loss == pytest.approx(math.log(14))
    assert evaluation.perplexity == pytest.approx(14)
    assert evaluation.tokens == batch.count


def test_evaluation_of_several_batches_weighs_all_targets_equally(make_objective: MakeObjective, batch: Batch) -> None:
    objective = make_objective(dropout=0.3)
    together = evaluate(objective, [batch])
    in_parts = evaluate(objective, [batch.rows(0, 1), batch.rows(1, 8)])
    assert in_parts.loss == pytest.approx(together.loss)
    assert in_parts.tokens == together.tokens
    assert objective.training


# --- label smoothing -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("logits_at_once", [14 * 7, 10**6], ids=["chunks", "at once"])
def test_label_smoothing_leaves_a_share_for_every_token(
    logits_at_once: int, make_objective: MakeObjective, batch: Batch
) -> None:
    decoder = make_objective().decoder
    logprobs = decoder(batch.ids, FreshKVView(batch.ids, batch.positions, batch.document_ids)).log_softmax(-1)
    one_hot = F.one_hot(batch.targets, 14)
    expected = -((0.7 * one_hot + 0.3 / 14) * logprobs).sum(-1)
    loss = Objective(decoder, logits_at_once, label_smoothing=0.3).train()
    torch.testing.assert_close(loss.token_losses(batch), expected)
    assert "smoothed_cross_entropy" in loss(batch).parts


def test_evaluation_is_never_smoothed(make_objective: MakeObjective, batch: Batch) -> None:
    plain = make_objective()
    smoothed = Objective(plain.decoder, label_smoothing=0.3).train()
    assert not torch.equal(smoothed(batch).sum, plain(batch).sum)
    assert evaluate(smoothed, [batch]) == evaluate(plain, [batch])
    assert "cross_entropy" in smoothed.eval()(batch).parts
