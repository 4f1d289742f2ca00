"""Proposers of the next tokens of a generation: earlier text, or a smaller model."""

from __future__ import annotations

from foretell.errors import UsageError
from foretell.generation.speculation import DraftModel, PromptLookup, Proposer
from foretell.language_model import LanguageModel

DRAFT_TOKENS = 4


def make_proposer(model: LanguageModel, speculate: int | None, draft: LanguageModel | None) -> Proposer | None:
    """A draft model where one is given, else prompt lookup with guesses of `speculate` tokens, else none.

    With a draft model, `speculate` is the length of its guesses. Raises UsageError for a draft model with another
    vocabulary and for a length below 1.
    """
    if speculate is not None and speculate < 1:
        raise UsageError(f"speculate must be 1 token or more, not {speculate}")
    if draft is None:
        return None if speculate is None else PromptLookup(speculate)
    size, other = model.tokenizer.vocab_size, draft.tokenizer.vocab_size
    if size != other or any(model.tokenizer.text_of(token) != draft.tokenizer.text_of(token) for token in range(size)):
        raise UsageError(
            f"the draft model {draft.name} has another tokenizer ({other:,} tokens) than {model.name} ({size:,}); its "
            "guesses would be other texts"
        )
    return DraftModel(draft.decoder, speculate or DRAFT_TOKENS)
