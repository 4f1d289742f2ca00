"""The decoder: ids in, logits out. Training, cached generation and tracing all run this one forward."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from foretell.config import ModelConfig
from foretell.errors import ContextLengthError
from foretell.model.cache import FreshKVView, KVCache, KVView
from foretell.model.description import RETURNED, Declared, Description
from foretell.model.dropout import DropoutHost, make_dropout
from foretell.model.position import SinusoidalPosition
from foretell.model.transformer import Transformer


class TokenEmbedding(nn.Module):
    """A vector for every token, for models whose positions are rotations or that have none."""

    description = Description(
        inputs=("ids", "positions"),
        values={"token": Declared("B T D", ("ids",)), "dropout": Declared("B T D", ("token",), RETURNED)},
        returns="token",
        is_float32=True,
    )

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.token = nn.Embedding(config.vocab_size, config.width)
        self.dropout = make_dropout(config.dropout.embedding)

    def forward(self, ids: Tensor, positions: Tensor) -> Tensor:
        return self.dropout(self.token(ids))  # (B, T, D)


class TokenAndPositionEmbedding(TokenEmbedding):
    """A vector for every token plus one for every position."""

    description = TokenEmbedding.description.changed(
        formula="token plus position",
        reads=("token", "position"),
        values={
            "token": Declared("B T D", ("ids",)),
            "position": Declared("B T D", ("positions",)),
            "dropout": Declared("B T D", ("token", "position"), RETURNED),
        },
        returns="",
    )

    def __init__(self, config: ModelConfig):
        super().__init__(config)
        self.position = POSITIONS[config.position](config)

    def forward(self, ids: Tensor, positions: Tensor) -> Tensor:
        token = self.token(ids)
        return self.dropout(token + self.position(positions).to(token.dtype))  # (B, T, D)


class PositionEmbedding(nn.Embedding):
    """A learned vector for every position."""

    description = Description(formula="position vector", inputs=("positions",), is_float32=True)


POSITIONS = {
    "learned": lambda config: PositionEmbedding(config.context_length, config.width),
    "sinusoidal": lambda config: SinusoidalPosition(config.width),
}


class TiedHead(nn.Module):
    """The unembedding that shares the token embedding's weight (Press and Wolf 2017), and so has no key of its own."""

    description = Description(formula="tied linear", saved=("x",))

    def __init__(self, token: nn.Embedding, bias: bool):
        super().__init__()
        self.tied = (token,)  # in a tuple, so that the module tree does not contain it twice
        self.bias = nn.Parameter(torch.zeros(token.num_embeddings)) if bias else None

    @property
    def weight(self) -> Tensor:
        return self.tied[0].weight

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)  # (..., V)


class Decoder(DropoutHost):
    """A decoder of the family that `ModelConfig` describes. `init.make_decoder` makes one with new weights."""

    description = Description(
        inputs=("ids", "positions"),  # the positions come with the keys and values of earlier calls
        values={
            "embed": Declared("B T D", ("ids", "positions")),
            "trunk": Declared("B T D", ("embed",)),
            "head": Declared("B T V", ("trunk",)),
        },
        returns="head",
    )

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.config = config
        self.embed = self.make_embedding(config)
        self.trunk = self.make_trunk(config)
        self.head = self.make_head(config)
        self.bind_dropout()

    @property
    def dtype(self) -> torch.dtype:
        """The precision of the token embedding's output."""
        return self._stored_embedding().dtype

    @property
    def device(self) -> torch.device:
        """The device of the token embedding."""
        return self._stored_embedding().device

    def _stored_embedding(self) -> Tensor:
        """The weight of the token embedding, or the scales of a quantised one."""
        token = self.embed.token
        return next(tensor for tensor in (*token.parameters(), *token.buffers()) if tensor.is_floating_point())

    def forward(self, ids: Tensor, kv: KVView | None = None) -> Tensor:
        """Logits (B, T, V) of the token after each of ids (B, T); `kv` defaults to the row's own keys and values."""
        return self.head(self.hidden(ids, kv))

    def hidden(self, ids: Tensor, kv: KVView | None = None) -> Tensor:
        """The residual stream after the final norm, which the head reads: (B, T, D)."""
        kv = kv or self.make_view(ids)
        self.check_length(ids.shape[1])
        return self.trunk(self.embed(ids, kv.positions), kv)

    def make_view(self, ids: Tensor) -> KVView:
        """The view of a pass over whole rows ids (B, T), without a cache."""
        return FreshKVView(ids)

    def join(self, view: KVView, rows: list[int | None]) -> KVView:
        """The view of a pass of generated rows. A decoder reads only their own tokens, so it is `view` itself."""
        return view

    def make_cache(self, rows: int, capacity: int) -> KVCache:
        """An empty cache for rows of at most `capacity` tokens, in the precision and on the device of the weights."""
        return KVCache(self.config, rows, capacity, self.dtype, self.device)

    def make_embedding(self, config: ModelConfig) -> TokenEmbedding:
        """The layer that turns ids into the stream."""
        return TokenAndPositionEmbedding(config) if config.position in POSITIONS else TokenEmbedding(config)

    def make_trunk(self, config: ModelConfig) -> Transformer:
        """The blocks, and the last norm."""
        return Transformer(config)

    def make_head(self, config: ModelConfig) -> nn.Module:
        """The layer that turns the stream into logits."""
        if config.tie_embeddings:
            return TiedHead(self.embed.token, config.bias.head)
        return nn.Linear(config.width, config.vocab_size, bias=config.bias.head)

    def check_length(self, length: int) -> None:
        """Raise a `ContextLengthError` for more tokens than the context holds."""
        if length > self.config.context_length:
            limit = self.config.context_length
            raise ContextLengthError(f"{length} tokens do not fit the model's context of {limit}; give a shorter text")
