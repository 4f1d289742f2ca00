"""Explanations of the distribution after a position: probabilities, their logarithms, entropy and losses."""

from __future__ import annotations

import math

import numpy as np
import torch

from foretell.errors import UsageError
from foretell.insight.explain.steps import (
    Explainer,
    Listing,
    Working,
    applied,
    equals,
    quotient,
    scale_of,
    softmax_equation,
)
from foretell.insight.recording import Array, Recording, TracedScalar, address_of, to_array
from foretell.model.decoder import HEAD

PROBABILITIES, LOSS = "probabilities", "loss"


class Distribution:
    """The softmax of the logits after a position, over the tokens of the tokenizer."""

    def __init__(self, recording: Recording, position: int):
        self.recording, self.position = recording, position
        self.logits: Array = to_array(recording.logits(position))[: recording.vocabulary]
        self.largest = float(self.logits.max())
        self.exponentials: Array = np.exp(self.logits - self.largest)
        self.total = float(self.exponentials.sum())

    def listing(self, focus: int | None = None) -> Listing:
        """All tokens, the most probable one first."""
        order = np.argsort(-self.logits, kind="stable")
        columns = {
            "number": order.tolist(),
            "token": [self.recording.named(token_id) for token_id in order.tolist()],
            "logit": self.logits[order],
            "exp": self.exponentials[order],
            "probability": self.exponentials[order] / self.total,
        }
        position = self.position
        note = f"logits = head[{position}], most probable first; exp is of logit - {self.largest:.6f}, the largest"
        names = {"logit": HEAD, "exp": f"{PROBABILITIES}.exponentials", "probability": PROBABILITIES}
        opens = {column: address_of(name, position, ":") for column, name in names.items()}
        row = None if focus is None else int(np.flatnonzero(order == focus)[0])
        return Listing(note, columns, ("exp", "probability"), row, opens=opens)


def explain_probability(recording: Recording, scalar: TracedScalar) -> Working:
    """exp(logit) over the sum of all exp(logit), with the tokens sorted by probability."""
    return probability_of(Distribution(recording, scalar.index[0]), scalar.index[1])


def probability_of(after: Distribution, token: int) -> Working:
    equation = softmax_equation("probability", after.exponentials, token, "v")
    scale = equation.value * (2 + after.largest - float(after.logits[token]))
    return Working([after.listing(token), equation], equation.value, scale)


def explain_exponential(recording: Recording, scalar: TracedScalar) -> Working:
    """exp of a logit minus the largest, so that no exponential overflows."""
    (position, token), after = scalar.index, Distribution(recording, scalar.index[0])
    logit, best = float(after.logits[token]), int(after.logits.argmax())
    value = math.exp(logit - after.largest)
    operands = {"logit": address_of(HEAD, position, token), "largest": address_of(HEAD, position, best)}
    equation = equals(value, "exp(logit - largest) =", applied("exp", logit - after.largest), operands=operands)
    return Working([equation], value, value * (2 + after.largest - logit))


def explain_total(recording: Recording, scalar: TracedScalar) -> Working:
    """The sum of all exp(logit), which a probability is divided by."""
    after = Distribution(recording, scalar.index[0])
    listing = after.listing()
    total = listing.sums["exp"]
    return Working([listing, equals(total, "divisor")], total, 8 * scale_of(listing))


def explain_logprob(recording: Recording, scalar: TracedScalar) -> Working:
    """The logarithm of a probability."""
    token, after = scalar.index[1], Distribution(recording, scalar.index[0])
    probability = probability_of(after, token)
    value = float(after.logits[token]) - after.largest - math.log(after.total)
    equation = equals(value, "logprob =", applied("log", probability.value))
    return Working([*probability.steps, equation], value, 2 + abs(value))


def explain_loss(recording: Recording, scalar: TracedScalar) -> Working:
    """-log of the probability of the next token."""
    position = scalar.index[0]
    target = recording.ids[position + 1]
    logprob = explain_logprob(recording, TracedScalar(scalar.value, (position, target)))
    probability = math.exp(logprob.value)
    note = f"position {position} is followed by {recording.token(position + 1)}, id {target}; in nats"
    equation = equals(-logprob.value, "loss = -", applied("log", probability), note=note)
    return Working([*logprob.steps[:-1], equation], equation.value, logprob.scale)


def explain_mean_loss(recording: Recording, scalar: TracedScalar) -> Working:
    """The mean of the losses of all tokens but the first."""
    losses = losses_of(recording)
    positions = range(len(losses))
    columns = {
        "position": positions,
        "next token": [recording.token(position + 1) for position in positions],
        "loss": losses,
    }
    listing = Listing("", columns, ("loss",), opens={"loss": address_of(LOSS, ":")})
    total = listing.sums["loss"]
    equation = equals(total / len(losses), "mean =", quotient(total, len(losses)))
    return Working([listing, equation], equation.value, 8 * scale_of(listing) / len(losses))


def losses_of(recording: Recording) -> list[float]:
    """The loss of each token but the first. Raises `UsageError` for a text of one token."""
    if len(recording.ids) < 2:
        raise UsageError("loss.mean does not exist: the text has one token, and no token follows it")
    return recording.losses


def explain_entropy(recording: Recording, scalar: TracedScalar) -> Working:
    """The mean of -log of the probability, in nats."""
    listing = Distribution(recording, scalar.index[0]).listing()
    probabilities = np.asarray(listing.columns["probability"])
    logs = np.log(np.maximum(probabilities, np.finfo(float).tiny))
    kept = {name: listing.columns[name] for name in ("number", "token", "probability")}
    columns = {**kept, "-log": -logs, "product": -probabilities * logs}
    opens = {"probability": listing.opens["probability"]}
    added = Listing("most probable first; in nats", columns, ("probability", "product"), opens=opens)
    value = added.sums["product"]
    return Working([added, equals(value, "entropy")], value, 8 * scale_of(added))


def logprobs_of(recording: Recording, position: int) -> torch.Tensor:
    """The log-probabilities (V,) after a position in float64, as `next` and `score` compute them."""
    return recording.model.log_probabilities(recording.logits(position))


def stored_in_distribution(recording: Recording, scalar: TracedScalar) -> float | None:
    """The number as `next` and `score` compute it; None for one that they do not have."""
    if scalar.name == "loss.mean":
        return float(np.mean(losses_of(recording)))
    position, *rest = scalar.index
    logprobs = logprobs_of(recording, position)
    stored = {
        "probabilities": lambda: logprobs[rest[0]].exp(),
        "logprobs": lambda: logprobs[rest[0]],
        "entropy": lambda: -(logprobs.exp() * logprobs.clamp(min=torch.finfo(logprobs.dtype).min)).sum(),
        "loss": lambda: -logprobs[recording.ids[position + 1]],
    }
    return float(stored[scalar.name]()) if scalar.name in stored else None


DISTRIBUTION_EXPLAINERS: dict[str, Explainer] = {
    "probability": explain_probability,
    "exponential of a logit": explain_exponential,
    "sum over the vocabulary": explain_total,
    "log-probability": explain_logprob,
    "entropy": explain_entropy,
    "loss": explain_loss,
    "mean loss": explain_mean_loss,
}
