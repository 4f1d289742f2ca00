"""One update of a run as a whole: its batch with the loss of each token, the rate, and what it changed by module."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from foretell.errors import counted
from foretell.evaluation.replayed_row import ReplayedRow
from foretell.insight.address import address_of
from foretell.insight.explain.explanation import UPDATE
from foretell.session.replay_run import BeforeUpdate
from foretell.system.device import autocast
from foretell.training.step import seed_dropout
from foretell.typesetting.document import DocumentSection, Paragraph, Table
from foretell.typesetting.html import Shown

SHOWN_MODULES = 12


@dataclass(frozen=True)
class ModuleUpdate:
    """A module in an update. Norms are over its weights; the gradient is the one after clipping.

    largest: the address of the weight that changed most, and its change.
    """

    module: str
    gradient: float
    update: float
    weights: float
    largest: str
    change: float


@dataclass(frozen=True)
class UpdateView(Shown):
    """An update, counted from 1. The loss is the mean per target, in nats, with the dropout masks of the step."""

    number: int
    loss: float
    targets: float
    rate: float
    gradient_norm: float
    clip_norm: float | None
    rows: list[ReplayedRow]
    modules: list[ModuleUpdate]  # the largest gradient first

    def document(self) -> DocumentSection:
        limit = "not limited" if self.clip_norm is None else f"limit {self.clip_norm:g}"
        figures = [
            ("loss", f"{self.loss:.6f}", f"mean over {self.targets:,.0f} targets of {counted(len(self.rows), 'row')}"),
            ("learning rate", f"{self.rate:.6g}", ""),
            ("gradient", f"{self.gradient_norm:.6f}", f"norm before clipping, {limit}"),
        ]
        shown = [
            (each.module, f"{each.gradient:.3g}", f"{each.update:.3g}", f"{each.update / (each.weights or 1):.3%}")
            for each in self.modules[:SHOWN_MODULES]
        ]
        largest = max(self.modules, key=lambda each: abs(each.change))
        more = len(self.modules) - len(shown)
        notes = [
            "Norms over the weights of a module, after clipping; relative: of the update to the weights."
            + (f" {counted(more, 'module')} with smaller gradients left out." if more else ""),
            f"The weight that changed most, by {largest.change:+.6g}: --value '{largest.largest}'",
        ]
        table = Table(("module", "gradient", "update", "relative"), shown)
        return DocumentSection(f"Update {self.number:,}", [Table(("", "", ""), figures), table, *map(Paragraph, notes)])

    def to_json(self) -> dict[str, Any]:
        rows = [{"loss": row.loss, "start": row.start, "tokens": list(map(asdict, row.tokens))} for row in self.rows]
        return {**asdict(self), "rows": rows}


def explain_update(before: BeforeUpdate) -> UpdateView:
    """Take the update, which changes the session's model, and show it."""
    session, rows = before.session, rows_of(before)
    weights = {path: weight for path, weight in session.task.model.named_parameters() if weight.requires_grad}
    old = {path: weight.detach().clone() for path, weight in weights.items()}
    gradients: dict[str, Tensor] = {}

    def record() -> None:
        """Keep the gradients, which are cleared at the end of the step."""
        for path, weight in weights.items():
            gradients[path] = torch.zeros_like(old[path]) if weight.grad is None else weight.grad.detach().clone()

    result = before.take(record, session.training)
    paths: dict[str, list[str]] = defaultdict(list)
    for path in weights:
        paths[path.rpartition(".")[0]].append(path)
    modules = [
        module_update(module, {path: (gradients[path], old[path], weights[path].detach()) for path in own})
        for module, own in paths.items()
    ]
    modules.sort(key=lambda each: -each.gradient)
    norm, limit = result.gradient_norm, session.training.clip_norm
    return UpdateView(before.number, result.loss, result.count, before.rate, norm, limit, rows, modules)


def module_update(module: str, weights: dict[str, tuple[Tensor, Tensor, Tensor]]) -> ModuleUpdate:
    """weights: path to gradient, old and new weight."""
    changes = {path: new - old for path, (_, old, new) in weights.items()}
    path = max(changes, key=lambda path: float(changes[path].abs().max()))
    index = [int(each) for each in torch.unravel_index(changes[path].abs().argmax(), changes[path].shape)]
    gradient, update, size = (
        sum(float(each.square().sum()) for each in tensors) ** 0.5
        for tensors in (
            [gradient for gradient, _, _ in weights.values()],
            changes.values(),
            [old for _, old, _ in weights.values()],
        )
    )
    largest = address_of(f"{UPDATE}{path}", *index)
    return ModuleUpdate(module, gradient, update, size, largest, float(changes[path][tuple(index)]))


@torch.no_grad()
def rows_of(before: BeforeUpdate) -> list[ReplayedRow]:
    """The rows of the batch, one pass each, with the dropout masks of the update."""
    session, rows = before.session, list[ReplayedRow]()
    session.objective.train()
    for row in range(len(before.batch)):
        seed_dropout(session.objective, session.training.seed, before.number - 1, row, 1)
        with autocast(session.device, session.dtype):
            part = before.batch.rows(row, row + 1).to(session.device)
            rows.append(session.task.row_as_text(part, before.number - 1, row))
    return rows
