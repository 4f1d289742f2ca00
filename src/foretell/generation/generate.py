"""Continue a list of sequences: a scheduler with just enough cache, run until all have ended."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from foretell.generation.limits import check_length
from foretell.generation.sampling import Sampler
from foretell.generation.scheduler import Event, Scheduler
from foretell.generation.sequence import Rules, Sequence, rules_of
from foretell.generation.speculation import Proposer
from foretell.model.decoder import Decoder
from foretell.model.paged_cache import POSITIONS_PER_BLOCK


def generate(
    decoder: Decoder,
    sequences: list[Sequence],
    sampler: Sampler,
    max_tokens: int | None,
    *,
    end_ids: Collection[int] = (),
    context_shift: bool = False,
) -> Iterator[Event]:
    """Continue all sequences together by the same rules, yielding (sequence, id) for each sampled token.

    Prompts may differ in length, and the result of each does not depend on the others. A token of end_ids ends its
    sequence; it is added to `generated` but not yielded. The caller may end a sequence by setting its `finish_reason`.
    For max_tokens and context_shift see `Rules`. Raises ContextLengthError or UsageError before anything is generated.
    """
    rules = Rules(sampler, max_tokens, frozenset(end_ids), context_shift)
    for sequence in sequences:
        sequence.rules = rules
        check_length(sequence, decoder.config.context_length)
    return (event for event in run(make_scheduler(decoder, sequences), sequences) if event[1] not in rules.end_ids)


def run(scheduler: Scheduler, sequences: list[Sequence]) -> Iterator[Event]:
    """Continue sequences, each by its own rules, yielding (sequence, id) for each sampled token.

    Sequences of the scheduler that others have added are continued too, and not yielded. Where the iterator is closed
    before they have ended, the sequences are cancelled.
    """
    own = set(sequences)
    try:
        for sequence in sequences:
            scheduler.add(sequence)
        while any(sequence.finish_reason is None for sequence in sequences):
            yield from (event for event in scheduler.step() if event[0] in own)
    finally:
        for sequence in sequences:
            scheduler.cancel(sequence)


def make_scheduler(decoder: Decoder, sequences: list[Sequence], proposer: Proposer | None = None) -> Scheduler:
    """A scheduler with just enough cache for these sequences, or as much as the memory allows."""
    limits = [rules_of(sequence).max_tokens for sequence in sequences]
    expected = None if None in limits else max((limit for limit in limits if limit is not None), default=0)
    return Scheduler(
        decoder,
        num_blocks=blocks_for_all(decoder, sequences),
        expected_tokens=expected,
        proposer=proposer,
    )


def blocks_for_all(decoder: Decoder, sequences: list[Sequence]) -> int:
    """Enough blocks for all sequences at once."""
    limit = decoder.config.context_length
    lengths = (
        limit if rules_of(each).max_tokens is None else min(limit, each.num_visible + (rules_of(each).max_tokens or 0))
        for each in sequences
    )
    return sum(-(-length // POSITIONS_PER_BLOCK) for length in lengths)
