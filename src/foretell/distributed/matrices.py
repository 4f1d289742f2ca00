"""Matrices in shards, gathered one by one: each process gets some of them whole, works on them and returns the rows."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor


def apply_to_whole(weight: Tensor, parts: list[Tensor], work: Callable[[Tensor], Tensor]) -> list[Tensor]:
    """`work` on matrices of one shape (N, R, C), of which this process has the rows in `parts`; returns the same rows.

    The parts belong to weights like `weight`. Where that is in shards, matrix i is gathered on process i modulo the
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
        self.rows = rows_of_each(rows, self.size)
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
        """What the other processes send to this one, one after the other."""
        received = sent.new_empty(sum(received_sizes))
        dist.all_to_all_single(received, sent, received_sizes, sent_sizes, group=self.mesh.get_group())
        return received


def rows_of_each(rows: int, size: int) -> list[int]:
    """How many rows of a matrix each process has: as torch.chunk cuts it, so that the last ones may have none."""
    most = -(-rows // size)
    return [max(0, min(most, rows - rank * most)) for rank in range(size)]
