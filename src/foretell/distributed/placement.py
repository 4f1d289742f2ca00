"""An objective on many processes: a copy on each (DDP), or its weights in shards (FSDP2). Module paths do not change.

DDP wraps the objective, and paths start at the model inside. FSDP2 replaces weights by shards in place: modules that
`UNITS` matches are gathered one at a time during a pass; the rest of a model is gathered for the whole pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from foretell.distributed.world import World
from foretell.paths import select

UNITS = "**.blocks.*"
ENTRANCES = ("hidden",)  # methods of a model that are called like its forward

TrialLoss = Callable[[nn.Module], Tensor]  # the loss of an objective on a few rows


def replicate(objective: nn.Module, trial_loss: TrialLoss) -> nn.Module:
    """The objective with a copy of its weights on each process; gradients are summed while they are computed.

    A first pass finds weights that get no gradient, which DDP must know. After a second pass DDP's buckets are in
    their final order: sums over more than two processes depend on that order, and without this pass a
    resumed run would differ in the last digits.
    """
    trial_loss(objective).backward()
    has_unused = any(weight.requires_grad and weight.grad is None for weight in objective.parameters())
    objective.zero_grad(set_to_none=True)
    replicated = DistributedDataParallel(objective, gradient_as_bucket_view=True, find_unused_parameters=has_unused)
    trial_loss(replicated).backward()
    replicated.zero_grad(set_to_none=True)
    return replicated


def shard(objective: nn.Module, models: Iterable[nn.Module], world: World) -> nn.Module:
    """The objective with its weights in shards, rows 1/N of each matrix on each of N processes.

    models: the models in it that are called as a whole. Other modules with weights are gathered separately.
    """
    mesh = dist.init_device_mesh(next(objective.parameters()).device.type, (world.size,))
    for model in models:
        paths = [path for path, _ in model.named_modules() if path]
        for path in select(UNITS, paths):
            fully_shard(model.get_submodule(path), mesh=mesh)
        fully_shard(model, mesh=mesh)
        for name in ENTRANCES:
            register_fsdp_forward_method(model, name)
    for module in list(objective.modules()):
        if any(not isinstance(weight, DTensor) for weight in module.parameters(recurse=False)):
            fully_shard(module, mesh=mesh)
    return objective


@contextmanager
def gradients_summed(objective: nn.Module, is_wanted: bool) -> Iterator[None]:
    """Sum the gradients of the pass in this block over all processes, or keep them for the next pass."""
    if isinstance(objective, DistributedDataParallel) and not is_wanted:
        with objective.no_sync():
            yield
        return
    for module in sharded_modules(objective):
        module.set_requires_gradient_sync(is_wanted, recurse=False)
    yield


@contextmanager
def freeing_gathered(objective: nn.Module) -> Iterator[None]:
    """Free the weights that passes without gradients in the block gather, after it."""
    try:
        yield
    finally:
        for module in sharded_modules(objective):
            module.reshard()


def sharded_modules(objective: nn.Module) -> list[FSDPModule]:
    """The modules whose weights are in shards; empty if the objective has no shards."""
    return [module for module in objective.modules() if isinstance(module, FSDPModule)]


def own_part(tensor: Tensor) -> Tensor:
    """The part of a tensor that this process holds: all of it, or its shard, with the same memory."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def whole(tensor: Tensor) -> Tensor:
    """The whole tensor on every process; gathered if it is in shards."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


@contextmanager
def gathered(objective: nn.Module, world: World) -> Iterator[None]:
    """In the block, the first process has the whole model as ordinary modules. All processes must enter the block."""
    sharded = sharded_modules(objective)
    kinds = {module: type(module) for module in sharded}
    shards = [
        (module, name, weight)
        for module in objective.modules()
        for name, weight in module.named_parameters(recurse=False)
        if isinstance(weight, DTensor)
    ]
    complete = []
    for _, _, weight in shards:
        tensor = whole(weight.detach())
        complete.append(tensor.cpu() if world.is_first else None)
    try:
        if world.is_first:
            for (module, name, weight), tensor in zip(shards, complete, strict=True):
                assert tensor is not None
                module._parameters[name] = nn.Parameter(tensor, requires_grad=weight.requires_grad)
            for module in sharded:
                module.__class__ = kinds[module].__mro__[2]  # FSDP2 put two classes before the original
        yield
    finally:
        for module, kind in kinds.items():
            module.__class__ = kind
        for module, name, weight in shards:
            module._parameters[name] = weight


def apply_to_whole(weight: Tensor, parts: list[Tensor], work: Callable[[Tensor], Tensor]) -> list[Tensor]:
    """`work` on matrices of one shape (N, R, C), of which this process has the rows in `parts`; returns the same rows.

    The parts belong to weights like `weight`. If that is in shards, matrix i is gathered on process i modulo the
    number of processes, which does the work for it; otherwise the parts are whole matrices.
    """
    if not isinstance(weight, DTensor):
        return list(work(torch.stack(parts)).unbind())
    exchange = Exchange(weight.device_mesh, weight.shape[0], weight.shape[1], len(parts))
    return exchange.to_parts(work(exchange.to_whole(parts)))


class Exchange:
    """Sends rows of N matrices (R, C) to the processes that own a matrix, and back. Process k has rows[k] of each."""

    def __init__(self, mesh: DeviceMesh, rows: int, columns: int, count: int):
        self.mesh, self.columns = mesh, columns
        self.size, self.rank = mesh.size(), mesh.get_local_rank()
        most = -(-rows // self.size)  # torch.chunk's way to cut a matrix: the last processes may have no row
        self.rows = [max(0, min(most, rows - rank * most)) for rank in range(self.size)]
        self.owned = [len(range(owner, count, self.size)) for owner in range(self.size)]
        # elements of my rows of the matrices that each process owns, and of each process's rows of my matrices
        self.of_mine = [number * self.rows[self.rank] * columns for number in self.owned]
        self.of_theirs = [self.owned[self.rank] * r * columns for r in self.rows]

    def to_whole(self, parts: list[Tensor]) -> Tensor:
        """My rows of all matrices -> the matrices that I own, (n, R, C)."""
        sent = torch.cat([part.flatten() for owner in range(self.size) for part in parts[owner :: self.size]])
        received = self.all_to_all(sent, self.of_mine, self.of_theirs).split(self.of_theirs)
        count = self.owned[self.rank]
        return torch.cat([part.view(count, r, self.columns) for part, r in zip(received, self.rows, strict=True)], 1)

    def to_parts(self, matrices: Tensor) -> list[Tensor]:
        """The matrices that I own, (n, R, C) -> my rows of all matrices."""
        sent = torch.cat([part.flatten() for part in matrices.split(self.rows, dim=1)])
        received = self.all_to_all(sent, self.of_theirs, self.of_mine).split(self.of_mine)
        parts: list[Tensor] = [sent] * sum(self.owned)
        for owner, block in enumerate(received):
            parts[owner :: self.size] = block.view(self.owned[owner], self.rows[self.rank], self.columns).unbind()
        return parts

    def all_to_all(self, sent: Tensor, sent_sizes: list[int], received_sizes: list[int]) -> Tensor:
        """The tensors that the other processes send to this one, concatenated."""
        received = sent.new_empty(sum(received_sizes))
        dist.all_to_all_single(received, sent, received_sizes, sent_sizes, group=self.mesh.get_group())
        return received
