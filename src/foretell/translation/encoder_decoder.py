"""The encoder-decoder: a decoder whose blocks also read a source, which a second trunk encodes.

With a source, it can be sampled, traced and explained like any decoder. Vaswani et al. 2017, section 3.1.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, replace
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from foretell.config.model import ModelConfig
from foretell.data.batch import Rows
from foretell.errors import ContextLengthError
from foretell.model.cache import FreshKVView, KVCache, KVView
from foretell.model.cross_attention import ConditionedTransformer, RotatedConditionedTransformer
from foretell.model.decoder import POSITIONS, Decoder, ScaledEmbedding, TokenAndPositionEmbedding, TokenEmbedding
from foretell.model.description import Declared, Description
from foretell.model.dispatch import Use, choose_kernels
from foretell.model.init import INITIALIZERS, NoInitialization
from foretell.model.memory_cache import ConditionedKVCache, ConditionedKVView, FullKVView, MemoryKVView
from foretell.model.structure import MEMORY_IDS, MEMORY_POSITIONS
from foretell.model.transformer import Transformer
from foretell.translation.config import EncoderDecoderConfig


@dataclass(frozen=True)
class Source(Rows):
    """Source sentences: ids (B, S); the first lengths[b] ids of row b are real, the rest is padding.

    positions and document_ids, (B, S), are None if every row is one sentence.
    """

    lengths: list[int]
    positions: Tensor | None = None
    document_ids: Tensor | None = None

    def rows(self, first: int, last: int, stride: int = 1) -> Source:
        return replace(super().rows(first, last, stride), lengths=self.lengths[first:last:stride])


class TiedEmbedding(nn.Module):
    """The token embedding and scale of another module; it has no weights."""

    description = Description(formula="scaled token vector", backward="scaled rows", inputs=("ids",), is_float32=True)

    def __init__(self, token: nn.Embedding, scale: float):
        super().__init__()
        self.tied, self.scale = (token,), scale  # in a tuple, so that the module tree does not contain it twice

    @property
    def weight(self) -> Tensor:
        return self.tied[0].weight

    def forward(self, ids: Tensor) -> Tensor:
        return F.embedding(ids, self.weight) * self.scale  # (B, S, D)


class Encoder(nn.Module):
    """Encodes source ids to the memory, one vector per token; every token sees its whole sentence."""

    description = Description(
        inputs=("ids", "positions"),
        values={"embed": Declared("B T D", ("ids", "positions")), "trunk": Declared("B T D", ("embed",))},
        returns="trunk",
        memory_axes="TS",
    )

    def __init__(self, config: EncoderDecoderConfig, shared: nn.Embedding | None):
        super().__init__()
        self.embed = make_embedding(config, config.source_vocab_size or config.vocab_size)
        if shared is not None:
            self.embed.register_module("token", TiedEmbedding(shared, embedding_scale(config)))
        self.trunk = Transformer(config.encoder)

    def forward(self, source: Source) -> Tensor:
        kv = FullKVView(source.ids, source.lengths, source.positions, source.document_ids)
        return self.trunk(self.embed(source.ids, kv.positions), kv)  # (B, S, D)


class EncoderDecoder(Decoder):
    """A decoder with an encoder for its source. `given` sets the source; `make_encoder_decoder` makes a model."""

    description = Description(
        inputs=("ids", "positions", MEMORY_IDS, MEMORY_POSITIONS),
        values={
            "encoder": Declared("B S D", (MEMORY_IDS, MEMORY_POSITIONS)),
            "embed": Declared("B T D", ("ids", "positions")),
            "trunk": Declared("B T D", ("embed", "encoder")),
            "head": Declared("B T V", ("trunk",)),
        },
        returns="head",
    )
    source: Source | None = None
    memory: MemoryKVView | None = None  # the memory of the last generated rows

    def __init__(self, config: EncoderDecoderConfig):
        super().__init__(config)
        self.shape = config  # `config`, with its type
        self.encoder = Encoder(config, self.embed.token if config.source_vocab_size is None else None)
        self.bind_dropout()

    def given(self, source: Source) -> Self:
        """A copy that shares everything, and reads this source."""
        self.check_source(source)
        other = copy.copy(self)
        other.source, other.memory = source.to(self.device), None
        return other

    def encode(self, source: Source) -> MemoryKVView:
        view = MemoryKVView(self.encoder(source), source.lengths, source.positions)
        if self.shape.has_rotated_memory:  # use `forward`: a trace already has these angles from the encoder's pass
            view.rotation = self.encoder.trunk.rotation.forward(view.positions, view.memory.dtype)
        return view

    def make_view(self, ids: Tensor) -> KVView:
        """The view of a pass over whole rows ids (B, T), each with its row of the source."""
        assert self.source is not None, "a pass needs a source: model.given(source)"
        return ConditionedKVView(FreshKVView(ids), self.encode(self.source))

    def join(self, view: KVView, rows: list[int | None]) -> KVView:
        """The view of a pass of generated rows, each with its source row; the source is encoded once."""
        wanted = [row for row in rows if row is not None]
        assert len(wanted) == len(rows), "a sequence names its row of the source"
        if self.memory is None or not set(wanted) <= set(self.memory.origins):
            assert self.source is not None, "a pass needs a source: model.given(source)"
            self.memory = self.encode(self.source)
        self.memory = self.memory.of_rows(wanted)
        return ConditionedKVView(view, self.memory)

    def make_cache(self, rows: int, capacity: int) -> KVCache:
        """An empty cache; this encodes the source, once."""
        assert self.source is not None, "a cache needs a source: model.given(source)"
        memory = self.encode(self.source)
        return ConditionedKVCache(memory, self.config, rows, capacity, self.dtype, self.device)

    def make_embedding(self, config: ModelConfig) -> TokenEmbedding:
        assert isinstance(config, EncoderDecoderConfig)
        return make_embedding(config, config.vocab_size)

    def make_trunk(self, config: ModelConfig) -> Transformer:
        """The decoder's blocks, and the last norm."""
        assert isinstance(config, EncoderDecoderConfig)
        return (RotatedConditionedTransformer if config.has_rotated_memory else ConditionedTransformer)(config)

    def check_source(self, source: Source) -> None:
        if max(source.lengths) > self.config.context_length:
            raise ContextLengthError(
                f"a source of {max(source.lengths)} tokens does not fit the model's context of "
                f"{self.config.context_length}; cut it into sentences"
            )


