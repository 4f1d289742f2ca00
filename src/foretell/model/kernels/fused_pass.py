"""Modules that compiled code computes for few rows, while no module inside them has a hook: blocks and whole passes.

Between two tokens the processor's caches are full of weights, so that Python's code and data come from main memory, and
every operation takes several times as long as in a loop. From ids to logits, one program replaces some forty of them.
With hooks, gradients, many tokens, changed weights or replaced modules, the call is left to the modules.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor, nn

from foretell.model.cache import KVView
from foretell.model.decoder import Decoder, last_indices, rows_at_once
from foretell.model.kernels.fast_decoder import MAX_ROWS
from foretell.model.kernels.fast_linear import FastForward, fast_form, is_always_fastest, layers_on_parts
from foretell.model.kernels.lowering import Lowering, lower_block, lower_pass, lower_rows
from foretell.model.kernels.program import Packs, Program, Step
from foretell.model.kernels.strict_layers import CompiledActivation, CompiledGELU, CompiledSiLU
from foretell.model.paged_cache import PagedKVView
from foretell.model.position import Rotation
from foretell.model.surgery import GLOBAL_HOOKS, RefersToHooks, copy_with, recast
from foretell.model.transformer import Block

FEWEST_ANGLES = 256  # positions whose angles are computed at once; later twice the number, and so on
COMPILED: dict[type[nn.Module], type[CompiledActivation]] = {nn.SiLU: CompiledSiLU, nn.GELU: CompiledGELU}


class Parts:
    """The hooks of some modules, and the modules below a module: what shows that their forward has changed."""

    def __init__(self, top: nn.Module, hooked: list[nn.Module]):
        # these are the modules' dictionaries, so later hooks and modules are noticed: a trace may replace a core
        self.hooks = [*GLOBAL_HOOKS, *(m._forward_hooks for m in hooked), *(m._forward_pre_hooks for m in hooked)]
        self.children = [module._modules for module in top.modules() if module._modules]
        self.old_children = list(map(dict, self.children))

    def are_plain(self, top: nn.Module) -> bool:
        """True if no module has a hook, and none has been replaced, also not in a copy of the top module."""
        is_same = self.children[0] is top._modules and self.children == self.old_children
        return is_same and not any(self.hooks)


class FusedForward(RefersToHooks):
    """Mix-in for a module that a program computes."""

    program: Program
    parts: Parts
    max_rows = MAX_ROWS

    def watch(self) -> None:
        """Use the program only while no module inside this one has a hook or is replaced."""
        self.parts = Parts(self, [module for module in self.modules() if module is not self])

    def suits(self, M: int, dtype: torch.dtype | None, kv: KVView) -> bool:
        """True if the program computes a call with M tokens."""
        if self.max_rows < M or torch.is_grad_enabled() or self.training or self.program.dtype != dtype:
            return False
        if type(kv) is not PagedKVView or kv.cache.keys.dtype != dtype or not self.parts.are_plain(self):
            return False
        return self.program.is_current()

    def refer_to(self, copies: Mapping[nn.Module, nn.Module]) -> None:
        """Watch the hooks of this copy."""
        self.watch()


class FusedBlock(FusedForward):
    """Mix-in for a block: its forward as one program."""

    def forward(self, x: Tensor, kv: KVView, rotation: Rotation | None) -> Tensor:
        if not isinstance(kv, PagedKVView) or not self.suits(x.shape[0] * x.shape[1], x.dtype, kv):
            return super().forward(x, kv, rotation)
        x, step = x.contiguous(), step_of(kv, rotation)
        assert x.shape[:2] == step.shape, "the KV view is for other tokens"
        out = torch.empty_like(x)
        self.program.run(step, x.data_ptr(), out.data_ptr())
        return out


class FewRowsNorm(nn.Module):
    """Mix-in for a norm that few rows read in compiled code, so that hooks elsewhere do not change a bit."""

    program: Program

    def forward(self, x: Tensor) -> Tensor:
        width, dtypes = x.shape[-1], (torch.float32, torch.bfloat16)
        is_few = x.numel() <= MAX_ROWS * width and x.dtype in dtypes and not torch.is_grad_enabled()
        if not is_few or not self.program.is_current():
            return super().forward(x)
        x = x.contiguous()
        out, rows = torch.empty_like(x), x.numel() // width
        self.program.run(Step(rows, rows, x.dtype == torch.bfloat16), x.data_ptr(), out.data_ptr())
        return out


class FusedDecoder(FusedForward, Decoder):
    """`Decoder` whose passes over few tokens are one program."""

    angles: Rotation | None
    max_logits: int

    def watch(self) -> None:
        self.parts = Parts(self, list(self.modules()))

    def last_logits(self, ids: Tensor, kv: KVView, counts: list[int], num_logits: list[int]) -> Iterator[Tensor]:
        is_few = 0 < sum(num_logits) <= self.max_logits and self.suits(ids.numel(), self.program.dtype, kv)
        if is_few and isinstance(kv, PagedKVView) and self.has(ids, kv.num_keys):
            return iter([self.run(ids.contiguous(), kv, num_logits)])
        return super().last_logits(ids, kv, counts, num_logits)

    def has(self, ids: Tensor, num_keys: int) -> bool:
        """True if all ids have a row in the table, and all positions are within the context."""
        if ids.dtype != torch.int64 or num_keys > self.config.context_length:
            return False
        numbers = ids.numpy()
        return bool(numbers.min() >= 0 and numbers.max() < self.program.vocabulary)

    def run(self, ids: Tensor, kv: PagedKVView, num_logits: list[int]) -> Tensor:
        """The logits (R, V) after the last num_logits[b] tokens of each row of ids (B, T)."""
        step = PagedStep(kv, self.angles_until(kv.num_keys), is_table=True)
        assert ids.shape == step.shape, "the KV view is for other tokens"
        chosen = np.array(last_indices(kv.counts, num_logits, ids.shape[1]))
        logits = torch.empty(len(chosen), self.program.width, dtype=self.program.dtype)
        self.program.run(step, out=logits.data_ptr(), ids=ids.data_ptr(), chosen=chosen)
        return logits

    def angles_until(self, end: int) -> Rotation | None:
        """Cosines and sines of the positions below `end`, and of some more."""
        angles = self.angles  # another thread may replace them by fewer
        if angles is None or angles[0].shape[2] < end:
            count = min(max(FEWEST_ANGLES, 1 << (end - 1).bit_length()), self.config.context_length)
            angles = self.angles = self.trunk.rotation(torch.arange(count)[None], self.program.dtype)
        return angles


@cache
def fused_class(mixin: type[nn.Module], kind: type[nn.Module]) -> type[Any]:
    """A class of modules with the state of `kind` and the forward of a mix-in."""
    return type(f"Fused{kind.__name__}", (mixin, kind), {})


def fused(module: Any, mixin: type[nn.Module], program: Program) -> Any:
    """A module that shares the state of this one and has a program."""
    form = recast(module, fused_class(mixin, type(module)))
    form.program = program
    return form


def prepared_decoder(decoder: Decoder) -> Decoder:
    """A copy of a decoder with the blocks and layers that have a faster form on this machine, fused if possible."""
    forms: dict[str, nn.Module] = {}
    packs: Packs = {}
    for path, module in list(decoder.named_modules())[1:]:
        if not any(path.startswith(f"{above}.") for above in forms):  # blocks precede their layers
            form = fast_form(fused_block(path, module, decoder.config.width, packs))
            forms |= {path: form} if form is not module else {}
            packs |= {(module,): form.fast} if isinstance(form, FastForward) else {}
    return fused_decoder(decoder, copy_with(decoder, forms), packs)


def fused_block(path: str, block: nn.Module, width: int, packs: Packs) -> nn.Module:
    """A block as a program, which shares the modules of this block; itself if it has none, or is another module."""
    lowering = lower_block(path, block, width) if isinstance(block, Block) else None
    if not isinstance(lowering, Lowering):
        return block
    program = Program(lowering, packs)
    form = copy_with(fused(block, FusedBlock, program), forms_for_many_rows(block, program))
    form.watch()
    return form


def forms_for_many_rows(block: nn.Module, program: Program) -> dict[str, nn.Module]:
    """Layers with kernels that are faster for many rows too, by path; linear layers use the block's packed weights."""
    kernels = ((path, module, COMPILED.get(type(module))) for path, module in block.named_modules())
    forms: dict[str, nn.Module] = {path: recast(module, kernel) for path, module, kernel in kernels if kernel}
    paths = {layer: path for path, layer in block.named_modules()}
    for layers, in_turns, weight in program.groups:
        parts = layers_on_parts(weight, layers, in_turns) if is_always_fastest(weight.matmul, weight.dtype) else None
        forms |= {paths[layer]: part for layer, part in zip(layers, parts or [], strict=False)}
    return forms


