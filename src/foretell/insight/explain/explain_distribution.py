"""Explanations of the distribution after a position: probabilities, their logarithms, entropy and losses.

Also of the distribution after sampling filters, and of the next value of a series.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

import numpy as np
import torch

from foretell.config import SamplingConfig, make_section
from foretell.errors import UsageError
from foretell.generation.filters import FILTERS, SHAPING, make_filters
from foretell.insight.address import Address
from foretell.insight.explain.explanation import Explained, Explanation, NumberKind, explain_number
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
from foretell.insight.recording import Array, Recording, TracedScalar, address_of, to_array
from foretell.model.decoder import HEAD
from foretell.paths import suggest

PROBABILITIES, LOSS = "probabilities", "loss"
FILTERED, KEPT = f"{PROBABILITIES}.filtered", f"{PROBABILITIES}.kept"
NEXT_MEAN, NEXT_QUANTILE = "next_value.mean", "next_value.quantile"
OF_SAMPLING = (FILTERED, KEPT, NEXT_MEAN, NEXT_QUANTILE)  # names without their settings


class Distribution:
    """The softmax of the logits after a position, over the tokens of the tokenizer.

    settings: of filters before the softmax, as in `explain_sampling`; excluded tokens have minus infinity in `logits`.
    """

    def __init__(self, recording: Recording, position: int, settings: str | None = None):
        self.recording, self.position, self.settings = recording, position, settings
        read = recording.logits if settings is None else recording.pass_logits  # the page filters the pass's logits
        self.plain: Array = to_array(read(position))[: recording.vocabulary]
        self.logits, scaled = (self.plain, "") if settings is None else filtered(self.plain, settings)
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


def explain_probability(recording: Recording, scalar: TracedScalar) -> Working:
    """exp(logit) divided by the sum of all exp(logit), with the tokens sorted by probability."""
    return probability_of(Distribution(recording, scalar.index[0]), scalar.index[1])


def probability_of(after: Distribution, token: int) -> Working:
    equation = softmax_equation("probability", after.exponentials, token, "v")
    scale = equation.value and equation.value * (2 + after.largest - float(after.logits[token]))
    return Working([after.listing(token), equation], equation.value, scale)


def explain_logit_exponential(recording: Recording, scalar: TracedScalar) -> Working:
    """exp of a logit minus the largest logit, so that no exponential overflows."""
    (position, token), after = scalar.index, Distribution(recording, scalar.index[0])
    logit, best = float(after.logits[token]), int(after.logits.argmax())
    value = math.exp(logit - after.largest)
    operands = {"logit": address_of(HEAD, position, token), "largest": address_of(HEAD, position, best)}
    equation = equals(value, "exp(logit - largest) =", applied("exp", logit - after.largest), operands=operands)
    return Working([equation], value, value * (2 + after.largest - logit))


def explain_logit_divisor(recording: Recording, scalar: TracedScalar) -> Working:
    """The sum of all exp(logit), the divisor of the probabilities."""
    after = Distribution(recording, scalar.index[0])
    listing = after.listing()
    total = listing.sums["exp"]
    return Working([listing, equals(total, "divisor")], total, 8 * scale_of(listing))


def explain_logprob(recording: Recording, scalar: TracedScalar) -> Working:
    token, after = scalar.index[1], Distribution(recording, scalar.index[0])
    probability = probability_of(after, token)
    value = float(after.logits[token]) - after.largest - math.log(after.total)
    equation = equals(value, "logprob =", applied("log", probability.value))
    return Working([*probability.steps, equation], value, 2 + abs(value))


def explain_loss(recording: Recording, scalar: TracedScalar) -> Working:
    """-log of the next token's probability."""
    position = scalar.index[0]
    target = recording.ids[position + 1]
    logprob = explain_logprob(recording, TracedScalar(scalar.value, (position, target)))
    probability = math.exp(logprob.value)
    note = f"position {position} is followed by {recording.token(position + 1)}, id {target}; in nats"
    equation = equals(-logprob.value, "loss = -", applied("log", probability), note=note)
    return Working([*logprob.steps[:-1], equation], equation.value, logprob.scale)


def explain_mean_loss(recording: Recording, scalar: TracedScalar) -> Working:
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


def losses_of(recording: Recording) -> list[float]:
    """The loss of each token except the first. Raises `UsageError` for a text of one token."""
    if len(recording.ids) < 2:
        raise UsageError("loss.mean does not exist: the text has only one token")
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


# --- the filtered distribution, and the next value of a series --------------------------------------------------------


