"""Fused transformer blocks, used when no hooks are registered inside them: a second path through the blocks.

A fused block falls back to the modules of the plain block for gradients, hooks, many rows, changed weights, and any
cache but a paged one.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from itertools import pairwise
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor, nn

from foretell.model.attention import Attention, SDPAttention, keep, norm_each_head
from foretell.model.cache import KVView
from foretell.model.dispatch import plain_form
from foretell.model.kernels.block_program import BLOCK, PASS, PHASES
from foretell.model.kernels.fast_decoder import MAX_ROWS
from foretell.model.kernels.fast_linear import (
    FastWeight,
    Sources,
    can_pack,
    form_of,
    is_always_fastest,
    layers_on_parts,
    pack_layers,
)
from foretell.model.kernels.fused_norm import NORMS, FusedNorm, can_watch
from foretell.model.kernels.matmul import padded_rows, prepared_per_row
from foretell.model.kernels.packing import INPUTS
from foretell.model.kernels.pass_program import PASS_PHASES, PROGRAM, compute_pass
from foretell.model.kernels.strict_layers import CompiledActivation, CompiledGELU, CompiledSiLU
from foretell.model.kernels.threads import LINE, run_on_threads
from foretell.model.kernels.vector_math import ACTIVATIONS
from foretell.model.paged_cache import PagedKVView
from foretell.model.position import Rotation, keep_heads, rotate_heads
from foretell.model.surgery import GLOBAL_HOOKS, RefersToHooks, copy_with, recast
from foretell.model.transformer import (
    ATTENTION,
    FEEDFORWARD,
    MLP,
    AddUpdate,
    Block,
    BlockPostNorm,
    GatedMLP,
    ParallelBlock,
    ParallelBlockSharedNorm,
    ReplaceByUpdate,
)
from foretell.numerics.activations import activation_name


class Parts:
    """The hooks of some modules, and the modules below a module: what shows that their forward has changed."""

    def __init__(self, top: nn.Module, hooked: list[nn.Module]):
        # these are the modules' dictionaries, so later hooks and modules are noticed: a trace may replace a core
        self.hooks = [*GLOBAL_HOOKS, *(hooks for module in hooked for hooks in hooks_of(module))]
        self.children = [module._modules for module in top.modules() if module._modules]
        self.old_children = list(map(dict, self.children))

    def are_plain(self, top: nn.Module) -> bool:
        """True if no module has a hook, and none has been replaced, also not in a copy of the top module."""
        is_same = self.children[0] is top._modules and self.children == self.old_children
        return is_same and not any(self.hooks)


class FusedWeights:
    """The packed weights of a block, with version numbers that show changes."""

    def __init__(self, block: Any):
        inner = inner_layers(block.feedforward)
        self.matrices = [pack_layers(layers, in_turns=layers == inner) for layers in layer_groups(block)]
        self.norms = norms_in_order(block)
        self.sources = Sources(tensor for part in (*self.matrices, *self.norms) for tensor in part.sources.tensors)
        self.max_rows = MAX_ROWS
        self.record = self._record(block)
        self.address = self.record.ctypes.data
        self.per_row = self._scratch_per_row()
        self.is_padded = any(matrix.matmul.is_padded for matrix in self.matrices)

    def __deepcopy__(self, memo: Any) -> Any:
        raise TypeError("a decoder prepared for generation has addresses of its weights; copy the plain one")

    def watch_hooks(self, block: Any) -> None:
        """Use the compiled program only while the modules of this block have no hooks and are not replaced."""
        self.parts = Parts(block, [module for module in block.modules() if module is not block])

    def _record(self, block: Any) -> np.ndarray:
        attention, down = block.attention, self.matrices[3].matmul.matrix
        E = attention.head_width
        heads, kv_heads = (layer.out_features // E for layer in (attention.query, attention.key))
        activation = ACTIVATIONS[activation_name(block.feedforward.activation)]
        parts = [matrix.matmul.record.item() for matrix in self.matrices] + [norm.values for norm in self.norms]
        sizes = [attention.layer, down.outputs, heads, kv_heads, E, down.inputs, attention.window or 0, activation]
        is_parallel = isinstance(block, (ParallelBlock, ParallelBlockSharedNorm))
        choices = [type(block.feedforward) is GatedMLP, type(block.attention_residual) is AddUpdate, is_parallel]
        return np.array((*parts, *sizes, *choices), BLOCK)

    def _scratch_per_row(self) -> int:
        """The float32 numbers per token, in padded rows, that the compiled program needs."""
        matrices = [matrix.matmul.matrix for matrix in self.matrices]
        widths = sum(matrix.inputs + matrix.outputs + 2 * INPUTS for matrix in matrices)
        return widths + 2 * matrices[0].inputs + max(map(prepared_per_row, matrices))

    def suits(self, block: nn.Module, x: Tensor, kv: KVView) -> bool:
        """True if the compiled program computes this call of a block."""
        is_few = x.shape[0] * x.shape[1] <= self.max_rows
        if not is_few or torch.is_grad_enabled() or x.dtype != self.matrices[0].dtype:
            return False
        if not self.parts.are_plain(block):
            return False
        is_paged = type(kv) is PagedKVView and kv.cache.keys.dtype == x.dtype
        return is_paged and self.sources.are_current()

    def run(self, x: Tensor, kv: PagedKVView, rotation: Rotation | None) -> Tensor:
        """The block's output (B, T, D)."""
        x, step = x.contiguous(), step_of(kv, rotation)
        assert x.shape[:2] == step.shape, "the KV view is for other tokens"
        out = torch.empty_like(x)
        run_pass(step, (x.data_ptr(), out.data_ptr()), [self])
        return out


