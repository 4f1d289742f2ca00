"""The settings of sampling."""

from __future__ import annotations

from foretell.config.sampling import SamplingConfig


def test_the_defaults_of_sampling():
    config = SamplingConfig()
    values = (config.temperature, config.top_k, config.top_p, config.min_p, config.repetition_penalty, config.seed)
    assert values == (0.8, None, 0.95, 0, 1, 1)
