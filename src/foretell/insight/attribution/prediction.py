"""Which prediction is looked into: a text, a position in it, and a token that might follow."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from foretell.errors import UsageError
from foretell.insight.wording import ending, quoted
from foretell.language_model import LanguageModel, resolve_position


@dataclass(frozen=True)
class Prediction:
    """What a model says after the tokens up to position `at`, the later ones being there too."""

    model: LanguageModel
    ids: list[int]
    at: int

    def logits(self) -> Tensor:
        """One pass of the model; logits (V,) of what its tokenizer can write, at the position alone."""
        hidden = self.model.decoder.hidden(torch.tensor([self.ids], device=self.model.device))  # (1, T, D)
        return self.model.decoder.head(hidden[:, self.at : self.at + 1])[0, 0, : self.model.tokenizer.vocab_size]

    @property
    def context(self) -> str:
        """The text that the prediction follows."""
        return self.model.tokenizer.decode(self.ids[: self.at + 1])

    def named(self, token: int) -> str:
        """A token in quotes."""
        return quoted(self.model.tokenizer.text_of(token))

    def __str__(self) -> str:
        return f"after {ending(self.context)} (position {self.at})"


def make_prediction(model: LanguageModel, text: str, at: int = -1) -> Prediction:
    """The prediction after token `at` of a text, counted from 0, or from the end where negative."""
    if model.decoder.training:
        raise UsageError(
            "the model is in training mode, in which dropout moves every number; call model.decoder.eval()"
        )
    ids = model.encode_fitting(text)
    return Prediction(model, ids, resolve_position(at, len(ids)))


def choose_token(model: LanguageModel, token: str | int | None, logits: Tensor) -> int:
    """The id of a token given as its text or id; None is the likeliest. A text of several tokens is a `UsageError`."""
    if token is None:
        return int(logits.argmax())
    if isinstance(token, int):
        model.tokenizer.piece(token)  # refuses what is no token
        return token
    ids = model.tokenizer.encode(token, allow_special=True)
    if len(ids) != 1:
        pieces = ", ".join(quoted(model.tokenizer.text_of(one)) for one in ids) or "none"
        raise UsageError(f"{quoted(token)} is not one token of this model but {len(ids)}: {pieces}; give a single one")
    return ids[0]
