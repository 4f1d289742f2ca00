"""The decoder: ids in, logits out. Training, cached generation and tracing all run this one forward."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import chain

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from foretell.config.model import ModelConfig
from foretell.errors import CheckpointError, ContextLengthError, check_type
from foretell.model.cache import FreshKVView, KVCache, KVView
from foretell.model.description import PARTS, PASSED_BACK, RETURNED, Declared, Description
from foretell.model.dropout import DropoutHost, make_dropout
from foretell.model.position import SinusoidalPosition
from foretell.model.transformer import Transformer
from foretell.system.device import dtype_name, to_device

LOGITS_AT_ONCE = 2**23  # elements: 32 MiB in float32, and two of 64 MiB for their log-softmax in float64


def check_decoder(decoder: Decoder) -> None:
    """Refuse anything but a Decoder, such as the LanguageModel that has it."""
    check_type("the decoder", decoder, Decoder, "a Decoder", "model.decoder is one")


class ScaledVectors(nn.Module):
    """Mix-in for a token embedding: its vectors times `scale`. A tied head uses them unscaled (Vaswani et al., 3.4).

    The scale is rounded to the precision of the vectors, as in Gemma.
    """

    description = Description(formula="scaled token vector", backward="scaled rows", inputs=("ids",), is_float32=True)
    scale: float

    def forward(self, input: Tensor) -> Tensor:
        vectors = super().forward(input)
        return vectors * rounded(self.scale, vectors.dtype)


def rounded(value: float, dtype: torch.dtype) -> float:
    """Round a number to a dtype without a tensor, which could not be made while a CUDA graph is recorded."""
    bits = 1 - round(math.log2(torch.finfo(dtype).eps))
    mantissa, exponent = math.frexp(value)
    return math.ldexp(round(math.ldexp(mantissa, bits)), exponent - bits)


class ScaledEmbedding(ScaledVectors, nn.Embedding):
    """Token vectors times `scale`."""

    operation = "scaled embed"

    def __init__(self, num_embeddings: int, embedding_dim: int, scale: float):
        super().__init__(num_embeddings, embedding_dim)
        self.scale = scale


def make_token_embedding(config: ModelConfig) -> nn.Embedding:
    if config.scale_embeddings:
        return ScaledEmbedding(config.vocab_size, config.width, math.sqrt(config.width))
    return nn.Embedding(config.vocab_size, config.width)


class TokenEmbedding(nn.Module):
    """A vector for every token, for models with rotary positions or without positions."""

    description = Description(
        inputs=("ids", "positions"),
        values={"token": Declared("B T D", ("ids",)), "dropout": Declared("B T D", ("token",), RETURNED)},
        returns="token",
        is_float32=True,
    )
    operation = PARTS

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.token = make_token_embedding(config)
        self.dropout = make_dropout(config.dropout.embedding)

    def forward(self, ids: Tensor, positions: Tensor) -> Tensor:
        return self.dropout(self.token(ids))  # (B, T, D)


class TokenAndPositionEmbedding(TokenEmbedding):
    """A vector for every token plus one for every position."""

    description = TokenEmbedding.description.changed(
        formula="token plus position",
        backward=PASSED_BACK,
        reads=("token", "position"),
        values={
            "token": Declared("B T D", ("ids",)),
            "position": Declared("B T D", ("positions",)),
            "dropout": Declared("B T D", ("token", "position"), RETURNED),
        },
        returns="",
    )
    operation = "add"

    def __init__(self, config: ModelConfig):
        super().__init__(config)
        self.position = POSITIONS[config.position](config)

    def forward(self, ids: Tensor, positions: Tensor) -> Tensor:
        token = self.token(ids)
        return self.dropout(token + self.position(positions).to(token.dtype))  # (B, T, D)


class PositionEmbedding(nn.Embedding):
    """A learned vector for every position."""

    description = Description(formula="position vector", backward="rows", inputs=("positions",), is_float32=True)
    operation = "position"


HEAD = "head"  # the path of a decoder's last module
POSITIONS = {
    "learned": lambda config: PositionEmbedding(config.context_length, config.width),
    "sinusoidal": lambda config: SinusoidalPosition(config.width),
}


class TiedHead(nn.Module):
    """The unembedding that shares the weight of the token embedding, so it has no key (Press and Wolf 2017)."""

    description = Description(formula="tied linear", backward="transposed linear", saved=("x",))
    operation = "matmul"

    def __init__(self, token: nn.Embedding, bias: bool):
        super().__init__()
        self.tied = (token,)  # in a tuple, so that the module tree does not contain it twice
        self.bias = nn.Parameter(torch.zeros(token.num_embeddings)) if bias else None

    @property
    def weight(self) -> Tensor:
        return self.tied[0].weight

    def forward(self, input: Tensor) -> Tensor:
        return F.linear(input, self.weight, self.bias)  # (..., V)


class Decoder(DropoutHost):
    """A decoder as `ModelConfig` describes it. `init.make_decoder` makes one with new weights."""

    description = Description(
        inputs=("ids", "positions"),  # positions come from the KV view
        values={
            "embed": Declared("B T D", ("ids", "positions")),
            "trunk": Declared("B T D", ("embed",)),
            "head": Declared("B T V", ("trunk",)),
        },
        returns="head",
    )
    operation = PARTS

    def __init__(self, config: ModelConfig):
        check_type("the configuration", config, ModelConfig, "a ModelConfig", "foretell.preset makes one")
        super().__init__()
        self.config = config
        self.embed = self.make_embedding(config)
        self.trunk = self.make_trunk(config)
        self.head = self.make_head(config)
        self.bind_dropout()

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the token vectors."""
        token = self.embed.token  # a quantised one stores other types
        return token.weight.dtype if isinstance(token, nn.Embedding) else token.dtype

    @property
    def device(self) -> torch.device:
        """The device of the token embedding."""
        token = self.embed.token  # not its state_dict, before which fully_shard takes gathered weights away
        return next(chain(token.parameters(), token.buffers())).device

    def forward(self, ids: Tensor, kv: KVView | None = None) -> Tensor:
        """Logits (B, T, V) for the token after each of ids (B, T); without `kv`, each row is a separate sequence."""
        return self.head(self.hidden(ids, kv))

    def hidden(self, ids: Tensor, kv: KVView | None = None) -> Tensor:
        """The residual stream after the final norm, which the head reads: (B, T, D)."""
        kv = kv or self.make_view(ids)
        self.check_length(ids.shape[1])
        return self.trunk(self.embed(ids, kv.positions), kv)

    def last_logits(self, ids: Tensor, kv: KVView, counts: list[int], num_logits: list[int]) -> Iterator[Tensor]:
        """The logits (n, V) after the last num_logits[b] of the counts[b] tokens of each row of ids (B, T)."""
        hidden = self.hidden(to_device(ids, self.device), kv)  # (B, T, D)
        return logit_chunks(self, last_of_rows(hidden, counts, num_logits))

    def make_view(self, ids: Tensor) -> KVView:
        """The view of a pass over whole rows ids (B, T), without a cache."""
        return FreshKVView(ids)

    def join(self, view: KVView, rows: list[int | None]) -> KVView:
        """The view of a pass of generated rows; an encoder-decoder adds the rows of its source."""
        return view

    def make_cache(self, rows: int, capacity: int) -> KVCache:
        """An empty cache for rows of at most `capacity` tokens, in the precision and on the device of the weights."""
        return KVCache(self.config, rows, capacity, self.dtype, self.device)

    def make_embedding(self, config: ModelConfig) -> TokenEmbedding:
        return TokenAndPositionEmbedding(config) if config.position in POSITIONS else TokenEmbedding(config)

    def make_trunk(self, config: ModelConfig) -> Transformer:
        return Transformer(config)

    def make_head(self, config: ModelConfig) -> nn.Module:
        if config.tie_embeddings:
            return TiedHead(self.embed.token, config.bias.head)
        return nn.Linear(config.width, config.vocab_size, bias=config.bias.head)

    def check_length(self, length: int) -> None:
        """Raise a `ContextLengthError` for more tokens than the context holds."""
        if length > self.config.context_length:
            limit = self.config.context_length
            raise ContextLengthError(f"{length} tokens do not fit the model's context of {limit}; give a shorter text")


