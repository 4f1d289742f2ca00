"""Explanations of the distribution after a position: probabilities, their logarithms, entropy and losses."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from foretell.errors import UsageError
from foretell.insight.address import address_of
from foretell.insight.explain.steps import (
    Explainer,
    Listing,
    Working,
    applied,
    equals,
    exponentials_of,
    mean_equation,
    scale_of,
    softmax_equation,
)
from foretell.insight.recorded_pass import Array, RecordedPass, TracedScalar, to_array
from foretell.model.decoder import HEAD

PROBABILITIES, LOSS = "probabilities", "loss"
FILTERED = f"{PROBABILITIES}.filtered"


@dataclass(frozen=True)
class SampledLogits:
    """Filters by their settings; `apply` gives logits (V,) after them, minus infinity for excluded tokens, and a note
    about the temperature."""

    settings: str
    apply: Callable[[Array], tuple[Array, str]]


class Distribution:
    """The softmax of the logits after a position, over the tokens of the tokenizer.

    sampled: filters before the softmax; excluded tokens have minus infinity in `logits`.
    """

    def __init__(self, recording: RecordedPass, position: int, sampled: SampledLogits | None = None):
        settings = None if sampled is None else sampled.settings
        self.recording, self.position, self.settings = recording, position, settings
        read = recording.logits if sampled is None else recording.pass_logits  # the page filters the pass's logits
        self.plain: Array = to_array(read(position))[: recording.vocabulary]
        self.logits, scaled = (self.plain, "") if sampled is None else sampled.apply(self.plain)
        self.order = np.argsort(-self.logits, kind="stable")[: np.count_nonzero(self.logits != -np.inf)].tolist()
        self.largest = float(self.logits.max())
        self.exponentials = exponentials_of(self.logits)
        self.total = float(self.exponentials.sum())
        kept = f"{len(self.order):,} of {len(self.logits):,} tokens are kept by {settings or 'no filter'}"
        self.note = f"{kept if settings is not None else f'logits = head[{position}]'}, most probable first; "
        self.scaled = f"{scaled}exp is of {'logit' if settings is None else 'x'} - {self.largest:.6f}, the largest"

    def listing(self, focus: int | None = None) -> Listing:
        """All tokens that are not excluded, most probable first."""
        exponentials, position = self.exponentials[self.order], self.position
        columns = {
            **self.tokens(),
            "logit": self.plain[self.order],
            **({} if self.settings is None else {"x": self.logits[self.order]}),
            "exp": exponentials,
            "probability": exponentials / self.total,
        }
        own = {"exp": f"{PROBABILITIES}.exponentials", "probability": PROBABILITIES}
        names = {"logit": HEAD, **(own if self.settings is None else {"probability": f"{FILTERED}({self.settings})"})}
        opens = {column: address_of(name, position, ":") for column, name in names.items()}
        row = self.order.index(focus) if focus in self.order else None
        return Listing(self.note + self.scaled, columns, ("exp", "probability"), row, opens=opens)

    def tokens(self) -> dict[str, list]:
        return {"number": self.order, "token": [self.recording.named(token_id) for token_id in self.order]}


def explain_probability(recording: RecordedPass, scalar: TracedScalar) -> Working:
    """exp(logit) divided by the sum of all exp(logit), with the tokens sorted by probability."""
    return probability_of(Distribution(recording, scalar.index[0]), scalar.index[1])


def probability_of(after: Distribution, token: int) -> Working:
    equation = softmax_equation("probability", after.exponentials, token, "v")
    scale = equation.value and equation.value * (2 + after.largest - float(after.logits[token]))
    return Working([after.listing(token), equation], equation.value, scale)


def explain_logit_exponential(recording: RecordedPass, scalar: TracedScalar) -> Working:
    """exp of a logit minus the largest logit, so that no exponential overflows."""
    (position, token), after = scalar.index, Distribution(recording, scalar.index[0])
    logit, best = float(after.logits[token]), int(after.logits.argmax())
    value = math.exp(logit - after.largest)
    operands = {"logit": address_of(HEAD, position, token), "largest": address_of(HEAD, position, best)}
    equation = equals(value, "exp(logit - largest) =", applied("exp", logit - after.largest), operands=operands)
    return Working([equation], value, value * (2 + after.largest - logit))


def explain_logit_divisor(recording: RecordedPass, scalar: TracedScalar) -> Working:
    """The sum of all exp(logit), the divisor of the probabilities."""
    after = Distribution(recording, scalar.index[0])
    listing = after.listing()
    total = listing.sums["exp"]
    return Working([listing, equals(total, "divisor")], total, 8 * scale_of(listing))


def explain_logprob(recording: RecordedPass, scalar: TracedScalar) -> Working:
    token, after = scalar.index[1], Distribution(recording, scalar.index[0])
    probability = probability_of(after, token)
    value = float(after.logits[token]) - after.largest - math.log(after.total)
    equation = equals(value, "logprob =", applied("log", probability.value))
    return Working([*probability.steps, equation], value, 2 + abs(value))


def explain_loss(recording: RecordedPass, scalar: TracedScalar) -> Working:
    """-log of the next token's probability."""
    position = scalar.index[0]
    target = recording.ids[position + 1]
    logprob = explain_logprob(recording, TracedScalar(scalar.value, (position, target)))
    probability = math.exp(logprob.value)
    note = f"position {position} is followed by {recording.token(position + 1)}, id {target}; in nats"
    equation = equals(-logprob.value, "loss = -", applied("log", probability), note=note)
    return Working([*logprob.steps[:-1], equation], equation.value, logprob.scale)


def explain_mean_loss(recording: RecordedPass, scalar: TracedScalar) -> Working:
    """The mean of the losses of all tokens except the first."""
    losses = losses_of(recording)
    positions = range(len(losses))
    columns = {
        "position": positions,
        "next token": [recording.token(position + 1) for position in positions],
        "loss": losses,
    }
    listing = Listing("", columns, ("loss",), opens={"loss": address_of(LOSS, ":")})
    equation = mean_equation(listing)
    return Working([listing, equation], equation.value, 8 * scale_of(listing) / len(losses))


def losses_of(recording: RecordedPass) -> list[float]:
    """The loss of each token except the first. Raises `UsageError` for a text of one token."""
    if len(recording.ids) < 2:
        raise UsageError("loss.mean does not exist: the text has only one token")
    return recording.losses


def explain_entropy(recording: RecordedPass, scalar: TracedScalar) -> Working:
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


def logprobs_of(recording: RecordedPass, position: int) -> torch.Tensor:
    """The log-probabilities (V,) after a position in float64, as `next` and `score` compute them."""
    return recording.model.log_probabilities(recording.logits(position))


def stored_in_distribution(recording: RecordedPass, scalar: TracedScalar) -> float | None:
    """The number as `next` and `score` compute it; None if they do not."""
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
    "exponential of a logit": explain_logit_exponential,
    "sum over the vocabulary": explain_logit_divisor,
    "log-probability": explain_logprob,
    "entropy": explain_entropy,
    "loss": explain_loss,
    "mean loss": explain_mean_loss,
}
