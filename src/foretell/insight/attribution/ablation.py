"""Ablation: the change of a prediction when a value of the model is replaced by zero or by its mean over positions.

Unlike a direct contribution this is a causal effect: all later layers see the change. It does not measure the whole
importance of a part, because other parts may compensate (McGrath et al. 2023, "The Hydra Effect"). Later layers were
never trained on an output of zero; the mean over positions is closer to their training inputs.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from itertools import groupby
from typing import Any

import torch
from torch import Tensor, nn

from foretell.config.section import check_known
from foretell.errors import UsageError, check_type
from foretell.insight.attribution.patch_map import TOKENS_AT_ONCE, rows_with_changes
from foretell.insight.recorded_pass import RecordedPass, choose_token, record
from foretell.insight.replacement import Change
from foretell.insight.trace import Trace
from foretell.language_model import LanguageModel, TokenProbability
from foretell.model.decoder import Decoder
from foretell.model.structure import Structure, model_structure
from foretell.paths import matches, select
from foretell.typesetting.document import DocumentSection, Paragraph, Table, quoted
from foretell.typesetting.html import Shown
from foretell.typesetting.numbers import percent

TARGETS = re.compile(r"(?P<glob>[^\[\]]+)(?:\[(?P<index>\d+|\*)\])?")


@dataclass(frozen=True)
class AblationTarget:
    """A value of the pass, or one head of it."""

    name: str
    head: int | None = None

    def __str__(self) -> str:
        return self.name if self.head is None else f"{self.name}[{self.head}]"

    def change(self, fill: Change) -> Change:
        """The replacement of the value by `fill(value)`, only in this head if there is one."""
        if self.head is None:
            return fill

        def of_one_head(value: Tensor) -> Tensor:
            changed = value.clone()
            changed[:, self.head] = fill(value)[:, self.head]
            return changed

        return of_one_head


FILLS: dict[str, Change] = {
    "zero": torch.zeros_like,
    "mean": lambda value: value.mean(-2, keepdim=True).expand_as(value),  # over the positions of the text
}


def find_targets(decoder: Decoder, address: str) -> list[AblationTarget]:
    """The targets of an address: `trunk.blocks.*.feedforward`, `**.attention.core[0]` (a head), `**.core[*]` (each)."""
    check_type("the address", address, str, "a string")
    match = TARGETS.fullmatch(address)
    if match is None:
        raise UsageError(f"'{address}' is not an address; write a name or glob, followed by [0] or [*] for heads")
    structure = model_structure(decoder)
    names = select(match["glob"], replaceable(structure, match["glob"]))
    if match["index"] is None:
        return [AblationTarget(name) for name in names]
    return [AblationTarget(name, head) for name in names for head in _heads(structure, name, match["index"])]


def replaceable(structure: Structure, glob: str) -> list[str]:
    """The names of values that can be replaced: outputs and inputs of modules.

    Raises `UsageError` for a glob that matches derived values only.
    """
    names = [name for name, value in structure.values.items() if not value.is_derived]
    matched = [name for name in structure.values if matches(glob, name)]
    if matched and not any(name in names for name in matched):
        owner = matched[0].rpartition(".")[0]
        raise UsageError(f"{matched[0]} is only derived, the pass does not use it; ablate {owner} instead")
    return names


def _heads(structure: Structure, name: str, index: str) -> range:
    value = structure[name]
    owner = structure.values.get(value.module)
    if owner is None or owner.formula != "attention" or not {"H", "G"} & set(value.dims):
        raise UsageError(f"{name} has no heads; only attention.core and its query, key and value have heads")
    count = structure.sizes["H" if "H" in value.dims else "G"]
    if index == "*":
        return range(count)
    if int(index) >= count:
        raise UsageError(f"{name} has no head {index}; its heads are 0 to {count - 1}")
    return range(int(index), int(index) + 1)


SHOWN = 24


@dataclass(frozen=True)
class AblationEffect:
    """The effect of an ablation: the token's probability after it, and the divergence of the distribution.

    divergence: the Kullback-Leibler divergence in nats, the sum of before * ln(before / after). winner: the most
    probable token after the ablation.
    """

    name: str
    probability: float
    divergence: float
    winner: TokenProbability


@dataclass(frozen=True, repr=False)
class Ablation(Shown):
    """The effects of ablating several parts, one at a time, largest divergence first."""

    where: str
    token: TokenProbability
    winner: TokenProbability
    fill: str
    effects: list[AblationEffect]

    def document(self) -> DocumentSection:
        token = quoted(self.token.text)
        before = f"{token} has {percent(self.token.probability)} {self.where}."
        rows = [
            (effect.name, percent(effect.probability), f"{effect.divergence:.4f}", quoted(effect.winner.text))
            for effect in self.effects[:SHOWN]
        ]
        left_out = self.effects[SHOWN:]
        more = f"{len(left_out)} more are at {left_out[0].divergence:.4f} nats or below." if left_out else ""
        header = (f"set to {self.fill}", token, "nats", "top token")
        parts = [Paragraph(before), Table(header, rows), *([Paragraph(more)] if more else [])]
        return DocumentSection(f"{token} without a part of the model", parts)

    def to_json(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if name != "where"}


@torch.inference_mode()
def ablate(
    model: LanguageModel,
    text: str,
    address: str,
    token: str | int | None = None,
    at: int = -1,
    fill: str = "zero",
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Ablation:
    """Run the model unchanged, then with the value of each target replaced, several targets as rows of one pass.

    address: see `find_targets`. fill: `zero`, or `mean` over the positions of this text. token: text or id; None for
    the most probable token. at: the position whose prediction is examined. progress: called with (done, total).
    """
    check_known(fill, tuple(FILLS), "replacement")
    recording = record(model, text, [])
    at, targets = recording.position(at), find_targets(model.decoder, address)
    before = _log_probabilities(recording, [], fill, at)  # (1, V)
    chosen, effects = choose_token(model, token, before[0]), []
    for batch in batches(recording, targets):
        rows = torch.cat([before, _log_probabilities(recording, batch, fill, at)])
        unchanged, after = rows[-len(batch) - 1], rows[-len(batch) :]
        divergences = (unchanged.exp() * (unchanged - after)).sum(-1).tolist()
        effects += [
            AblationEffect(str(target), float(row[chosen].exp()), divergence, model.top_tokens(row, 1)[0])
            for target, row, divergence in zip(batch, after, divergences, strict=True)
        ]
        progress(len(effects), len(targets))
    effects.sort(key=lambda effect: -effect.divergence)
    value = float(before[0, chosen])
    asked = TokenProbability(chosen, model.tokenizer.text_of(chosen), float(before[0, chosen].exp()), value)
    return Ablation(recording.after(at), asked, model.top_tokens(before[0], 1)[0], fill, effects)


def batches(recording: RecordedPass, targets: Sequence[AblationTarget]) -> Iterator[list[AblationTarget]]:
    """The targets by passes: several if their values have a row per text, as all values inside a block have.

    The angles of positions and a memory are shared by all rows.
    """
    structure = recording.structure
    inside = tuple(f"{block}." for block in structure.stream[1:])
    decoder, length = recording.model.decoder, len(recording.ids)
    rows = 1 if structure.memory else rows_with_changes(decoder, TOKENS_AT_ONCE, length)
    for has_rows, group in groupby(targets, lambda target: f"{target.name}.".startswith(inside)):
        alike, size = list(group), rows if has_rows else 1
        yield from (alike[start : start + size] for start in range(0, len(alike), size))


def _log_probabilities(recording: RecordedPass, batch: list[AblationTarget], fill: str, at: int) -> Tensor:
    """The log-probabilities (N, V) after position `at` in a pass with the targets replaced, each in its own row.

    Several targets come after an unchanged row: a part without an effect then has a divergence of exactly 0. The row of
    a target joins the pass in its layer, because earlier layers do not see the change.
    """
    model, structure, decoder = recording.model, recording.structure, recording.model.decoder
    rows: dict[str, dict[int, Change]] = {}
    for row, target in enumerate(batch, start=int(len(batch) > 1)):
        rows.setdefault(target.name, {})[row] = target.change(FILLS[fill])
    replace = {name: partial(_by_row, changes) for name, changes in rows.items()}
    layers = Counter(structure.layer_of(f"{target.name}.") for target in batch if len(batch) > 1)
    ids = torch.tensor([recording.ids], device=model.device)
    with ExitStack() as hooks:
        for layer, count in layers.items():
            block = decoder.get_submodule(structure.stream[layer + 1])
            hooks.enter_context(block.register_forward_pre_hook(partial(_join, count)))
        hooks.enter_context(Trace(model, replace=replace, structure=structure))
        return model.log_probabilities(decoder.head(decoder.hidden(ids)[:, at]))


def _join(count: int, _: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """The inputs of a block, with `count` more rows that are copies of the first one."""
    stream, *others = inputs
    return (torch.cat([stream, stream[:1].expand(count, -1, -1)]), *others)


def _by_row(changes: dict[int, Change], value: Tensor) -> Tensor:
    if 0 in changes:  # the only row
        return changes[0](value)
    changed = value.clone()
    for row, change in changes.items():
        changed[row : row + 1] = change(value[row : row + 1])
    return changed