def rows_at_once(decoder: Decoder) -> int:
    """The number of rows of logits in a chunk of `logit_chunks`."""
    return max(1, LOGITS_AT_ONCE // decoder.config.vocab_size)


def logit_chunks(decoder: Decoder, hidden: Tensor) -> Iterator[Tensor]:
    """The logits (n, V) of hidden (N, D), n rows at a time, so that N * V logits are never in memory at once."""
    for part in hidden.split(rows_at_once(decoder)):
        yield decoder.head(part)


def last_of_rows(hidden: Tensor, counts: list[int], num_last: list[int]) -> Tensor:
    """The hidden states (R, D) of the last num_last[b] of the counts[b] tokens of each row, from (B, T, D)."""
    if len(counts) * hidden.shape[1] == sum(num_last):
        return hidden.flatten(0, 1)
    picks = last_indices(counts, num_last, hidden.shape[1])
    return hidden.flatten(0, 1)[torch.tensor(picks, dtype=torch.long, device=hidden.device)]


def last_indices(counts: list[int], num_last: list[int], length: int) -> list[int]:
    """The indices of the last num_last[b] of the counts[b] tokens of each row, among B * length tokens in one list."""
    assert all(last <= count for count, last in zip(counts, num_last, strict=True)), "more logits than tokens of a row"
    rows = enumerate(zip(counts, num_last, strict=True))
    return [row * length + token for row, (count, last) in rows for token in range(count - last, count)]


def log_probabilities(logits: Tensor) -> Tensor:
    """Logits (..., V) as log-probabilities in nats, in float64. Raises the errors of `check_logits`."""
    return check_logits(logits).double().log_softmax(-1)


def check_logits(logits: Tensor) -> Tensor:
    """Return the logits (..., V) if each row has a softmax; raise a `CheckpointError` if it would be NaN.

    -infinity is allowed (the token is ruled out), but not for all tokens of a row.
    """
    if not bool(logits.amax(-1).isfinite().all()):  # NaN and +infinity are the largest of their row
        precision = dtype_name(logits.dtype)
        raise CheckpointError(
            f"the model's logits are not finite in {precision}, so the next token has no probabilities; its weights "
            "are damaged or too large"
        )
    return logits
