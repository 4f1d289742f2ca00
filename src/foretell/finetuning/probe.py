"""The first weights of a head: a linear probe on the vectors of the model before training.

Ridge regression in closed form. Its strength and the scale of its outputs are those with the best leave-one-out figure
(Rifkin and Lippert 2007). A head that starts from a probe distorts the pretrained vectors less than a random one (Kumar
et al. 2022, "Fine-tuning can distort pretrained features").
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn

from foretell.finetuning.head import TaskHead, head_outputs
from foretell.finetuning.inputs import EncodedExample, Target
from foretell.finetuning.kind import Kind
from foretell.finetuning.tuning import SMALL_WIDTH
from foretell.model.decoder import Decoder
from foretell.numerics.randomness import permutation, stream_key

MOST_EXAMPLES = 4096  # more cost time and hardly change the probe
# As shares of the squares around the mean. Weaker ones fit the training examples so well that little is left to learn:
# on 1,000 rows of SST-2, 7e-4 has a loss of 0.31 in training and 0.46 on others, 7e-3 has 0.45 and 0.48
STRENGTHS = (1.0, 0.3, 0.1, 0.03, 0.01)
TINY = 1e-12  # against a division by 0 if all vectors are 0
MOST_LEVERAGE = 1 - 1e-6  # an example that alone decides its output would divide by 0
SCALES = tuple(2.0**power for power in range(8))  # of logits; ridge regression learns 0 and 1


def starts_from_probe(head: TaskHead, width: int, target: Target) -> bool:
    """True if the head of a new training starts from a probe: for larger models, with a vector per example."""
    return width >= SMALL_WIDTH and head.task.regression_targets([target]) is not None


def fit_probe(
    decoder: Decoder, head: TaskHead, examples: Sequence[EncodedExample], seed: int, dtype: torch.dtype
) -> Tensor:
    """The weight (C, D) of a probe on the vectors that the head reads, computed on the device of the decoder."""
    kind, width = head.task, decoder.config.width
    order = permutation(stream_key("probe", seed), len(examples))[:MOST_EXAMPLES].tolist()
    chosen = [examples[index] for index in order]
    identity = nn.Linear(width, width, bias=False)
    nn.init.eye_(identity.weight)
    reader = replace(head, linear=identity.to(next(decoder.parameters()).device))
    vectors = np.stack(head_outputs(decoder.eval(), reader, chosen, dtype))  # (N, D)
    decoder.train()
    return torch.tensor(ridge(vectors, kind, [example.target for example in chosen]), dtype=torch.float32)


def ridge(vectors: np.ndarray, kind: Kind, targets: Sequence[Target]) -> np.ndarray:
    """The ridge regression (C, D) from vectors (N, D) to targets with the best first figure, leave one out."""
    wanted = kind.regression_targets(targets)  # (N, C)
    assert wanted is not None, "the head reads a vector per example"
    values, directions = np.linalg.eigh(vectors.T @ vectors)
    rotated, squares = vectors @ directions, len(vectors) * vectors.var(0).sum()  # (N, D)
    best, weight = np.inf, np.zeros((wanted.shape[1], vectors.shape[1]))
    for share in STRENGTHS:
        inverse = 1 / (np.maximum(values, 0) + share * squares + TINY)  # (D,)
        of_directions = inverse[:, None] * (rotated.T @ wanted)  # (D, C)
        leverage = np.minimum(rotated**2 @ inverse, MOST_LEVERAGE)[:, None]  # (N, 1)
        left_out = (rotated @ of_directions - leverage * wanted) / (1 - leverage)
        for scale in SCALES if kind.settings.labels else (1.0,):
            figure = next(iter(kind.figures(list(scale * left_out), targets).values()))
            if figure < best:
                best, weight = figure, scale * (directions @ of_directions).T
    return weight
