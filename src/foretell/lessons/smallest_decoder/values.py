"""What the smallest decoder computes, by the model and by the textbook."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from foretell.data.batch import PADDING, make_batch, make_document_batch, pad
from foretell.inference.query import embed as embed_text
from foretell.inference.query import score
from foretell.insight.trace import Trace
from foretell.lessons.smallest_decoder import printed
from foretell.lessons.smallest_decoder.model import CONTEXT, LAYER, Weights, config, make_model
from foretell.textbook.arrays import Matrix
from foretell.textbook.attention import attention, attention_weights, project, unidirectional_mask
from foretell.textbook.embedding import embed
from foretell.textbook.family.decoder import decoder_forward
from foretell.textbook.parameters import AttentionParameters
from foretell.textbook.softmax import softmax_per_column
from foretell.training.objective import Objective

IDS = [0, 1, 2, 3, 4]
TARGETS = [1, 2, 3, 4, 5]
OTHER = [4, 1, 5]  # another text, for the same batch: "awesome data!"
ROOM = len(IDS) + len(OTHER)  # what a row must hold so that both fit into it
NAMES = {  # what the lesson calls a value -> its name in the trace
    "token": "embed.token",
    "position": "embed.position",
    "stream": "embed",
    **{name: f"{LAYER}.core.{name}" for name in ("query", "key", "value", "scores", "scaled", "masked", "weights")},
    "output": f"{LAYER}.core",
    "logits": "head",
}


@dataclass(frozen=True)
class Chain:
    """The probability of the sentence, given its first token."""

    logprobs: list[float | None]
    logprob: float
    representation: list[float]  # the last token's vector


def model_values(weights: Weights) -> dict[str, Matrix]:
    """Every number of one pass over the five tokens, read from the model by a trace; one row a token."""
    model = make_model(weights)
    with torch.inference_mode(), Trace(model, list(NAMES.values())) as trace:
        model.decoder(torch.tensor([IDS]))
    values = {name: squeeze(trace[path]) for name, path in NAMES.items()}
    return values | {"probabilities": squeeze(torch.from_numpy(values["logits"]).softmax(-1))}


def squeeze(value: Tensor) -> Matrix:
    """Without the axes of rows and heads, of which there is one each."""
    return value.reshape(value.shape[-2:]).numpy()


def textbook_values(weights: Weights) -> dict[str, Matrix]:
    """The same by the formal algorithms, which have one column a token; turned to one row a token."""
    arrays = {path: weight.numpy() for path, weight in weights.items()}
    zero = np.zeros(3)
    W_q, W_k, W_v = (arrays[f"{LAYER}.{name}.weight"] for name in ("query", "key", "value"))
    head = AttentionParameters(W_q, zero, W_k, zero, W_v, zero)
    X, mask = embed(IDS, arrays["embed.token.weight"].T, arrays["embed.position.weight"].T), unidirectional_mask(5)
    columns = {
        "stream": X,
        "query": project(W_q, zero, X),
        "key": project(W_k, zero, X),
        "value": project(W_v, zero, X),
        "weights": attention_weights(X, X, head, mask),
        "output": attention(X, X, head, mask),
        "logits": decoder_forward(config(), arrays, IDS).T,
    }
    columns["probabilities"] = softmax_per_column(columns["logits"])
    return {name: value.T for name, value in columns.items()}


@torch.inference_mode()
def losses_by_layout(weights: Weights) -> dict[str, list[float]]:
    """-log P of the sentence's five targets where it stands alone, padded, and packed beside another text."""
    sentence = [*IDS, TARGETS[-1]]
    padded, lengths = pad([sentence, OTHER], ROOM + 1)
    packed = np.array([[*OTHER, *sentence]])  # ours comes second: what is not hidden from it would be seen
    numbers = np.array([[0] * len(OTHER) + [1] * len(sentence)])
    in_documents = np.where(np.arange(ROOM + 1) < np.array(lengths)[:, None], 0, PADDING)
    batches = {
        "alone": make_batch(np.array([sentence])),
        "padded": make_batch(padded, lengths),
        "padded, and hidden": make_document_batch(padded, in_documents),
        "packed": make_document_batch(packed, numbers),
    }
    objective = Objective(make_model(weights, ROOM).decoder)
    losses = {name: objective.token_losses(batch)[0] for name, batch in batches.items()}  # (T,) each
    losses["packed"] = losses["packed"][len(OTHER) :]
    return {name: values[:CONTEXT].tolist() for name, values in losses.items()}


def chain(weights: Weights) -> Chain:
    """What `foretell score` and `foretell embed` say of the sentence."""
    model = make_model(weights, ROOM)
    found = score(model, printed.TEXT)
    return Chain([token.logprob for token in found.tokens], found.logprob, embed_text(model, printed.TEXT[:-1]))


@dataclass(frozen=True)
class Everything:
    """All that the lesson shows and checks."""

    weights: Weights
    model: dict[str, Matrix]
    textbook: dict[str, Matrix]
    layouts: dict[str, list[float]]
    chain: Chain

    def weight(self, name: str) -> Matrix:
        """The query's, key's or value's weight."""
        return self.weights[f"{LAYER}.{name}.weight"].numpy()


def compute(weights: Weights) -> Everything:
    """All of it, for these weights."""
    return Everything(
        weights, model_values(weights), textbook_values(weights), losses_by_layout(weights), chain(weights)
    )
