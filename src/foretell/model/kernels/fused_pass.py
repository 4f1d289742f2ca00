"""A decoder whose passes over few tokens are one compiled program, where no module of it has a hook.

Between two tokens the processor's caches are full of weights, so that Python's code and data come from main memory, and
every operation takes several times as long as in a loop. From ids to logits, the program replaces some forty of them.
With hooks, gradients, many tokens, changed weights or replaced modules, the pass is left to the modules.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from foretell.model.cache import KVView
from foretell.model.decoder import Decoder, TokenAndPositionEmbedding, TokenEmbedding, last_indices, rows_at_once
from foretell.model.dropout import Dropout
from foretell.model.kernels.fast_decoder import MAX_ROWS
from foretell.model.kernels.fast_linear import FastForward, Sources, fast_form
from foretell.model.kernels.fused_block import Ends, FusedForward, Parts, Step, fused_form, run_pass
from foretell.model.kernels.fused_norm import NORMS, FusedNorm, can_watch, few_rows_norm
from foretell.model.kernels.matmul import padded_rows, scratch_per_row
from foretell.model.kernels.pass_program import EMBEDDING, HEAD
from foretell.model.paged_cache import PagedKVView
from foretell.model.position import NoRotation, RotaryPosition, Rotation
from foretell.model.quantized_linear import Int4Embedding, Int8Embedding, QuantizedEmbedding
from foretell.model.surgery import RefersToHooks, copy_with, recast
from foretell.model.transformer import Transformer

EMBEDDINGS, TOKENS = (TokenEmbedding, TokenAndPositionEmbedding), (nn.Embedding, Int8Embedding, Int4Embedding)
DROPOUTS = (nn.Identity, Dropout)
ROTATIONS = (NoRotation, RotaryPosition)
FEWEST_ANGLES = 256  # positions whose angles are computed at once; later twice the number, and so on


class FusedPass:
    """The parts of a decoder around its fused blocks for the compiled program, and what shows that they changed."""

    def __init__(self, decoder: Any):
        self.blocks = [block.fused for block in decoder.trunk.blocks]
        self.norm, self.head = FusedNorm(decoder.trunk.norm, decoder.config.width), decoder.head.fast
        self.embedding = EmbeddingTables(decoder)
        parts = (*self.blocks, self.norm, self.head, self.embedding)
        self.sources = Sources(tensor for part in parts for tensor in part.sources.tensors)
        self.watch(decoder)
        self.context_length, self.rotation = decoder.config.context_length, decoder.trunk.rotation
        self.angles: Rotation | None = None
        self.max_logits = min(MAX_ROWS, rows_at_once(decoder))

    def watch(self, decoder: Decoder) -> None:
        """Use the compiled program only while no module of this decoder has a hook or is replaced."""
        self.parts = Parts(decoder, list(decoder.modules()))

    def suits(self, decoder: Decoder, ids: Tensor, kv: KVView, num_logits: int) -> bool:
        """True if the program computes this pass."""
        is_few = ids.numel() <= MAX_ROWS and 0 < num_logits <= self.max_logits
        if not is_few or type(kv) is not PagedKVView or torch.is_grad_enabled() or decoder.training:
            return False
        if kv.cache.keys.dtype != self.head.dtype or not self.parts.are_plain(decoder):
            return False
        if not self.embedding.has(ids) or kv.num_keys > self.context_length:
            return False
        return self.sources.are_current()

    def run(self, ids: Tensor, kv: PagedKVView, num_logits: list[int]) -> Tensor:
        """The logits (R, V) after the last num_logits[b] tokens of each row of ids (B, T)."""
        step, matrix, ids = Step(kv, self.angles_until(kv.num_keys), is_table=True), self.head.matmul, ids.contiguous()
        assert ids.shape == step.shape, "the KV view is for other tokens"
        chosen = np.array(last_indices(kv.counts, num_logits, ids.shape[1]))
        logits = torch.empty(len(chosen), matrix.matrix.outputs, dtype=self.head.dtype)
        streams = torch.empty(2, ids.numel(), matrix.matrix.inputs, dtype=self.head.dtype)
        rows = padded_rows(len(chosen))
        places = (chosen.ctypes.data, len(chosen), rows, logits.data_ptr())
        ends = Ends(
            np.array((ids.data_ptr(), *self.embedding.values), EMBEDDING),
            np.array((self.norm.values, matrix.record.item(), *places), HEAD),
            rows * scratch_per_row(matrix.matrix),
            matrix.is_padded,
        )
        run_pass(step, (streams[0].data_ptr(), streams[1].data_ptr()), self.blocks, ends)
        return logits

    def angles_until(self, end: int) -> Rotation | None:
        """Cosines and sines of the positions below `end`, and of some more."""
        if isinstance(self.rotation, NoRotation):
            return None
        angles = self.angles  # another thread may replace them by fewer
        if angles is None or angles[0].shape[2] < end:
            count = min(max(FEWEST_ANGLES, 1 << (end - 1).bit_length()), self.context_length)
            angles = self.angles = self.rotation(torch.arange(count)[None], self.head.dtype)
        return angles


class EmbeddingTables:
    """The tables of an embedding for the compiled program."""

    def __init__(self, decoder: Decoder):
        embed, config = decoder.embed, decoder.config
        token = embed.token
        self.sources = Sources([*embed.parameters(), *embed.buffers()])
        if isinstance(token, QuantizedEmbedding):
            rows, self.factors = token.integers, float_factors(token)
            scales, minima = (0 if part is None else part.data_ptr() for part in self.factors)
            tables = (token.integers.data_ptr(), scales, minima, token.group, isinstance(token, Int4Embedding))
        else:
            rows = token.weight.detach()  # keeps the memory, which `Module.to` would free
            tables = (rows.data_ptr(), 0, 0, 0, False)
        self.rows = rows
        self.positions = torch.zeros(0)
        if isinstance(embed, TokenAndPositionEmbedding):
            # without hooks, which must not see this call, nor change the table for good
            self.positions = embed.position.forward(torch.arange(config.context_length)).detach().to(decoder.dtype)
        positions = self.positions.data_ptr() if len(self.positions) else 0
        self.values = (*tables, positions, config.width)
        self.dropout = embed.dropout

    def has(self, ids: Tensor) -> bool:
        """True if all ids have a row in the table, and none of its elements is dropped."""
        if ids.dtype != torch.int64 or self.dropout.training:
            return False
        numbers = ids.numpy()
        return bool(numbers.min() >= 0 and numbers.max() < len(self.rows))


def float_factors(token: QuantizedEmbedding) -> tuple[Tensor, Tensor | None]:
    """The scales and minima of an embedding in float32; integers of 4 bits, which are stored unsigned, have minima."""
    scales, minima = token.scales_and_minima()
    if minima is None and isinstance(token, Int4Embedding):
        minima = -8 * scales.float()
    return scales.float(), None if minima is None else minima.float()


class FusedDecoder(RefersToHooks, Decoder):
    """`Decoder` whose passes over few tokens are one compiled program."""

    fused: FusedPass

    def last_logits(self, ids: Tensor, kv: KVView, counts: list[int], num_logits: list[int]) -> Iterator[Tensor]:
        if not self.fused.suits(self, ids, kv, sum(num_logits)):
            return super().last_logits(ids, kv, counts, num_logits)
        assert isinstance(kv, PagedKVView)
        return iter([self.fused.run(ids, kv, num_logits)])

    def refer_to(self, copies: Mapping[nn.Module, nn.Module]) -> None:
        """Watch the hooks of this copy."""
        self.fused = copy.copy(self.fused)
        self.fused.watch(self)


def prepared_decoder(decoder: Decoder) -> Decoder:
    """A copy of a decoder with the blocks and layers that have a faster form on this machine, fused if possible."""
    forms: dict[str, nn.Module] = {}
    for path, module in list(decoder.named_modules())[1:]:
        if not any(path.startswith(f"{above}.") for above in forms):  # blocks precede their layers
            form = fast_form(fused_form(module))
            forms |= {path: form} if form is not module else {}
    return fused_decoder(copy_with(decoder, forms))


def fused_decoder(decoder: Decoder) -> Decoder:
    """A copy of a decoder with fused blocks that computes passes over few tokens at once; itself if that can't be."""
    if not can_fuse_pass(decoder):
        return decoder
    norm = few_rows_norm(decoder.trunk.norm, decoder.config.width)  # so that hooks elsewhere do not change a bit
    fused = recast(copy_with(decoder, {"trunk.norm": norm}), FusedDecoder)
    fused.fused = FusedPass(fused)
    return fused


def can_fuse_pass(decoder: Decoder) -> bool:
    """True if all modules of a decoder are of the known kinds, with weights of one dtype."""
    embed, trunk, head = decoder.embed, decoder.trunk, decoder.head
    if type(decoder) is not Decoder or type(trunk) is not Transformer or not isinstance(head, FastForward):
        return False
    if not all(isinstance(block, FusedForward) for block in trunk.blocks) or type(trunk.norm) not in NORMS:
        return False
    if type(embed) not in EMBEDDINGS or type(embed.token) not in TOKENS or type(trunk.rotation) not in ROTATIONS:
        return False
    if type(embed.dropout) not in DROPOUTS or not can_watch(trunk.norm):
        return False
    matrices = [head.fast, *(matrix for block in list[Any](trunk.blocks) for matrix in block.fused.matrices)]
    tables = [*embed.parameters(), *embed.buffers()]
    dtypes = {decoder.dtype} | {table.dtype for table in embed.parameters()} | {matrix.dtype for matrix in matrices}
    is_readable = all(table.is_contiguous() and not table.is_inference() for table in tables)
    return len(dtypes) == 1 and is_readable
