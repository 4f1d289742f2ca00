"""Attention masks: which keys each query may attend to. No other file decides this."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

EMPTY = -1  # the position of a key slot that holds nothing, and the document id of padding


@dataclass(frozen=True, eq=False)
class Mask:
    """Query t sees key s when every given condition holds.

    causal: the key does not come after the query. window: the key is fewer than `window` positions before the query.
    Document ids: both are in the same document. No query sees a key whose position is EMPTY. Positions are (B, T) and
    (B, S); by default the keys are at 0..S-1, and the queries at the last T of these.
    """

    num_queries: int
    num_keys: int
    causal: bool = True
    window: int | None = None
    query_positions: Tensor | None = None
    key_positions: Tensor | None = None
    query_document_ids: Tensor | None = None
    key_document_ids: Tensor | None = None
    device: torch.device | None = None
    _made: dict[str, Tensor] = field(init=False, default_factory=dict)  # torch.compile does not support cached_property

    @property
    def is_plain_causal(self) -> bool:
        """True if queries and keys are the same positions from 0, and only the future is hidden."""
        return self.causal and self._is_regular and self.num_queries == self.num_keys

    @property
    def is_open(self) -> bool:
        """True if no key is hidden: no causality, or a single query that comes after every key."""
        return self._is_regular and (not self.causal or self.num_queries == 1)

    @property
    def allowed(self) -> Tensor:
        """True where query t sees key s: (B or 1, 1, T, S), made once and shared by all layers."""
        if "allowed" not in self._made:
            self._made["allowed"] = self._make_allowed()
        return self._made["allowed"]

    def last_queries(self, count: int) -> Mask:
        positions, document_ids = self.query_positions, self.query_document_ids
        return replace(
            self,
            num_queries=min(count, self.num_queries),
            query_positions=None if positions is None else positions[:, -count:],
            query_document_ids=None if document_ids is None else document_ids[:, -count:],
        )

    def _make_allowed(self) -> Tensor:
        queries, keys = self._positions()
        distance = queries[:, :, None] - keys[:, None, :]  # (B, T, S)
        allowed = (keys != EMPTY)[:, None, :].expand_as(distance)
        if self.causal:
            allowed = allowed & (distance >= 0)
        if self.window is not None:
            allowed = allowed & (distance < self.window)
        if self.query_document_ids is not None and self.key_document_ids is not None:
            allowed = allowed & (self.query_document_ids[:, :, None] == self.key_document_ids[:, None, :])
        return allowed[:, None]  # (B, 1, T, S)

    @property
    def _is_regular(self) -> bool:
        narrow = self.window is not None and self.window < self.num_keys
        return self.query_positions is None and self.query_document_ids is None and not narrow

    def _positions(self) -> tuple[Tensor, Tensor]:
        if self.query_positions is not None and self.key_positions is not None:
            return self.query_positions, self.key_positions
        keys = torch.arange(self.num_keys, device=self.device)[None]
        return keys[:, self.num_keys - self.num_queries :], keys
