"""The processes of a training: sums over them, and decisions of the first process for all.

Numbers of a step are summed by torch's process group. Decisions (the checkpoint, the configuration, is this the
best loss) go through the key-value store of the launcher as JSON, so that a waiting process still receives
signals, and learns when another has failed.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import timedelta
from functools import cache
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from foretell.distributed.launch import Launch, read_launch
from foretell.errors import PeerError

TIMEOUT = timedelta(minutes=30)  # for one sum; a process that has ended breaks the connection at once
FAILURE = "failure"
POLLING = 0.001, 0.05  # seconds between two queries of the store: at first, at most
PATIENCE = 2.0  # seconds to wait for another process to report its reason
# The messages of gloo, NCCL and the store about a process that has ended
LOST = ("gloo", "Connection closed by peer", "Connection reset by peer", "Broken pipe", "NCCL", "TCPStore")

Value = TypeVar("Value")

logger = logging.getLogger("foretell")


class World:
    """The processes of a training. A single process needs no connection: sums and decisions are local."""

    def __init__(self, launch: Launch, store: dist.Store | None = None):
        self.rank, self.size = launch.rank, launch.world_size
        self.local_rank = launch.local_rank
        self.store = store
        self._decisions = 0
        self._meeting: Tensor | None = None  # the tensor of the last `wait`

    @property
    def is_first(self) -> bool:
        """True for the process that writes, logs and decides."""
        return self.rank == 0

    def sum(self, tensor: Tensor) -> Tensor:
        """Replace a tensor by its sum over all processes, and return it."""
        if self.size > 1:
            dist.all_reduce(tensor)
        return tensor

    def total(self, value: float) -> float:
        """The sum of a number over all processes."""
        return value if self.size == 1 else float(self.sum(torch.tensor(value, dtype=torch.float64)))

    def any(self, flag: bool) -> bool:
        """True on all processes if the flag is set on one of them."""
        return self.total(float(flag)) > 0

    def wait(self) -> None:
        """Wait until all processes are here.

        The tensor is kept. Otherwise a thread of gloo may free it, which needs the interpreter's lock; a DDP objective
        that ends at that moment holds the lock while it waits for that thread: a deadlock (torch 2.13).
        """
        self._meeting = self.sum(torch.zeros(1))

    def decide(self, make: Callable[[], Value]) -> Value:
        """The value that `make` returns on the first process, on all processes; it must fit into JSON."""
        if self.store is None:
            return make()
        self._decisions += 1
        key = f"decision/{self._decisions}"
        if self.is_first:
            value = make()
            self.store.set(key, json.dumps(value))
            return value
        self.wait_for(key)
        return json.loads(self.store.get(key))

    def wait_for(self, key: str) -> None:
        """Wait until the first process has set a key. Raises PeerError if another process has failed."""
        assert self.store is not None
        pause, longest = POLLING
        while not self.store.check([key]):
            if self.store.check([FAILURE]):
                raise PeerError("another process of the training has failed")
            time.sleep(pause)
            pause = min(longest, 2 * pause)

    # --- failures ----------------------------------------------------------------------------------------------------

    def report(self, reason: str) -> bool:
        """Tell the other processes why this one ends; False if one of them has already reported a reason."""
        if self.store is None:
            return True
        try:
            first = self.store.compare_set(FAILURE, "", f"{self.rank} {reason}").decode("utf-8", "replace")
        except (RuntimeError, dist.DistError):  # the store's process has ended
            return True
        rank, _, first_reason = first.partition(" ")
        return rank == str(self.rank) or first_reason != reason

    def failed_rank(self) -> int | None:
        """The rank of the first process to report a failure; None if none did, such as when one is killed."""
        if self.store is None:
            return None
        ends = time.monotonic() + PATIENCE
        try:
            while not self.store.check([FAILURE]):
                if time.monotonic() > ends:
                    return None
                time.sleep(POLLING[0])
            return int(self.store.get(FAILURE).decode("utf-8", "replace").partition(" ")[0])
        except (RuntimeError, dist.DistError):
            return None


ALONE = World(Launch())
_EVALUATING: ContextVar[World] = ContextVar("evaluating", default=ALONE)


def is_lost_peer(error: BaseException) -> bool:
    """True for the error of a connection to a process that has ended."""
    return isinstance(error, dist.DistError) or (
        isinstance(error, RuntimeError) and any(words in str(error) for words in LOST)
    )


@cache
def current_world() -> World:
    """The processes of this launch. The first call connects them, and silences all except the first."""
    launch = read_launch()
    if launch.world_size == 1:
        return ALONE
    if not launch.is_first:
        logger.setLevel(logging.CRITICAL)
    has_gpu = torch.cuda.is_available()
    if has_gpu:
        torch.cuda.set_device(launch.local_rank)
    store, rank, size = next(dist.rendezvous("env://", launch.rank, launch.world_size, timeout=TIMEOUT))
    # torchrun keeps the store when it restarts the processes; reports of earlier processes must not be read again
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    store = dist.PrefixStore(f"foretell/{attempt}", store)
    backend = "cpu:gloo,cuda:nccl" if has_gpu else "gloo"
    dist.init_process_group(backend, store=dist.PrefixStore("group", store), rank=rank, world_size=size)
    return World(launch, store)


def disconnect() -> None:
    """Close the connections of a training that has ended well."""
    if dist.is_initialized():
        current_world().wait()
        dist.destroy_process_group()


@contextmanager
def evaluations_shared_by(world: World) -> Iterator[None]:
    """In the block, all processes call the same evaluations, and each scores its share of the batches."""
    token = _EVALUATING.set(world)
    try:
        yield
    finally:
        _EVALUATING.reset(token)


def evaluating_world() -> World:
    """The processes that share the batches of an evaluation; only this one outside `evaluations_shared_by`."""
    return _EVALUATING.get()
