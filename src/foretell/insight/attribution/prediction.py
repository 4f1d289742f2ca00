"""The prediction to explain: a text, a position in it, and a next token."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from foretell.errors import UsageError
from foretell.insight.wording import ending, quoted
from foretell.language_model import LanguageModel, check_model, resolve_position
from foretell.model.logits import check_logits


@dataclass(frozen=True)
class Prediction:
    """A model's next-token prediction at position `at` of the ids; later ids do not influence it."""

    model: LanguageModel
    ids: list[int]
    at: int

    def logits(self) -> Tensor:
        """Run the model: logits (V,) at the position, over the tokenizer's tokens only."""
        hidden = self.model.decoder.hidden(torch.tensor([self.ids], device=self.model.device))  # (1, T, D)
        logits = self.model.decoder.head(hidden[:, self.at : self.at + 1])[0, 0, : self.model.tokenizer.vocab_size]
        return check_logits(logits)

    @property
    def context(self) -> str:
        """The text that the prediction follows."""
        return self.model.tokenizer.decode(self.ids[: self.at + 1])

    def named(self, token: int) -> str:
        """The text of a token id, in quotes."""
        return quoted(self.model.tokenizer.text_of(token))

    def __str__(self) -> str:
        return f"after {ending(self.context)} (position {self.at})"


def make_prediction(model: LanguageModel, text: str, at: int = -1) -> Prediction:
    """The prediction after token `at` of a text, counted from 0, or from the end if negative."""
    check_model(model)
    if model.decoder.training:
        raise UsageError("the model is in training mode, where dropout changes every number; call model.decoder.eval()")
    ids = model.encode_fitting(text)
    return Prediction(model, ids, resolve_position(at, len(ids)))


def choose_token(model: LanguageModel, token: str | int | None, logits: Tensor) -> int:
    """The id of a token given as text or id; None for the most probable. Raises `UsageError` for several tokens."""
    if token is None:
        return int(logits.argmax())
    if isinstance(token, int):
        model.tokenizer.piece(token)  # raises for an id that is not a token
        return token
    return token_id(model, token)


def token_id(model: LanguageModel, text: str) -> int:
    """The id of a text that is one token, special or not. Raises `UsageError` for any other text."""
    ids = model.tokenizer.encode(text, allow_special=True)
    if len(ids) != 1:
        pieces = ", ".join(quoted(model.tokenizer.text_of(piece_id)) for piece_id in ids[:8])
        raise UsageError(
            f"{quoted(text)} is {len(ids)} tokens of this model{f': {pieces}' if ids else ''}; give one token"
        )
    return ids[0]