def make_embedding(config: EncoderDecoderConfig, vocab_size: int) -> TokenEmbedding:
    sized = config.replaced(vocab_size=vocab_size, scale_embeddings=False)  # scaled below: seeds keep their weights
    embed = TokenAndPositionEmbedding(sized) if config.position in POSITIONS else TokenEmbedding(sized)
    if config.scale_embeddings:
        embed.token = ScaledEmbedding(vocab_size, config.width, embedding_scale(config))
    return embed


def embedding_scale(config: EncoderDecoderConfig) -> float:
    return math.sqrt(config.width) if config.scale_embeddings else 1.0


def make_encoder_decoder(config: EncoderDecoderConfig, seed: int) -> EncoderDecoder:
    """A model on the CPU with initial weights, determined by configuration and seed; keeps torch's random state.

    Scaled embeddings are normal with standard deviation 1 / sqrt(width), which is 1 after scaling.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = EncoderDecoder(config)
        INITIALIZERS[config.init](model)
        if config.scale_embeddings:
            for embed in (model.embed, model.encoder.embed):
                if isinstance(embed.token, nn.Embedding):
                    nn.init.normal_(embed.token.weight, std=config.width**-0.5)
    choose_kernels(model, Use(torch.device("cpu"), torch.float32, config.context_length))
    return model


def empty_encoder_decoder(config: EncoderDecoderConfig) -> EncoderDecoder:
    """A model on the meta device, whose weights have shapes but no values."""
    with torch.device("meta"), NoInitialization():
        return EncoderDecoder(config)


def weight_shapes(config: EncoderDecoderConfig) -> dict[str, tuple[int, ...]]:
    return {path: tuple(weight.shape) for path, weight in empty_encoder_decoder(config).named_parameters()}