class Ends(NamedTuple):
    """The records of embedding and head for a pass from ids to logits.

    scratch: float32 numbers that the head needs. is_padded: the head reads zeros after its inputs.
    """

    embedding: np.ndarray | None = None
    head: np.ndarray | None = None
    scratch: int = 0
    is_padded: bool = False


BLOCKS_ALONE = Ends()


def run_pass(step: Step, streams: tuple[int, int], blocks: list[FusedWeights], ends: Ends = BLOCKS_ALONE) -> None:
    """Run blocks from the first stream to the second and back, by address; before them the embedding, then the head."""
    records = np.array([block.address for block in blocks], np.int64)
    parts = (0 if record is None else record.ctypes.data for record in (ends.embedding, ends.head))
    call = np.array((0, 0, 0, step.address, *streams, *parts, len(blocks), records.ctypes.data), PROGRAM)
    scratch = max(step.rows * max(block.per_row for block in blocks), ends.scratch) + LINE
    is_padded = ends.is_padded or any(block.is_padded for block in blocks)
    run_on_threads(compute_pass, call, PASS_PHASES + PHASES * len(blocks), scratch, is_padded)


class FusedForward(RefersToHooks):
    """Mix-in for a plain block: its forward as one compiled program."""

    fused: FusedWeights

    def forward(self, x: Tensor, kv: KVView, rotation: Rotation | None) -> Tensor:
        if self.fused.suits(self, x, kv) and not self.training:
            assert isinstance(kv, PagedKVView)
            return self.fused.run(x, kv, rotation)
        return super().forward(x, kv, rotation)

    def refer_to(self, copies: Mapping[nn.Module, nn.Module]) -> None:
        """Watch the hooks of this copy."""
        self.fused = copy.copy(self.fused)
        self.fused.watch_hooks(self)


class FusedBlock(FusedForward, Block):
    """`Block` as one compiled program."""


class FusedBlockPostNorm(FusedForward, BlockPostNorm):
    """`BlockPostNorm` as one compiled program."""


class FusedParallelBlock(FusedForward, ParallelBlock):
    """`ParallelBlock` as one compiled program."""


class FusedParallelBlockSharedNorm(FusedForward, ParallelBlockSharedNorm):
    """`ParallelBlockSharedNorm` as one compiled program."""


FUSED: dict[type[nn.Module], type[Any]] = {
    Block: FusedBlock,
    BlockPostNorm: FusedBlockPostNorm,
    ParallelBlock: FusedParallelBlock,
    ParallelBlockSharedNorm: FusedParallelBlockSharedNorm,
}


def fused_form(block: nn.Module) -> nn.Module:
    """A fused block that shares the modules of this block, or the block itself if it cannot be fused."""
    if not can_fuse(block):
        return block
    fused = recast(block, FUSED[type(block)])
    fused.fused = FusedWeights(block)
    form = copy_with(fused, forms_for_many_rows(block, fused.fused.matrices))
    form.fused.watch_hooks(form)
    return form


COMPILED: dict[type[nn.Module], type[CompiledActivation]] = {nn.SiLU: CompiledSiLU, nn.GELU: CompiledGELU}


def forms_for_many_rows(block: Any, matrices: list[FastWeight]) -> dict[str, nn.Module]:
    """Layers with kernels that are faster for many rows too, by path; linear layers use the block's packed weights."""
    paths, activation = {layer: path for path, layer in block.named_modules()}, block.feedforward.activation
    kernel = COMPILED.get(type(activation))
    forms: dict[str, nn.Module] = {} if kernel is None else {paths[activation]: recast(activation, kernel)}
    for layers, matrix in zip(layer_groups(block), matrices, strict=True):
        in_turns = layers == inner_layers(block.feedforward)
        parts = layers_on_parts(matrix, layers, in_turns) if is_always_fastest(matrix.matmul, matrix.dtype) else None
        forms |= {paths[layer]: part for layer, part in zip(layers, parts or [], strict=False)}
    return forms


