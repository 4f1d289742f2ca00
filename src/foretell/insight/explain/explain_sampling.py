"""Explanations of the distribution after sampling filters, and of the next value of a series."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
import torch

from foretell.config.sampling import SamplingConfig
from foretell.config.section import make_section
from foretell.errors import UsageError
from foretell.generation.filters import FILTERS, SHAPING, make_filters
from foretell.insight.address import address_of
from foretell.insight.explain.explain_distribution import (
    FILTERED,
    PROBABILITIES,
    Distribution,
    SampledLogits,
    logprobs_of,
    probability_of,
)
from foretell.insight.explain.explanation import Explained, NumberGroup, NumberKind
from foretell.insight.explain.steps import Listing, Working, equals, exponentials_of, scale_of
from foretell.insight.recorded_pass import Array, RecordedPass, to_array
from foretell.model.decoder import HEAD
from foretell.paths import suggest

KEPT = f"{PROBABILITIES}.kept"
NEXT_MEAN, NEXT_QUANTILE = "next_value.mean", "next_value.quantile"


class SamplingNumbers(NumberGroup):
    """Numbers with settings in parentheses.

    `probabilities.filtered(temperature=0.8,top_k=40)[t,v]`, also with top_p and min_p, is a probability after filters.
    `probabilities.kept(...)[t]` is the sum of the unfiltered probabilities of all tokens that the filters keep.
    `next_value.mean` and `next_value.quantile(0.25)` need levels, the values that the first tokens stand for.
    """

    has_settings = True

    def __init__(self, levels: Array | None):
        self.levels = levels
        self.names = [FILTERED, KEPT, *([] if levels is None else [NEXT_MEAN, NEXT_QUANTILE])]

    def needs(self, name: str) -> Sequence[str]:
        return ()

    def kind(self, recording: RecordedPass, name: str) -> NumberKind:
        plain, _, settings = name.removesuffix(")").partition("(")
        T, V = len(recording.ids), recording.vocabulary
        if plain == FILTERED:
            return NumberKind(("position", "token"), (T, V), partial(filtered_probability, recording, settings))
        if plain == KEPT:
            return NumberKind(("position",), (T,), partial(kept_probability, recording, settings))
        assert self.levels is not None, "the others are of a series"
        return NumberKind((), (), partial(next_value, recording, self.levels, settings))


def setting(text: str) -> float:
    try:
        return int(text) if text.isdecimal() else float(text)
    except ValueError:
        raise UsageError(f"'{text}' is not a number, as in {FILTERED}(temperature=0.8,top_k=40)") from None


def sampled_by(settings: str) -> SampledLogits:
    return SampledLogits(settings, lambda logits: filtered(logits, settings))


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


def filtered_probability(recording: RecordedPass, settings: str, index: tuple[int, ...]) -> Explained:
    after, token = Distribution(recording, index[0], sampled_by(settings)), index[1]
    return float(torch.from_numpy(after.logits).softmax(-1)[token]), probability_of(after, token)


def kept_probability(recording: RecordedPass, settings: str, index: tuple[int, ...]) -> Explained:
    """The sum of the unfiltered probabilities of the kept tokens."""
    after = Distribution(recording, index[0], sampled_by(settings))
    probabilities = logprobs_of(recording, index[0]).exp()[after.order]
    columns = {**after.tokens(), "probability": probabilities.tolist()}
    opens = {"probability": address_of(PROBABILITIES, *index, ":")}
    listing = Listing(f"{after.note}probabilities are without filters", columns, ("probability",), opens=opens)
    value = listing.sums["probability"]
    return float(probabilities.sum()), Working([listing, equals(value, "sum")], value, 8 * value)


def next_value(recording: RecordedPass, levels: Array, settings: str, _: tuple[int, ...]) -> Explained:
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
