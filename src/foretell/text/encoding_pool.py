"""Encode many texts in several processes; results are in the order of the texts."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from typing import TypeVar

import numpy as np

from foretell.errors import TokenizerError
from foretell.text.tokenizer import Tokenizer
from foretell.text.tokenizer_json import TokenizerJson

AHEAD = 2  # groups of texts per process that are submitted ahead

Key = TypeVar("Key")
Group = tuple[Key, list[str]]
Encoded = tuple[Key, Sequence[np.ndarray]]

_encoder: list[Tokenizer] = []  # the tokenizer of this process, if it is in a pool


class Encoding:
    """Encodes groups of texts like `Tokenizer.encode_batch`, in this process or in a pool."""

    def __init__(self, tokenizer: Tokenizer, workers: int, pool: ProcessPoolExecutor | None):
        self.tokenizer, self.workers, self.pool = tokenizer, workers, pool

    def encode(self, groups: Iterable[Group[Key]]) -> Iterator[Encoded[Key]]:
        """(key, ids of each text) for every (key, texts), in the same order; only a few groups are in memory."""
        if self.pool is None:
            for key, texts in groups:
                yield key, self.tokenizer.encode_batch(texts)
            return
        pending: deque[tuple[Key, Future[list[np.ndarray]]]] = deque()
        for key, texts in groups:
            pending.append((key, submit(self.pool, texts)))
            if len(pending) > AHEAD * self.workers:
                first, ids = pending.popleft()
                yield first, ids.result()
        for key, ids in pending:
            yield key, ids.result()


def submit(pool: ProcessPoolExecutor, texts: list[str]) -> Future[list[np.ndarray]]:
    """Encode texts in a pool. Raises BrokenProcessPool if one of its processes has ended."""
    try:
        return pool.submit(_encode, texts)
    except OSError as error:  # the pool's pipes are closed but it is not marked as broken yet, or it cannot start
        raise BrokenProcessPool(str(error)) from None


@contextmanager
def open_encoding(tokenizer: Tokenizer, special: Iterable[str] = (), workers: int = 1) -> Iterator[Encoding]:
    """Encoding in `workers` processes (1: in this process); names in `special` are encoded as special tokens.

    The ids do not depend on the number of processes. Raises as `Tokenizer.encode` does, and TokenizerError if a process
    ends.
    """
    names = tuple(special)
    if workers == 1:
        yield Encoding(tokenizer.reading(names), 1, None)
        return
    pool = ProcessPoolExecutor(
        workers,
        mp_context=multiprocessing.get_context("spawn"),  # a fork would copy torch's threads in an unknown state
        initializer=_start,
        initargs=(tokenizer.to_json(), names),
    )
    try:
        yield Encoding(tokenizer, workers, pool)
    except BrokenProcessPool:
        raise TokenizerError(
            "a process that encodes texts has ended (killed, or out of memory); start again with fewer --workers"
        ) from None
    finally:
        pool.shutdown(cancel_futures=True)


def _start(content: TokenizerJson, special: tuple[str, ...]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes; the first one decides
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the processes use all cores, so they need no threads
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _encoder.append(Tokenizer(content).reading(special))


def _end_with_parent() -> None:
    """End this process when its parent ends, because a killed parent cannot end it."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _encode(texts: list[str]) -> list[np.ndarray]:
    return _encoder[0].encode_batch(texts)