def can_fuse(block: Any) -> bool:
    """True if a block has the known plain modules and no hooks."""
    if type(block) not in FUSED or block.sublayers != (ATTENTION, FEEDFORWARD) or block.training:
        return False
    if any(hooks for module in block.modules() for hooks in hooks_of(module)):
        return False
    attention, feedforward = block.attention, block.feedforward
    if type(attention) is not Attention or type(attention.core) is not SDPAttention:
        return False
    plain = {norm_each_head, rotate_heads, keep_heads, keep}
    if not {attention.normed_heads, attention.rotate, attention.scale_query} <= plain:
        return False
    if type(feedforward) not in (MLP, GatedMLP) or activation_name(feedforward.activation) not in ACTIVATIONS:
        return False
    norms = (block.attention_norm, norm_of_feedforward(block), attention.query_norm, attention.key_norm)
    if any(type(norm) not in NORMS or not can_watch(norm) for norm in norms):
        return False
    residuals = (AddUpdate, ReplaceByUpdate)
    if type(block.feedforward_residual) is not AddUpdate:
        return False
    return type(block.attention_residual) in residuals and all(map(can_join, layer_groups(block)))


def norms_in_order(block: Any) -> list[FusedNorm]:
    attention, width = block.attention, block.attention.query.in_features
    in_stream = [block.attention_norm, nn.Identity(), norm_of_feedforward(block), nn.Identity()]  # before, after each
    if isinstance(block, BlockPostNorm):
        in_stream = [nn.Identity(), block.attention_norm, nn.Identity(), block.feedforward_norm]
    of_heads = [FusedNorm(norm, attention.head_width) for norm in (attention.query_norm, attention.key_norm)]
    return [FusedNorm(norm, width) for norm in in_stream] + of_heads


def norm_of_feedforward(block: Any) -> Any:
    """The norm before the feed-forward layer or, in a post-norm block, after it."""
    return block.attention_norm if isinstance(block, ParallelBlockSharedNorm) else block.feedforward_norm


def layer_groups(block: Any) -> list[list[Any]]:
    """The linear layers of a block, grouped by input; each group is packed as one matrix."""
    attention, feedforward = block.attention, block.feedforward
    heads = [attention.query, attention.key, attention.value]
    return [heads, [attention.output], inner_layers(feedforward), [feedforward.down]]


def inner_layers(feedforward: Any) -> list[Any]:
    """The layers that compute the inner values."""
    return [feedforward.gate, feedforward.up] if type(feedforward) is GatedMLP else [feedforward.up]


def can_join(layers: list[Any]) -> bool:
    """True if layers can be packed as one matrix."""
    if not all(map(can_pack, layers)):
        return False
    return all(layer_format(one) == layer_format(other) for one, other in pairwise(layers))


def layer_format(layer: Any) -> tuple[Any, ...]:
    """The properties that must agree in layers that are packed together."""
    is_float = isinstance(layer, nn.Linear)
    return plain_form(type(layer)), *((layer.weight.dtype,) if is_float else (layer.dtype, *form_of(layer)))


def hooks_of(module: nn.Module) -> list[Any]:
    """The hooks that a call of a module runs."""
    return [module._forward_hooks, module._forward_pre_hooks]


class Step:
    """One pass over new tokens for compiled code, shared by all layers; the first layer makes it."""

    def __init__(self, kv: PagedKVView, rotation: Rotation | None, is_table: bool = False):
        """rotation: cosines and sines of each token or, if `is_table`, of all positions up to the last one."""
        tables, positions = kv.block_numbers, kv.position_numbers
        counts = np.array(kv.counts, dtype=np.int64)
        assert counts.min() > 0, "a row without a token would be read before its first position"
        self.rotation, self.shape = rotation, positions.shape  # (B, T)
        M, T = positions.size, positions.shape[1]
        self.rows = padded_rows(M)
        cosine, sine, angles = 0, 0, positions
        if rotation is not None:
            assert all(part.is_contiguous() and part.dtype == torch.float32 for part in rotation)
            cosine, sine = (part.data_ptr() for part in rotation)
            angles = positions if is_table else np.arange(M) % (T if rotation[0].shape[0] == 1 else M)
        self.arrays = tables, positions, counts, angles  # keep the memory that the compiled program reads
        keys, values = kv.cache.keys, kv.cache.values  # (L, G, N, P, E)
        assert keys.is_contiguous() and values.is_contiguous()
        sizes = (M, T, self.rows, keys.dtype == torch.bfloat16)
        cache = (keys.data_ptr(), values.data_ptr(), keys.stride(0) * keys.element_size(), *keys.stride()[1:3])
        tokens = (tables.ctypes.data, tables.shape[1], positions.ctypes.data, counts.ctypes.data)
        self.record = np.array((*sizes, *cache, *tokens, cosine, sine, angles.ctypes.data), PASS)
        self.address = self.record.ctypes.data


PASSES: WeakKeyDictionary[PagedKVView, Step] = WeakKeyDictionary()


def step_of(kv: PagedKVView, rotation: Rotation | None) -> Step:
    """The pass for compiled code, made once per view."""
    known = PASSES.get(kv)
    if known is None or known.rotation is not rotation:
        known = PASSES[kv] = Step(kv, rotation)
    return known
