"""When a sequence ends, and which do not fit. No other file decides this."""

from __future__ import annotations

from foretell.errors import ContextLengthError, UsageError
from foretell.generation.sequence import FinishReason, Rules, Sequence, rules_of


def reason_to_end(sequence: Sequence, token: int, context_length: int) -> FinishReason | None:
    """Why a sequence ends with the token that it just got; None if it goes on."""
    rules = rules_of(sequence)
    if token in rules.end_ids:
        return "end"
    if sequence.stop is not None and sequence.stop(token):
        return "stop"
    if rules.sampler.completes(sequence.generated):
        return "stop"
    if rules.max_tokens is not None and len(sequence.generated) >= rules.max_tokens:
        return "length"
    is_full = sequence.num_visible > context_length
    return "context" if is_full and not rules.context_shift else None


def check_length(sequence: Sequence, context_length: int) -> Rules:
    """Refuse a prompt and a length that do not fit; returns the rules of the sequence."""
    limit, length, rules = context_length, len(sequence.prompt), rules_of(sequence)
    if rules.max_tokens is not None and rules.max_tokens < 0:
        raise UsageError(f"max-tokens must be 0 or more, not {rules.max_tokens}")
    if length == 0:
        raise UsageError("the prompt is empty; give at least one token to continue from")
    if rules.context_shift:
        sequence.window_start = 0 if length <= limit else first_kept(sequence, limit)
    elif length > limit:
        raise ContextLengthError(
            f"the prompt has {length} tokens and the model's context is {limit}; shorten it, or use --slide to "
            "continue from its tail"
        )
    elif length + (rules.max_tokens or 0) > limit + 1:  # the last token is predicted, and not read
        raise ContextLengthError(
            f"a prompt of {length} tokens and {rules.max_tokens} new ones do not fit the model's context of {limit}; "
            f"ask for at most --max-tokens {limit + 1 - length}, or use --slide"
        )
    return rules


def check_ids(sequence: Sequence, vocab_size: int) -> None:
    """Refuse ids that the model has no vector for."""
    wrong = next((token for token in sequence.prompt if not 0 <= token < vocab_size), None)
    if wrong is not None:
        raise UsageError(f"the prompt has the id {wrong}; the model's ids are 0 to {vocab_size - 1}")


def first_kept(sequence: Sequence, context_length: int) -> int:
    """The first of the ids that a context shift keeps: the last half of the context."""
    return len(sequence.prompt) + len(sequence.generated) - max(1, context_length // 2)
