"""Shortlists keep exactly what the filters over the whole vocabulary keep, with ties."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from foretell.config.sampling import SamplingConfig
from foretell.generation.filters import DISTANCES, KEEP, Prefix, make_filters, odds

SETTINGS = {
    "top_k": st.integers(1, 3000),
    "top_p": st.floats(0.001, 0.999) | st.sampled_from([0.25, 0.5, 0.75, 0.9, 0.95]),
    "min_p": st.floats(1e-9, 1),
}
NEUTRAL: dict[str, Any] = {"temperature": 1.0, "top_p": 1.0}


@pytest.mark.parametrize("name", KEEP)
@given(
    data=st.data(),
    seed=st.integers(0, 10**6),
    size=st.sampled_from([1, 7, 300, 2500]),
    scale=st.sampled_from([0.0, 0.5, 3.0, 9.0]),
    step=st.sampled_from([0.0, 0.5, 4.0]),
)
def test_a_shortlist_keeps_what_the_filter_keeps(
    name: str, data: st.DataObject, seed: int, size: int, scale: float, step: float
) -> None:
    logits = scale * torch.randn(1, size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    logits = (logits / step).round() * step if step else logits
    setting = data.draw(SETTINGS[name])
    values: dict[str, Any] = {**NEUTRAL, name: setting}
    (apply,) = make_filters(SamplingConfig(**values)).values()
    left = apply(logits, [Prefix([])])
    kept = KEEP[name](logits[0].numpy(), setting)
    assert kept.tolist() == (left[0] > -torch.inf).nonzero()[:, 0].tolist()
    kept = torch.from_numpy(kept)
    assert torch.equal(odds(logits[0, kept]).cumsum(-1), odds(left)[0].cumsum(-1)[kept])


def test_each_length_of_a_shortlist_is_needed_by_a_distribution_here() -> None:
    """So that the property above is about all of them: masses that only the first, a later or no shortlist reaches."""
    for distance, steep in zip((*DISTANCES, 99.0), (3.0, 0.02, 0.008, 0.0), strict=True):
        logits = -steep * torch.arange(2500, dtype=torch.float64)
        kept = KEEP["top_p"](logits.numpy(), 0.95)
        reach = float(-logits[kept[-1]])
        assert reach <= distance
        (apply,) = make_filters(SamplingConfig(temperature=1, top_p=0.95)).values()
        assert len(kept) == int((apply(logits[None], [Prefix([])]) > -torch.inf).sum())
