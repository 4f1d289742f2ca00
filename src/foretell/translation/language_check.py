"""A check that input is in the source language, by token counts of both sides of the training pairs."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Self

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from foretell.config.model import Size
from foretell.config.section import Section, make_section
from foretell.saved_model.part import Part, PartSource, register_part
from foretell.translation.pairs import EncodedPair, Pair, Vocabulary

logger = logging.getLogger(__name__)

LEAST_MARGIN = 5.0  # nats; with this, no held-out English sentence was taken for French: docs/translation.md
CALIBRATION_QUANTILE = 0.999  # quantile of the source sentences; larger than the minimum if both sides are similar
MOST_UNSEEN = 1 / 3  # largest share of unseen tokens in a sentence; 0.1% of held-out English sentences have 1 in 8
MOST_SWAPPED = 0.002  # share of pairs; none of 5,500 English-French pairs of Tatoeba looks swapped
SMOOTHING = 0.5  # added to every count
MOST_ENCODED = 20_000  # target sentences to encode again if there are two vocabularies


class SideCountsConfig(Section):
    """The entry of the counts in config.json."""

    tokens: Size
    margin: float = Field(ge=0)


@register_part
@dataclass(frozen=True)
class SideCounts(Part):
    """Counts of each source-vocabulary token in the source and the target sentences, (V,) int32 each.

    margin: a sentence is unlike the source if its log-likelihood under the target's counts exceeds its log-likelihood
    under the source's counts by more nats than this.
    """

    kind: ClassVar[str] = "side_counts"
    source: Tensor
    target: Tensor
    margin: float = LEAST_MARGIN

    @cached_property
    def log_ratios(self) -> np.ndarray:
        """log P(token | target side) - log P(token | source side), (V,)."""
        source, target = (side.double().numpy() + SMOOTHING for side in (self.source, self.target))
        return np.log(target / target.sum()) - np.log(source / source.sum())

    def is_unlike_source(self, ids: Sequence[int] | np.ndarray) -> bool:
        """True for a sentence that looks like the target language, or like neither language."""
        tokens = np.asarray(ids, dtype=np.int64)
        is_unseen = self.source.numpy()[tokens] == 0
        return bool(self.log_ratios[tokens].sum() > self.margin or is_unseen.sum() > MOST_UNSEEN * len(tokens))

    def config(self) -> dict[str, Any]:
        return SideCountsConfig(tokens=len(self.source), margin=self.margin).model_dump()

    def weights(self) -> Mapping[str, Tensor]:
        return {"source": self.source, "target": self.target}

    @classmethod
    def load(cls, values: Mapping[str, Any], source: PartSource) -> Self:
        settings = make_section(SideCountsConfig, values, source.name)
        shapes = dict.fromkeys(("source", "target"), (settings.tokens,))
        counts = source.read(shapes, dict.fromkeys(shapes, torch.int32))
        return cls(counts["source"].cpu(), counts["target"].cpu(), settings.margin)


def count_sides(vocabulary: Vocabulary, pairs: Sequence[Pair], encoded: Sequence[EncodedPair]) -> SideCounts:
    """The counts of pairs, with a margin that 0.1% of their source sentences exceed, or LEAST_MARGIN if larger.

    encoded: these pairs, possibly without some.
    """
    sources = [pair.source[:-1] for pair in encoded]  # without the end token
    if vocabulary.is_shared:
        targets = [pair.target[1:-1] for pair in encoded]
    else:
        chosen = pairs[:: max(1, len(pairs) // MOST_ENCODED)]
        targets = [np.asarray(ids) for ids in vocabulary.source.encode_batch([pair.target for pair in chosen])]
    size = vocabulary.source.vocab_size
    counts = SideCounts(count_tokens(sources, size), count_tokens(targets, size))
    step = max(1, len(sources) // MOST_ENCODED)
    evidence = [float(counts.log_ratios[ids].sum()) for ids in sources[::step]]
    if vocabulary.is_shared:
        note_swapped(vocabulary, counts, sources[::step], targets[::step])
    margin = max(LEAST_MARGIN, float(np.quantile(evidence, CALIBRATION_QUANTILE)))
    return SideCounts(counts.source, counts.target, round(margin, 3))


def note_swapped(
    vocabulary: Vocabulary, counts: SideCounts, sources: Sequence[np.ndarray], targets: Sequence[np.ndarray]
) -> None:
    """Log that sides of pairs seem to be exchanged, if this is more than a few pairs."""
    ratios = counts.log_ratios
    swapped = [
        f"{vocabulary.source.decode(source.tolist())!r:.60} and {vocabulary.source.decode(target.tolist())!r:.60}"
        for source, target in zip(sources, targets, strict=True)
        if ratios[source].sum() - ratios[target].sum() > 2 * LEAST_MARGIN
    ]
    if len(swapped) > MOST_SWAPPED * len(sources):
        logger.warning(
            f"{len(swapped):,} of {len(sources):,} pairs seem to have source and target exchanged; the first is "
            f"{swapped[0]}"
        )


def count_tokens(sentences: Sequence[np.ndarray], size: int) -> Tensor:
    """The occurrences of each of `size` tokens, (V,)."""
    ids = np.concatenate([np.zeros(0, dtype=np.int64), *sentences])
    return torch.from_numpy(np.bincount(ids, minlength=size).astype(np.int32))
