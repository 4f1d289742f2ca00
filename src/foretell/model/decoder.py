"""The decoder: ids in, logits out. Training, cached generation and looking inside all run this one forward."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from foretell.config import ModelConfig
from foretell.errors import ContextLengthError
from foretell.model.cache import FreshKVView, KVView
from foretell.model.dropout import bind_dropout, make_dropout
from foretell.model.linear import Linear, Product
from foretell.model.position import SinusoidalPosition
from foretell.model.transformer import Transformer


class TokenEmbedding(nn.Module):
    """A vector for every token; positions come in as rotations later, or not at all."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.token = nn.Embedding(config.vocab_size, config.width)
        self.dropout = make_dropout(config.dropout.embedding)

    def forward(self, ids: Tensor, positions: Tensor) -> Tensor:
        return self.dropout(self.token(ids))  # (B, T, D)


class TokenAndPositionEmbedding(TokenEmbedding):
    """A vector for every token plus one for every position."""

    def __init__(self, config: ModelConfig):
        super().__init__(config)
        self.position = POSITIONS[config.position](config)

    def forward(self, ids: Tensor, positions: Tensor) -> Tensor:
        token = self.token(ids)
        return self.dropout(token + self.position(positions).to(token.dtype))  # (B, T, D)


POSITIONS = {
    "learned": lambda config: nn.Embedding(config.context_length, config.width),
    "sinusoidal": lambda config: SinusoidalPosition(config.width),
}
EMBEDDINGS = {True: TokenAndPositionEmbedding, False: TokenEmbedding}  # by: are position vectors added?


class TiedHead(nn.Module):
    """The unembedding that reads the token embedding's weight (Press and Wolf 2017), and so has no key of its own."""

    product: Product = staticmethod(F.linear)

    def __init__(self, token: nn.Embedding, bias: bool):
        super().__init__()
        self.tied = (token,)  # in a tuple, where the module tree does not see it a second time
        self.bias = nn.Parameter(torch.zeros(token.num_embeddings)) if bias else None

    @property
    def weight(self) -> Tensor:
        return self.tied[0].weight

    def forward(self, x: Tensor) -> Tensor:
        return self.product(x, self.weight, self.bias)  # (..., V)


class Decoder(nn.Module):
    """A decoder of any member of the family that `ModelConfig` describes. New weights come from `initialize`."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.config = config
        self.embed = EMBEDDINGS[config.position in POSITIONS](config)
        self.trunk = Transformer(config)
        self.head = self.make_head(config)
        self.dropout_rng = bind_dropout(self)

    def forward(self, ids: Tensor, kv: KVView | None = None) -> Tensor:
        """Logits (B, T, V) of the token after each of ids (B, T); `kv` defaults to the row's own keys and values."""
        return self.head(self.hidden(ids, kv))

    def hidden(self, ids: Tensor, kv: KVView | None = None) -> Tensor:
        """What the head reads: the stream after the last norm, (B, T, D)."""
        kv = kv or FreshKVView(ids)
        self.check_length(ids.shape[1])
        return self.trunk(self.embed(ids, kv.positions), kv)

    def make_head(self, config: ModelConfig) -> nn.Module:
        """The layer that turns the stream into one score for each token of the vocabulary."""
        if config.tie_embeddings:
            return TiedHead(self.embed.token, config.bias.head)
        return Linear(config.width, config.vocab_size, bias=config.bias.head)

    def check_length(self, length: int) -> None:
        """Refuse more tokens than the model was made for."""
        if length > self.config.context_length:
            limit = self.config.context_length
            raise ContextLengthError(f"{length} tokens do not fit the model's context of {limit}; give a shorter text")