def explain_sampling(recording: Recording, wanted: Address, levels: Array | None) -> Explanation:
    """Explain a number whose name includes settings.

    `probabilities.filtered(temperature=0.8,top_k=40)[t,v]`, also with top_p and min_p, is a probability after filters.
    `probabilities.kept(...)[t]` is the sum of the unfiltered probabilities of all tokens that the filters keep.
    `next_value.mean` and `next_value.quantile(0.25)` need levels, the values that the first tokens stand for.
    """
    name, _, settings = wanted.name.removesuffix(")").partition("(")
    T, V = len(recording.ids), recording.vocabulary
    kinds = {
        FILTERED: NumberKind(("position", "token"), (T, V), partial(filtered_probability, recording, settings)),
        KEPT: NumberKind(("position",), (T,), partial(kept_probability, recording, settings)),
    }
    if levels is not None:
        next_kind = NumberKind((), (), partial(next_value, recording, levels, settings))
        kinds |= {NEXT_MEAN: next_kind, NEXT_QUANTILE: next_kind}
    return replace(explain_number(recording, kinds, Address(name, wanted.index), {}), name=wanted.name)


def setting(text: str) -> float:
    try:
        return int(text) if text.isdecimal() else float(text)
    except ValueError:
        raise UsageError(f"'{text}' is not a number, as in {FILTERED}(temperature=0.8,top_k=40)") from None


def filtered(logits: Array, settings: str) -> tuple[Array, str]:
    """The logits (V,) after filters (minus infinity for excluded tokens), and a note about the temperature."""
    parts = [part.partition("=") for part in settings.split(",") if part]
    if unknown := [name for name, *_ in parts if name not in SHAPING]:
        raise UsageError(f"{FILTERED} has no setting '{unknown[0]}'{suggest(unknown[0], sorted(SHAPING))}")
    neutral = {name: FILTERS[name][0] for name in SHAPING}
    config = make_section(SamplingConfig, neutral | {name: setting(text) for name, _, text in parts})
    after = torch.from_numpy(logits)[None]
    for apply in make_filters(config).values():
        after = apply(after, ())
    scaled = f"x is the logit minus the largest, over {config.temperature:g}; "
    return to_array(after[0]), "" if config.temperature in (0, 1) else scaled


def filtered_probability(recording: Recording, settings: str, index: tuple[int, ...]) -> Explained:
    after, token = Distribution(recording, index[0], settings), index[1]
    return float(torch.from_numpy(after.logits).softmax(-1)[token]), probability_of(after, token)


def kept_probability(recording: Recording, settings: str, index: tuple[int, ...]) -> Explained:
    """The sum of the unfiltered probabilities of the kept tokens."""
    after = Distribution(recording, index[0], settings)
    probabilities = logprobs_of(recording, index[0]).exp()[after.order]
    columns = {**after.tokens(), "probability": probabilities.tolist()}
    opens = {"probability": address_of(PROBABILITIES, *index, ":")}
    listing = Listing(f"{after.note}probabilities are without filters", columns, ("probability",), opens=opens)
    value = listing.sums["probability"]
    return float(probabilities.sum()), Working([listing, equals(value, "sum")], value, 8 * value)


def next_value(recording: Recording, levels: Array, settings: str, _: tuple[int, ...]) -> Explained:
    """The mean of the next value, or a quantile: the first value at which the cumulated probability reaches a share.

    The token for a missing value is not part of this distribution.
    """
    last = len(recording.ids) - 1
    logits = recording.pass_logits(last)[: len(levels)].double()
    exponentials = exponentials_of(to_array(logits))
    probabilities = exponentials / exponentials.sum()
    columns = {"number": range(len(levels)), "logit": to_array(logits), "exp": exponentials}
    columns |= {"probability": probabilities, "value": levels}
    opens = {"logit": address_of(HEAD, last, ":")}
    note = "the bins in the order of their values; exp is of the logit minus the largest"
    if not settings:
        columns["product"] = probabilities * levels
        listing = Listing(note, columns, ("exp", "probability", "product"), opens=opens)
        mean = listing.sums["product"]
        stored = float(logits.softmax(-1) @ torch.from_numpy(levels))
        return stored, Working([listing, equals(mean, "mean")], mean, 8 * scale_of(listing))
    columns["up to here"] = np.cumsum(probabilities)
    row = min(int(np.searchsorted(columns["up to here"], setting(settings))), len(levels) - 1)
    listing = Listing(note, columns, ("exp", "probability"), row, opens=opens)
    value = float(levels[row])
    return value, Working([listing, equals(value, f"the first value where the sum reaches {settings}")], value, 0.0)


DISTRIBUTION_EXPLAINERS: dict[str, Explainer] = {
    "probability": explain_probability,
    "exponential of a logit": explain_logit_exponential,
    "sum over the vocabulary": explain_logit_divisor,
    "log-probability": explain_logprob,
    "entropy": explain_entropy,
    "loss": explain_loss,
    "mean loss": explain_mean_loss,
}
