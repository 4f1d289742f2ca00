"""Synthetic series of many kinds, for pretraining; each is a function of (seed, index).

A series is drawn from one of the KINDS. Scale and unit do not matter, because the codec removes them. The only source
of the values is this file with a random generator. Sums, products and ETS models have the components of classical
decomposition; kernels are the Gaussian processes of "Chronos" (Ansari et al. 2024, section 4.2).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from foretell.numerics.randomness import stream_key

Rng = np.random.Generator

# Values per season: quarters, weekdays, weeks, months, hours, half hours, weeks of a year, minutes or quarter hours
PERIODS = np.array([4, 5, 7, 12, 24, 30, 48, 52, 60, 96, 168])
PERIOD_SHARES = np.array([2, 1, 3, 4, 5, 1, 1, 3, 1, 1, 2]) / 24
KNOWN_PERIODS = 0.75  # share of the seasons with one of these periods; the others have any period
LONGER = {4: 12, 5: 21, 7: 30, 12: 36, 24: 168, 48: 336, 96: 672}  # the usual second season for a first one
MOST = 1e6  # standard deviations: growth beyond that is clipped


def synthetic_series(seed: int, index: int, length: int) -> np.ndarray:
    """Values (length,) of one series, finite, in float64."""
    rng = np.random.default_rng(stream_key("synthetic series", seed, index))
    kind = KINDS[rng.choice(len(KINDS), p=KIND_SHARES)]
    values = kind(rng, length)
    values = spoil(rng, values)
    return np.nan_to_num(np.clip(values, -MOST, MOST))


# --- components, each of about unit size ------------------------------------------------------------------------------


def draw_period(rng: Rng, length: int) -> int:
    """A usual number of values per season, or any number from 2 to half the length, with smaller ones more likely."""
    if rng.random() < KNOWN_PERIODS:
        return int(rng.choice(PERIODS, p=PERIOD_SHARES))
    return int(np.exp(rng.uniform(np.log(2), np.log(max(3, length // 2)))))


def smooth_cycle(rng: Rng, period: int) -> np.ndarray:
    """Few harmonics, such as a temperature's day or year."""
    count = min(int(rng.integers(1, 7)), max(1, period // 2))
    phase, order = np.arange(period) / period, np.arange(1, count + 1)[:, None]
    sizes = rng.standard_normal((2, count, 1)) / order ** rng.uniform(0, 2)
    return (sizes[0] * np.sin(2 * np.pi * order * phase) + sizes[1] * np.cos(2 * np.pi * order * phase)).sum(0)


def rough_cycle(rng: Rng, period: int) -> np.ndarray:
    """A random level for each phase, with some outliers, such as sales by month with Christmas."""
    return rng.standard_normal(period) if rng.random() < 0.5 else rng.standard_t(2.5, period)


def levels(rng: Rng, length: int, most: int = 4) -> np.ndarray:
    """Two to `most` levels, for a cycle (weekdays and weekends, opening hours) or a trend with sudden changes."""
    edges = np.sort(rng.integers(0, length, int(rng.integers(1, most))))
    return rng.standard_normal(len(edges) + 1)[np.searchsorted(edges, np.arange(length), side="right")]


def peaked_cycle(rng: Rng, period: int) -> np.ndarray:
    """One or two peaks on a flat base, such as rush-hour traffic or daily sunshine."""
    phase, cycle = np.arange(period) / period, np.zeros(period)
    for _ in range(int(rng.integers(1, 3))):
        cycle += rng.uniform(0.3, 1) * np.exp(rng.uniform(1, 20) * (np.cos(2 * np.pi * (phase - rng.random())) - 1))
    return np.maximum(cycle - rng.uniform(0, 0.5), 0) if rng.random() < 0.3 else cycle


CYCLES = (smooth_cycle, smooth_cycle, rough_cycle, levels, peaked_cycle)


def season(rng: Rng, length: int, period: int) -> np.ndarray:
    """A repeated cycle; in some series its size changes slowly, or it turns into another cycle."""
    at = (np.arange(length) + rng.integers(period)) % period
    values = standard(CYCLES[rng.integers(len(CYCLES))](rng, period))[at]
    change = rng.random()
    if change < 0.2:
        values = values * np.exp(0.4 * smooth_walk(rng, length))
    elif change < 0.3:
        share = np.linspace(0, 1, length)
        values = (1 - share) * values + share * standard(CYCLES[rng.integers(len(CYCLES))](rng, period))[at]
    return values


def seasons(rng: Rng, length: int) -> np.ndarray:
    """One season, or two of which the longer modulates the shorter, such as hours of a day and days of a week."""
    period = draw_period(rng, length)
    values = season(rng, length, period)
    if period in LONGER and rng.random() < 0.5:
        longer = season(rng, length, LONGER[period])
        if rng.random() < 0.5:
            return values + rng.uniform(0.2, 1) * longer
        days = LONGER[period] // period
        level = rough_cycle(rng, days) if rng.random() < 0.5 else levels(rng, days)
        day = (np.arange(length) + rng.integers(LONGER[period])) // period % days
        return values * np.exp(rng.uniform(0.1, 0.6) * standard(level)[day])
    return values


def linear(rng: Rng, length: int) -> np.ndarray:
    return rng.standard_normal() * np.linspace(-1, 1, length)


def bent(rng: Rng, length: int) -> np.ndarray:
    """Piecewise linear, with some changes of slope."""
    return np.cumsum(levels(rng, length, 5)) * 2 / length


def saturating(rng: Rng, length: int) -> np.ndarray:
    """A part of a logistic curve."""
    return rng.choice([-2, 2]) / (1 + np.exp(-rng.uniform(2, 12) * (np.linspace(0, 1, length) - rng.uniform(-0.3, 1))))


def walk(rng: Rng, length: int) -> np.ndarray:
    """A random walk with drift."""
    return np.cumsum(rng.standard_normal(length) + 0.05 * rng.standard_normal()) / np.sqrt(length)


def smooth_walk(rng: Rng, length: int) -> np.ndarray:
    """A damped random walk of the slope: a level that changes direction slowly."""
    return standard(autoregression(rng.standard_normal(length), rng.uniform(0.9, 1)).cumsum())


def phases(rng: Rng, length: int) -> np.ndarray:
    """Growth, decline and plateaus in turn, each with its own drift and shocks or none, and some jumps between them."""
    edges = np.sort(rng.integers(0, length, int(rng.integers(1, 5))))
    phase, count = np.searchsorted(edges, np.arange(length), side="right"), len(edges) + 1
    drift = 4 * rng.standard_normal(count) * (rng.random(count) < 0.5) / length
    size = np.exp(rng.normal(-1, 1.3, count)) * (rng.random(count) < 0.65) / np.sqrt(length)
    steps = drift[phase] + size[phase] * rng.standard_normal(length)
    steps[edges] += rng.standard_normal(len(edges)) * (rng.random(len(edges)) < 0.3)
    return steps.cumsum()


TRENDS = (linear, bent, saturating, walk, walk, smooth_walk, levels, phases)


def autoregression(shocks: np.ndarray, share: float) -> np.ndarray:
    """x[t] = share * x[t-1] + shocks[t]."""
    values, last = np.empty(len(shocks)), 0.0
    for step, shock in enumerate(shocks.tolist()):
        values[step] = last = share * last + shock
    return values


def noise(rng: Rng, length: int) -> np.ndarray:
    """Independent, heavy-tailed, autocorrelated or moving-average noise, whose size may vary over time."""
    shocks = rng.standard_normal(length) if rng.random() < 0.7 else rng.standard_t(3, length)
    if rng.random() < 0.2:
        shocks = shocks * np.exp(rng.uniform(0.2, 1) * smooth_walk(rng, length))
    form = rng.random()
    if form < 0.4:
        shocks = autoregression(shocks, rng.uniform(-0.4, 0.95))
    elif form < 0.5:
        shocks = shocks + rng.uniform(-0.9, 0.9) * np.append(0, shocks[:-1])
    return standard(shocks)


def standard(values: np.ndarray) -> np.ndarray:
    """The values scaled to mean 0 and standard deviation 1; constants stay constant."""
    return (values - values.mean()) / (values.std() or 1.0)


def composed(rng: Rng, length: int) -> np.ndarray:
    """Trend, season and noise of random sizes."""
    size = np.exp(rng.normal(0, 1))
    trend = 0 if rng.random() < 0.3 else np.exp(rng.normal(0, 1)) * TRENDS[rng.integers(len(TRENDS))](rng, length)
    return trend + size * seasons(rng, length) + size * np.exp(rng.uniform(-4, 0.3)) * noise(rng, length)


def multiplied(rng: Rng, length: int) -> np.ndarray:
    """The exponential of a sum: a positive series whose season, noise or both grow with its level."""
    size = rng.uniform(0.05, 0.6)
    trend = np.exp(rng.normal(-0.5, 0.7)) * TRENDS[rng.integers(len(TRENDS))](rng, length)
    values = np.exp(trend + size * seasons(rng, length))
    error = size * np.exp(rng.uniform(-4, 0)) * noise(rng, length)
    return values * np.exp(error) if rng.random() < 0.7 else values + values.mean() * error


def smoothed(rng: Rng, length: int) -> np.ndarray:
    """An ETS model: level, damped slope and season that follow the errors (Hyndman and Athanasopoulos, chapter 8)."""
    period = draw_period(rng, length)
    cycle = (rng.uniform(0, 3) * standard(CYCLES[rng.integers(len(CYCLES))](rng, period))).tolist()
    level_gain, slope_gain, season_gain = rng.beta(1, 3), 0.2 * rng.beta(1, 4), rng.beta(1, 4)
    damping, level, slope = rng.choice([1.0, rng.uniform(0.8, 1)]), 0.0, 0.05 * rng.standard_normal()
    errors, values = (np.exp(rng.uniform(-2, 0)) * noise(rng, length)).tolist(), np.empty(length)
    for step, error in enumerate(errors):
        phase = step % period
        values[step] = level + slope + cycle[phase] + error
        level += slope + level_gain * error
        slope = damping * slope + slope_gain * level_gain * error
        cycle[phase] += season_gain * (1 - level_gain) * error
    return np.exp(values / (1 + values.std()) / 2) if rng.random() < 0.3 else values


def price(rng: Rng, length: int) -> np.ndarray:
    """A geometric random walk with volatility clustering, whose best forecast is the last value."""
    shocks = rng.standard_t(rng.uniform(3, 10), length) * np.exp(0.5 * smooth_walk(rng, length))
    return np.exp(np.cumsum(rng.uniform(0.002, 0.05) * (shocks + 0.05 * rng.standard_normal())))


def phased(rng: Rng, length: int) -> np.ndarray:
    """A level in phases without a season, such as users or stocks; half of them grow in proportion to their level."""
    values = phases(rng, length)
    values = values if rng.random() < 0.5 else np.exp(values)
    size = values.std() * np.exp(rng.uniform(-5, -1)) * (rng.random() < 0.5)
    return values + size * noise(rng, length)


def counts(rng: Rng, length: int) -> np.ndarray:
    """Counts whose mean has a season and a trend; often most counts are 0."""
    mean = np.exp(rng.uniform(-2, 4) + rng.uniform(0, 0.8) * seasons(rng, length) + 0.5 * walk(rng, length))
    return rng.poisson(np.minimum(mean * rng.gamma(5, 0.2, length), MOST)).astype(float)


def process(rng: Rng, length: int) -> np.ndarray:
    """A Gaussian process with a sum or product of up to four random kernels."""
    gap = np.abs(np.arange(length)[:, None] - np.arange(length)).astype(float)
    total = None
    for _ in range(int(rng.integers(1, 5))):
        kernel = draw_kernel(rng, gap)
        total = kernel if total is None else total + kernel if rng.random() < 0.5 else total * kernel
    assert total is not None
    total[np.diag_indices(length)] += 1e-6 * total.diagonal().mean() + 1e-9
    return np.linalg.cholesky(total) @ rng.standard_normal(length)


def draw_kernel(rng: Rng, gap: np.ndarray) -> np.ndarray:
    """A periodic, smooth, rough, linear or white kernel over the gaps (T, T) between times."""
    length, form = len(gap), rng.choice(5, p=[0.4, 0.25, 0.1, 0.15, 0.1])
    if form == 0:
        return np.exp(-2 * np.sin(np.pi * gap / draw_period(rng, length)) ** 2 / rng.choice([0.3, 1, 2]) ** 2)
    if form == 1:
        return np.exp(-0.5 * (gap / (length * rng.choice([0.03, 0.1, 1]))) ** 2)
    if form == 2:
        return np.exp(-gap / (length * rng.choice([0.01, 0.1, 1])))
    if form == 3:
        times = np.linspace(-1, 1, length) - rng.uniform(-1, 1)
        return np.outer(times, times) + 0.01
    return rng.choice([0.01, 0.1, 1]) * np.eye(length)


KINDS: tuple[Callable[[Rng, int], np.ndarray], ...] = (composed, multiplied, smoothed, price, phased, counts, process)
KIND_SHARES = (0.33, 0.19, 0.12, 0.08, 0.16, 0.06, 0.06)


def spoil(rng: Rng, values: np.ndarray) -> np.ndarray:
    """Sometimes add outliers, a floor, rounding to few levels, as in measurements and counts, or a stop: one value."""
    form, spread = rng.random(), values.std()
    if form < 0.06:
        where = rng.random(len(values)) < rng.uniform(0.002, 0.02)
        return values + where * spread * 4 * rng.standard_t(3, len(values))
    if form < 0.12:
        return np.maximum(values, np.quantile(values, rng.uniform(0, 0.5)))
    if form < 0.2 and spread > 0:
        step = spread * rng.uniform(0.05, 0.5)
        return np.round(values / step) * step
    if form < 0.25:
        end = int(rng.integers(len(values)))
        return np.where(np.arange(len(values)) < end, values, rng.choice([0.0, values[end]]))
    return values
