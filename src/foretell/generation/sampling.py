"""From logits to a token: the filters, and a random draw that depends only on (seed, sample, position)."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from foretell.config.sampling import SamplingConfig
from foretell.errors import UsageError, check_type
from foretell.generation.constraint import Constraint, TokenBytes
from foretell.generation.filters import SHAPING, Prefix, Prefixes, make_filters, narrow, odds
from foretell.model.decoder import check_logits
from foretell.numerics.randomness import stream_key, uniform

NUMBERS_AT_ONCE = 2**15  # logits that are sampled together: in float64 they fit in a core's cache


class TokenChooser(Protocol):
    """Chooses the next tokens of sequences; `Sampler` samples them."""

    @property
    def vocab_size(self) -> int | None:
        """Only ids below this are chosen: a model may have more rows than its tokenizer has tokens."""
        ...

    @property
    def group(self) -> Hashable:
        """Any chooser can choose for the sequences of all choosers with an equal group."""
        ...

    def __call__(self, logits: Tensor, prefixes: Prefixes, samples: list[int]) -> list[int]:
        """One id per row, from logits (B, V), the ids so far and the sample index of each row."""
        ...

    def completes(self, generated: list[int]) -> bool:
        """True if nothing can follow the ids after the prompt."""
        ...


class Sampler:
    """Samples the next token of each row. The draw of sample i at position t depends only on (seed, i, t)."""

    def __init__(
        self, config: SamplingConfig, vocab_size: int | None = None, token_bytes: Callable[[], TokenBytes] | None = None
    ):
        """vocab_size: sample only ids below it, because a model may have more rows than its tokenizer has tokens.

        token_bytes: the bytes of each id, for a configuration with a regex or a JSON schema.
        """
        check_type("the settings", config, SamplingConfig, "a SamplingConfig")
        self.config, self.seed, self.vocab_size = config, config.seed, vocab_size
        self.constraint = make_constraint(config, token_bytes)
        self.filters = make_filters(config, None if self.constraint is None else self.constraint.exclude)
        self._excluding = [name for name in self.filters if name not in SHAPING]
        self._shaping = {name: float(getattr(config, name)) for name in self.filters if name in SHAPING}
        # `narrow` needs all shaping filters at the end; a filter without an entry in KEEP selects the plain path
        self._in_order = [*self._excluding, *self._shaping] == list(self.filters)

    @property
    def is_greedy(self) -> bool:
        """True if the token with the largest logit is always chosen, for any seed."""
        return self.config.temperature == 0 and not self._excluding

    @property
    def group(self) -> Hashable:
        """Shared by greedy samplers, so that a server samples their requests in one call; others have their own seed.

        Each sampler of a subclass, which may do more than choose, has its own group.
        """
        return self.vocab_size if self.is_greedy and type(self) is Sampler else self

    def __call__(self, logits: Tensor, prefixes: Prefixes, samples: list[int]) -> list[int]:
        """One id per row, from logits (B, V), the ids so far and the sample index of each row.

        Equal to `stages` followed by `pick`. Raises CheckpointError for logits that are not finite, UsageError if the
        filters exclude all tokens of a row.
        """
        logits = on_cpu_or_cuda(logits[:, : self.vocab_size])
        if self.is_greedy:
            return largest(logits)
        check_logits(logits)
        draws = [self.draw(sample, len(prefix.ids)) for sample, prefix in zip(samples, prefixes, strict=True)]
        if logits.is_cuda or not self._in_order:
            *_, (_, filtered) = self.stages(logits, prefixes)
            return pick(odds(filtered), draws)
        if not self.filters:
            return pick_unfiltered(logits, draws)
        rows = zip(logits.split(1), prefixes, draws, strict=True)  # one by one: a row in float64 fits in a core's cache
        return [self._sample(row, prefix, draw) for row, prefix, draw in rows]

    def _sample(self, logits: Tensor, prefix: Prefix, draw: float) -> int:
        """The next id of one row of logits (1, V)."""
        for name in self._excluding:
            logits = check_left(self.filters[name](logits.double(), [prefix]), name)
        if self.config.temperature == 0:
            return int(logits.argmax())
        ids, left = narrow(in_numpy(logits)[0].astype(np.float64), self._shaping)
        index = pick(odds(torch.from_numpy(left)[None]), [draw])[0]
        return index if ids is None else int(ids[index])

    def stages(self, logits: Tensor, prefixes: Prefixes) -> Iterator[tuple[str, Tensor]]:
        """("logits", logits (B, V) in float64), then (name, logits) after each filter. Raises the errors of a call."""
        logits = check_logits(on_cpu_or_cuda(logits[:, : self.vocab_size])).double()
        yield "logits", logits
        for name, apply in self.filters.items():
            logits = check_left(apply(logits, prefixes), name)
            yield name, logits

    def completes(self, generated: list[int]) -> bool:
        """True if the ids after the prompt complete the regex or the JSON, so that nothing can follow.

        Raises UsageError if they do so before min_tokens.
        """
        if self.constraint is None or not self.constraint.is_complete(generated):
            return False
        if (count := len(generated)) < (least := self.config.min_tokens):
            raise UsageError(f"{self.constraint.shown} is complete at token {count}, but min_tokens is {least}")
        return True

    def draw(self, sample: int, position: int) -> float:
        """The random number in [0, 1) for one token."""
        return uniform(stream_key("sample", self.seed, sample), position)


def make_constraint(config: SamplingConfig, token_bytes: Callable[[], TokenBytes] | None) -> Constraint | None:
    if config.regex is None and config.json_schema is None:
        return None
    if token_bytes is None:
        raise UsageError("a regex or a JSON schema needs a tokenizer, which has the bytes of each token")
    return Constraint(config, token_bytes())


def on_cpu_or_cuda(logits: Tensor) -> Tensor:
    """Move logits to the CPU from a device without float64 (Apple's MPS)."""
    return logits if logits.is_cuda else logits.cpu()


def largest(logits: Tensor) -> list[int]:
    """The id of the largest logit of each row of (B, V), the first if tied. Raises the errors of `check_logits`."""
    if logits.is_cuda:
        return largest_on_gpu(logits)
    values = in_numpy(logits)
    ids = values.argmax(-1).tolist()  # ten times as fast as torch's, which is not vectorised; NaN is the largest
    if not all(math.isfinite(row[id]) for row, id in zip(values, ids, strict=True)):
        check_logits(logits)
    return ids


def in_numpy(logits: Tensor) -> np.ndarray:
    """Convert logits to NumPy; bfloat16 becomes float32 without the cast of torch, which would start threads."""
    if logits.dtype != torch.bfloat16:
        return logits.numpy()
    return (logits.view(torch.int16).numpy().astype(np.uint32) << 16).view(np.float32)


def largest_on_gpu(logits: Tensor) -> list[int]:
    """Find the largest logit of each row on a GPU, with a single synchronisation."""
    values, ids = logits.max(-1)  # NaN is the largest
    are_finite, largest_ids = torch.stack((values.isfinite().long(), ids)).tolist()
    if not all(are_finite):
        check_logits(logits)
    return largest_ids


def check_left(logits: Tensor, name: str) -> Tensor:
    """The logits (B, V) after a filter. Raises UsageError if a row has no token left."""
    if name not in SHAPING and not bool((logits.amax(-1) > -torch.inf).all()):
        raise UsageError(f"{name.replace('_', '-')} leaves no token to sample; relax it or the other filters")
    return logits


def pick(weights: Tensor, draws: list[float]) -> list[int]:
    """The first id at which the cumulative weights (B, V) exceed each row's draw times their sum."""
    cumulative = weights.cumsum(-1)
    total = cumulative[:, -1:].contiguous()
    targets = torch.tensor(draws, dtype=cumulative.dtype, device=cumulative.device)[:, None] * total
    # Rounding can make the target equal to the last sum; then the answer is the first id that reaches it
    last = torch.searchsorted(cumulative, total)
    return torch.searchsorted(cumulative, targets, right=True).minimum(last)[:, 0].tolist()


def pick_unfiltered(logits: Tensor, draws: list[float]) -> list[int]:
    """One id for each row of logits (B, V), several rows per call, because a call takes longer than a small row."""
    rows = max(1, NUMBERS_AT_ONCE // logits.shape[-1])
    firsts = range(0, len(draws), rows)
    parts = ((logits[first : first + rows].double(), draws[first : first + rows]) for first in firsts)
    return [id for part, own in parts for id in pick(odds(part), own)]
