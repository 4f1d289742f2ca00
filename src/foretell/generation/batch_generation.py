"""Generation for a list of sequences, by one scheduler, until all have ended."""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterable, Iterator
from itertools import islice
from typing import TypeVar

from foretell.config.sampling import SamplingConfig
from foretell.generation.sampling import Sampler, TokenChooser
from foretell.generation.scheduler import Event, Scheduler, blocks_needed
from foretell.generation.sequence import Rules, Sequence, check_length, rules_of
from foretell.generation.speculation import Proposer
from foretell.model.decoder import Decoder

MOST_JOINED = 1024  # more than the rows of a pass, so that the scheduler always has one to start
Result = TypeVar("Result")


def generate(
    decoder: Decoder,
    sequences: list[Sequence],
    sampler: TokenChooser,
    max_tokens: int | None,
    *,
    end_ids: Collection[int] = (),
    slide: bool = False,
) -> Iterator[Event]:
    """Continue all sequences together with the same rules, and yield an event for each sampled token.

    Prompts may differ in length, and the result of each does not depend on the others. A token in end_ids ends its
    sequence; it is added to `generated` but not yielded. The caller may end a sequence by setting its `finish_reason`.
    For max_tokens and slide see `Rules`. Raises ContextLengthError or UsageError before anything is generated.
    """
    rules = Rules(sampler, max_tokens, frozenset(end_ids), slide)
    for sequence in sequences:
        sequence.rules = rules
        check_length(sequence, decoder.config.context_length)
    return (event for event in run(make_scheduler(decoder, sequences), sequences) if event.token not in rules.end_ids)


def continue_prompt(
    decoder: Decoder,
    prompt: list[int],
    sampling: SamplingConfig,
    max_tokens: int,
    *,
    vocab_size: int,
    end_ids: Collection[int],
) -> list[int]:
    """The ids after a prompt, up to one of end_ids; only ids below vocab_size are sampled."""
    sequence = Sequence(prompt)
    for _ in generate(decoder, [sequence], Sampler(sampling, vocab_size), max_tokens, end_ids=end_ids):
        pass
    return sequence.generated


def run(scheduler: Scheduler, sequences: Iterable[Sequence]) -> Iterator[Event]:
    """Continue sequences, each with its own rules, and yield an event for each sampled token.

    At most MOST_JOINED of the sequences are in the scheduler at a time; the others are taken when some have ended.
    Other sequences of the scheduler also continue, without events. If the iterator is closed before the sequences have
    ended, they are cancelled. If a sequence ends with an error, this error is raised.
    """
    own, pending = set[Sequence](), iter(sequences)
    try:
        while True:
            unfinished = [sequence for sequence in own if sequence.finish_reason is None]
            joining = list(islice(pending, MOST_JOINED - len(unfinished)))
            if not unfinished and not joining:
                return
            own = {*unfinished, *joining}
            for sequence in joining:
                scheduler.add(sequence)
            yield from (event for event in scheduler.step() if event.sequence in own)
            for sequence in scheduler.ended:
                if sequence.error is not None and sequence in own:
                    raise sequence.error
    finally:
        for sequence in own:
            scheduler.cancel(sequence)


def result_of(computation: Generator[None, None, Result]) -> Result:
    """Run a computation that can be interrupted where it yields; returns its result."""
    while True:
        try:
            next(computation)
        except StopIteration as end:
            return end.value


def make_scheduler(decoder: Decoder, sequences: list[Sequence], proposer: Proposer | None = None) -> Scheduler:
    """A scheduler with just enough cache for these sequences, or with what the memory allows."""
    context_length, limits = decoder.config.context_length, [rules_of(sequence).max_tokens for sequence in sequences]
    num_blocks = sum(blocks_needed(sequence, context_length) for sequence in sequences)
    known = [limit for limit in limits if limit is not None]
    expected_tokens = max(known, default=0) if len(known) == len(limits) else None
    return Scheduler(decoder, num_blocks=num_blocks, expected_tokens=expected_tokens, proposer=proposer)