def fused_decoder(decoder: Decoder, prepared: Decoder, packs: Packs) -> Decoder:
    """A prepared copy of a decoder as one program for passes over few tokens; itself if that can't be."""
    lowering, norm = lower_pass(decoder), decoder.trunk.norm
    is_whole = all(isinstance(block, FusedBlock) for block in prepared.trunk.blocks)  # without hooks
    if not isinstance(lowering, Lowering) or not is_whole:
        return prepared
    if not isinstance(norm, nn.Identity):
        alone = lower_rows("trunk.norm", norm, decoder.config.width)
        assert isinstance(alone, Lowering)
        prepared = copy_with(prepared, {"trunk.norm": fused(norm, FewRowsNorm, Program(alone, packs))})
    form = fused(prepared, FusedDecoder, Program(lowering, packs, decoder.config.context_length))
    form.angles, form.max_logits = None, min(MAX_ROWS, rows_at_once(decoder))
    form.watch()
    return form


class PagedStep(Step):
    """A pass over new tokens of a paged cache, shared by all layers; the first layer makes it."""

    def __init__(self, kv: PagedKVView, rotation: Rotation | None, is_table: bool = False):
        """rotation: cosines and sines of each token or, if `is_table`, of all positions up to the last one."""
        tables, positions = kv.block_numbers, kv.position_numbers
        counts = np.array(kv.counts, dtype=np.int64)
        assert counts.min() > 0, "a row without a token would be read before its first position"
        self.rotation, self.shape = rotation, positions.shape  # (B, T)
        M, T = positions.size, positions.shape[1]
        tables_of_angles, angles = (0,) * 4, positions
        if rotation is not None:
            assert all(part.is_contiguous() and part.dtype == torch.float32 for part in rotation)
            tables_of_angles = (*(part.data_ptr() for part in rotation), 0, 0)[:4]
            angles = positions if is_table else np.arange(M) % (T if rotation[0].shape[0] == 1 else M)
        self.arrays = tables, positions, counts, angles  # keep the memory that the compiled program reads
        keys, values = kv.cache.keys, kv.cache.values  # (L, G, N, P, E)
        assert keys.is_contiguous() and values.is_contiguous()
        cache = (keys.data_ptr(), values.data_ptr(), keys.stride(0) * keys.element_size(), *keys.stride()[1:3])
        tokens = (tables.ctypes.data, tables.shape[1], positions.ctypes.data, counts.ctypes.data)
        super().__init__(M, T, keys.dtype == torch.bfloat16, *cache, *tokens, *tables_of_angles, angles.ctypes.data)


PASSES: WeakKeyDictionary[PagedKVView, PagedStep] = WeakKeyDictionary()


def step_of(kv: PagedKVView, rotation: Rotation | None) -> PagedStep:
    """The pass for compiled code, made once per view."""
    known = PASSES.get(kv)
    if known is None or known.rotation is not rotation:
        known = PASSES[kv] = PagedStep(kv, rotation)
    return known
