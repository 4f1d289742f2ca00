"""The loss of a task: where the head reads, what padding and micro-batches change (nothing), and lambda."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from foretell.config.model import ModelConfig
from foretell.finetuning.head import TaskObjective, new_head
from foretell.finetuning.inputs import BatchOrder, EncodedExample, iter_by_length, make_task_batch, without_words
from foretell.finetuning.kind import POOLS
from foretell.finetuning.settings import Columns, HeadSettings
from foretell.model.init import make_decoder
from foretell.training.step import seed_dropout

DECODER = ModelConfig(num_layers=1, num_heads=2, width=8, context_length=8, vocab_size=9, dropout=0.2)
LABELS = {
    "classify": ("a", "b", "c"),
    "similarity": ("a", "b"),
    "entailment": ("a", "b", "c"),
    "choice": (),
    "regress": (),
}
EXAMPLES = {
    "classify": [EncodedExample(([1, 2, 3],), (2,)), EncodedExample(([4, 5],), (0,)), EncodedExample(([0],), (1,))],
    "regress": [
        EncodedExample(([1, 2, 3],), (0.5,)),
        EncodedExample(([4, 0],), (-1.0,)),
        EncodedExample(([7, 3],), (0.1,)),
    ],
    "similarity": [EncodedExample(([1, 2, 3], [3, 2, 1]), (1,)), EncodedExample(([4, 0], [0, 4]), (0,))] * 2,
    "choice": [EncodedExample(([1, 2], [3, 4], [5, 0, 0]), (2,)), EncodedExample(([6, 0], [7, 8]), (1,))],
}


def objective_of(task: Any, lm_weight: float = 0.5, pool: Any = "extract") -> TaskObjective:
    settings = HeadSettings(task=task, labels=LABELS[task], pool=pool, columns=Columns(texts=()))
    head = new_head(settings, DECODER.width, seed=2)
    with torch.no_grad():
        head.linear.weight.mul_(50)  # so that outputs differ
    return TaskObjective(make_decoder(DECODER, seed=1), head, lm_weight, head_dropout=0.2).double()


@pytest.mark.parametrize("pool", POOLS)
def test_the_vector_of_a_text_does_not_depend_on_padding(pool: str) -> None:
    hidden = torch.randn(2, 5, 3)
    lengths = torch.tensor([3, 5])
    alone = POOLS[pool](hidden[:1, :3], lengths[:1])
    assert torch.allclose(POOLS[pool](hidden, lengths)[:1], alone)
    # a text may end in the id of padding: its last token is found by its length
    if pool != "mean":
        assert torch.equal(alone[0], hidden[0, 2])


@pytest.mark.parametrize("task", EXAMPLES)
def test_a_batch_gives_what_its_examples_give_alone(task: str) -> None:
    objective = objective_of(task).eval()
    together = objective.outputs(make_task_batch(EXAMPLES[task]))[0]
    for row, example in zip(together, EXAMPLES[task], strict=True):
        alone = objective.outputs(make_task_batch([example]))[0][0]
        assert torch.allclose(row[: len(alone)], alone)
        assert row[len(alone) :].tolist() == [float("-inf")] * (len(row) - len(alone))


@pytest.mark.parametrize("task", EXAMPLES)
def test_micro_batches_give_the_gradient_of_the_whole_batch(task: str) -> None:
    examples = (EXAMPLES[task] * 2)[:4]
    gradients = []
    for parts in (1, 2):
        objective, batch = objective_of(task).train(), make_task_batch(examples)
        for first in range(0, 4, 4 // parts):
            seed_dropout(objective, seed=3, step=1, first_row=first, rows=4 // parts)
            objective(batch.rows(first, first + 4 // parts)).sum.backward()
        gradients.append([weight.grad for weight in objective.parameters()])
    assert all(torch.allclose(one, two) for one, two in zip(*gradients, strict=True))


def test_lambda_adds_the_language_modelling_loss_in_training_alone() -> None:
    batch = make_task_batch(EXAMPLES["classify"])
    losses = {}
    for lm_weight in (0.0, 0.5):
        objective = objective_of("classify", lm_weight).train()
        loss = losses[lm_weight] = objective(batch)
        assert ("language_modelling" in loss.parts) == (lm_weight > 0)
        assert objective.eval()(batch).sum == objective(batch).parts["task"]
    text = losses[0.5].parts["language_modelling"]
    assert torch.allclose(losses[0.5].sum, losses[0.0].sum + 0.5 * text)


def test_similarity_does_not_depend_on_the_order_of_the_texts() -> None:
    objective = objective_of("similarity").eval()
    swapped = EncodedExample(EXAMPLES["similarity"][0].sequences[::-1], (1,))
    outputs = objective.outputs(make_task_batch([EXAMPLES["similarity"][0], swapped]))[0]
    assert torch.allclose(outputs[0], outputs[1])


def test_batches_are_a_function_of_seed_and_step_and_use_every_example() -> None:
    lengths = [3, 9, 4, 7, 1, 8, 2, 6, 5]
    order, again = (BatchOrder(lengths, 3, seed=1) for _ in range(2))
    epochs = [[order.indices(step).tolist() for step in range(3 * epoch, 3 * epoch + 3)] for epoch in range(4)]
    assert again.indices(7).tolist() == epochs[2][1]
    assert all(sorted(index for batch in epoch for index in batch) == list(range(9)) for epoch in epochs)
    assert epochs[0] != epochs[1] != BatchOrder(lengths, 3, seed=2).indices(0).tolist()
    # one pool of batches: each batch holds neighbours in length
    assert sorted(sorted(lengths[index] for index in batch) for batch in epochs[0]) == [[1, 2, 3], [4, 5, 6], [7, 8, 9]]


def test_evaluation_reads_each_example_once() -> None:
    examples = [EncodedExample(([1] * length,)) for length in (5, 1, 3)]
    assert sorted(index for indices, _ in iter_by_length(examples) for index in indices) == [0, 1, 2]


def test_word_dropout_is_a_function_of_its_key_and_keeps_the_tokens_of_the_format() -> None:
    example = EncodedExample(([8, *range(1, 7), 7], [8, *range(1, 7), 3]), (1,))
    once, again, other = (without_words(example, 0.5, key, {7, 8}) for key in (1, 1, 2))
    assert once == again != other
    for kept, whole in zip(once.sequences, example.sequences, strict=True):
        assert (kept[0], kept[-1]) == (whole[0], whole[-1])
        assert len(kept) < len(whole)
