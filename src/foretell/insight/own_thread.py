"""Tell the calls of one thread from those of others, so that a trace changes nothing for other threads."""

from __future__ import annotations

import threading

import torch


class OwnThread:
    """The thread in which this object was made."""

    def __init__(self) -> None:
        self.ident = threading.get_ident()

    def is_current(self) -> bool:
        """True in that thread, and in a backward: activation checkpointing may repeat its calls in torch's threads."""
        return threading.get_ident() == self.ident or torch._C._current_graph_task_id() != -1
