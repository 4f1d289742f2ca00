"""Data parallelism on a CPU: each thread runs forward and backward for a share of the rows of a batch.

torch divides each of the thousands of operations of a step between the cores, and every operation waits for its slowest
core. With another program on one of two cores, such a step takes 1.7 times as long as with threads that synchronise
once per pass (docs/performance.md). The shares and the order of their sum depend on the number of threads, and on a
machine with little memory also on its memory.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from functools import lru_cache
from typing import Any

import torch
import torch.nn.modules.module as all_modules
from torch import Tensor, nn

from foretell.model.surgery import GLOBAL_HOOKS, HOOKS, is_compiled
from foretell.system.device import memory_of

MOST_WORKERS = 4  # Python code runs in one worker at a time; torch uses further cores inside each worker
LEAST_WORK = 2e9  # weights times tokens of a pass; below this, Python code, which threads cannot share, dominates
MOST_MEMORY = 1 / 16  # the share of the machine's memory for the gradients of the shares
BACKWARD_HOOKS: list[Any] = [all_modules._global_backward_hooks, all_modules._global_backward_pre_hooks]


def workers_for(objective: nn.Module, rows: int, tokens: int, device: torch.device) -> int:
    """The number of threads that share a pass in single-process training; 1 if more are not faster."""
    if device.type != "cpu":
        return 1
    weights = sum(weight.numel() for weight in objective.parameters())
    if weights * tokens < LEAST_WORK or is_watched_or_compiled(objective):
        return 1
    gradients = sum(weight.numel() for weight in trained(objective)) * torch.float32.itemsize
    fitting = int(MOST_MEMORY * memory_of(device) / max(1, gradients))
    threads, most = torch.get_num_threads(), min(torch.get_num_threads(), rows, MOST_WORKERS, fitting)
    # The largest number among those that leave the fewest cores idle
    return max(range(1, most + 1), key=lambda count: (count * (threads // count), count), default=1)


def is_watched_or_compiled(objective: nn.Module) -> bool:
    """True if there are hooks, which may not be thread-safe, or a module that is compiled for whole batches."""
    return bool(
        any(map(len, GLOBAL_HOOKS + BACKWARD_HOOKS))
        or any(is_compiled(module) or any(vars(module)[name] for name in HOOKS) for module in objective.modules())
        or any(weight._post_accumulate_grad_hooks for weight in objective.parameters())
    )


def trained(objective: nn.Module) -> list[nn.Parameter]:
    return [weight for weight in objective.parameters() if weight.requires_grad]


def add_gradients(objective: nn.Module, passes: Sequence[Callable[[], Tensor]], count: float) -> Tensor:
    """Compute losses in threads and add their gradients, divided by `count`, to `.grad`; returns the sum of the losses.

    passes: each computes the summed loss for a share of the rows, in its own thread.
    """
    weights = trained(objective)

    def differentiate(forward: Callable[[], Tensor]) -> tuple[Tensor, tuple[Tensor | None, ...]]:
        loss = forward()
        return loss.detach(), torch.autograd.grad(loss / count, weights, allow_unused=True)

    pool = thread_pool(len(passes), max(1, torch.get_num_threads() // len(passes)))
    running = [pool.submit(differentiate, forward) for forward in passes]
    wait(running)  # no share may still be running when an error is raised
    losses, gradients = zip(*(each.result() for each in running), strict=True)
    for weight, *parts in zip(weights, *gradients, strict=True):
        for part in parts:
            if part is not None:  # two weights may share this tensor, and its layout may differ from the weight's
                weight.grad = torch.zeros_like(weight) if weight.grad is None else weight.grad
                weight.grad.add_(part)
    return torch.stack(losses).sum()


@lru_cache
def thread_pool(workers: int, threads: int) -> ThreadPoolExecutor:
    """A pool of `workers` threads, in each of which torch's operations use `threads` cores."""
    all_started, before = threading.Barrier(workers), torch.get_num_threads()

    def start() -> None:
        torch.get_num_threads()  # the first call in a thread sets the default, which would later undo the next line
        torch.set_num_threads(threads)
        torch.set_autocast_cache_enabled(False)  # the threads share one cache, and each clears it after its pass

    pool = ThreadPoolExecutor(workers, "training", initializer=start)
    wait([pool.submit(all_started.wait) for _ in range(workers)])
    torch.set_num_threads(before)  # the last call also sets MKL's default, for threads that have not set one
    return pool
