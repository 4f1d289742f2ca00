"""Patching: the stream of a second text replaces the stream of a text, after one layer and at one position at a time.

A patch that changes the prediction shows where the difference of both texts is at that layer (Meng et al. 2022,
"Locating and Editing Factual Associations in GPT", causal tracing; Zhang and Nanda 2024, "Towards Best Practices of
Activation Patching").
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from foretell.errors import UsageError
from foretell.insight.recorded_pass import choose_token, record, steady_ids
from foretell.insight.replacement import Replacement
from foretell.insight.trace import Trace
from foretell.language_model import LanguageModel, TokenProbability, decoder_of, resolve_position
from foretell.model.cache import KeptKeys, KeptKVView
from foretell.model.decoder import Decoder, rows_at_once
from foretell.model.structure import Structure, model_structure
from foretell.typesetting.document import DocumentSection, HeatMap, Paragraph, Table, fitting, quoted
from foretell.typesetting.html import Shown
from foretell.typesetting.numbers import percent, signed

TOKENS_AT_ONCE = 2048  # tokens per pass: at 320, unpacking the weights of a packed model takes a third of the time
SHOWN = 24  # positions


def rows_with_changes(decoder: Decoder, tokens_at_once: int, length: int) -> int:
    """The number of changed rows of `length` tokens in a pass, after the unchanged row."""
    return max(1, min(tokens_at_once // length - 1, rows_at_once(decoder)))


Patch = tuple[str, int]  # the point of the stream that is replaced, and the position
Effect = dict[str, float]


class Patches:
    """Patched passes over ids, which measure the logit of one token after the last id.

    token: None for the most probable one without patches. keys: of the unpatched pass, if they are known. Each batch
    begins with the unpatched pass: rows of a batch are computed in the same way, so a patch without an effect has a
    difference of exactly 0.
    """

    def __init__(
        self,
        model: LanguageModel,
        ids: list[int],
        structure: Structure,
        token: int | None = None,
        keys: KeptKeys | None = None,
    ):
        self.model, self.ids, self.structure, self.token = model, ids, structure, token
        self.before, self.keys = Effect(), keys or {}

    def batches(self, patches: list[Patch], tokens_at_once: int) -> Iterator[list[Patch]]:
        """Patches by passes, each of which reads the text from its first position on, in the order of the stream."""
        while patches:
            length = len(self.ids) - min(position for _, position in patches)
            size = rows_with_changes(self.model.decoder, tokens_at_once, length)
            yield sorted(patches[:size], key=lambda patch: self.structure.stream.index(patch[0]))
            patches = patches[size:]

    def read(
        self,
        patches: list[Patch],
        others: Mapping[str, Tensor],
        replace: Callable[[int], Mapping[str, Replacement]] = lambda first: {},
    ) -> list[Effect]:
        """The effects of a batch. others: the streams (T, D) of the second text, by name.

        replace: further replacements in a pass that begins at a position.
        """
        first = min(position for _, position in patches)
        if first and not self.keys:
            _, self.keys = self._pass(0, [], others, replace(0))
        logits, _ = self._pass(first, patches, others, replace(first))
        logprobs = self.model.log_probabilities(logits)
        if self.token is None:
            self.token = int(logprobs[0].argmax())
        pairs = zip(logits[:, self.token].tolist(), logprobs[:, self.token].tolist(), strict=True)
        self.before, *after = ({"logit": logit, "logprob": logprob} for logit, logprob in pairs)
        changes = [{f"{name}_difference": effect[name] - self.before[name] for name in effect} for effect in after]
        return [effect | change for effect, change in zip(after, changes, strict=True)]

    @torch.inference_mode()
    def _pass(
        self, first: int, patches: list[Patch], others: Mapping[str, Tensor], replace: Mapping[str, Replacement]
    ) -> tuple[Tensor, KeptKeys]:
        """The logits (1 + N, V) after the text (unpatched, and with each of N patches), and the keys.

        Only the tokens from `first` on are read, because earlier tokens do not see the patches. The row of a patch
        joins the pass where it is patched, because earlier layers do not see the patch.
        """

        def patched(name: str, _: nn.Module, __: tuple[Any, ...], stream: Tensor) -> Tensor:
            positions = [position for point, position in patches if point == name]
            rows = stream[:1].repeat(len(positions), 1, 1)
            for row, position in zip(rows, positions, strict=True):
                row[position - first] = others[name][position]
            return torch.cat([stream, rows])

        decoder = self.model.decoder
        ids = torch.tensor([self.ids[first:]], device=decoder.device)
        view = KeptKVView(ids, self.keys, first)
        with Trace(decoder, replace=replace, structure=self.structure), ExitStack() as hooks:
            for name in {name: None for name, _ in patches}:
                layer = decoder.get_submodule(self.structure[name].module)
                hooks.enter_context(layer.register_forward_hook(partial(patched, name)))
            hidden = decoder.hidden(ids, decoder.join(view, [0]))  # (1 + N, T, D)
            return decoder.head(hidden[:, -1:])[:, 0], view.kept


@dataclass(frozen=True)
class PatchedPoint:
    """The effects of patching a point of the stream, by position."""

    name: str
    effects: list[Effect]


@dataclass(frozen=True, repr=False)
class PatchMap(Shown):
    """The effects on a token of all patches: a row per point of the stream, from the embedding to the last layer.

    tokens and second are the texts at the patched positions: those that both texts have, from their first difference
    on. Earlier patches change nothing.
    """

    where: str
    token: TokenProbability
    positions: list[int]
    tokens: list[str]
    second: list[str]
    rows: list[PatchedPoint]

    @property
    def differences(self) -> np.ndarray:
        """The changes of the token's log-probability, (points, positions)."""
        return np.array([[effect["logprob_difference"] for effect in row.effects] for row in self.rows])

    def document(self) -> DocumentSection:
        sizes = np.abs(self.differences)  # (points, positions)
        shown = sorted(np.argsort(-sizes.max(0), kind="stable")[:SHOWN].tolist())
        names = ["embedding", *(f"layer {layer}" for layer in range(len(self.rows) - 1))]
        tokens = [quoted(self.tokens[column]) for column in shown]
        largest = sizes.max() or 1.0
        text = f"{quoted(self.token.text)} has {percent(self.token.probability)} {self.where}. Each cell replaces the "
        text += "stream after a layer, at one token, by the second text's stream. The darkest cells change the "
        text += f"log-probability by {sizes.max():.2f} nats."
        if left_out := len(self.positions) - len(shown):
            text += f" The {left_out} positions with the smallest changes are left out."
        heat = HeatMap(sizes[:, shown] / largest, names, tokens, f"columns: {fitting(tokens, 68)}")
        rows = [self._column(column, names) for column in shown]
        header = ("position", "token", "second text", "nats", "after", "at least half of it")
        table = DocumentSection("the largest change at each token", [Table(header, rows)])
        return DocumentSection(
            f"patches from a second text for {quoted(self.token.text)}", [Paragraph(text), heat, table]
        )

    def _column(self, column: int, names: Sequence[str]) -> tuple[str, ...]:
        """The largest change at a position, and the layers around it with at least half of it."""
        changes = self.differences[:, column]
        top = int(np.abs(changes).argmax())
        is_large = np.abs(changes) >= abs(changes[top]) / 2
        first, last = top, top
        while first and is_large[first - 1]:
            first -= 1
        while last + 1 < len(changes) and is_large[last + 1]:
            last += 1
        span = names[first] if first == last else f"{names[first]} to {names[last]}"
        tokens = quoted(self.tokens[column]), quoted(self.second[column])
        return (str(self.positions[column]), *tokens, signed(changes[top], 2), names[top], span)

    def to_json(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if name != "where"}


@torch.inference_mode()
def patch_map(
    model: LanguageModel,
    text: str,
    second: str,
    token: str | int | None = None,
    at: int = -1,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> PatchMap:
    """Patch the pass over a text from the pass over a second one, at every point of the stream and every position.

    token: text or id; None for the most probable token. at: the position whose prediction is examined. progress: called
    with (done, total). Raises `UsageError` for a second text that does not differ up to there.
    """
    structure = model_structure(decoder_of(model))
    ids, second_ids = steady_ids(model, text), steady_ids(model, second)
    ids = ids[: resolve_position(at, len(ids)) + 1]
    shared = range(min(len(ids), len(second_ids)))
    first = next((position for position in shared if ids[position] != second_ids[position]), None)
    if first is None:
        raise UsageError(f"the second text has the same tokens as the first up to position {shared[-1]}; change one")
    view = KeptKVView(torch.tensor([ids], device=model.device))
    recording = record(model, ids, [], structure=structure, kv=model.decoder.join(view, [0]))
    logprobs = recording.next_logits(-1).double().log_softmax(-1)
    chosen = choose_token(model, token, logprobs)
    others = record(model, second_ids, structure.stream, structure=structure)
    streams = {name: others.stored(name) for name in structure.stream}
    passes = Patches(model, ids, structure, chosen, view.kept)
    patches = [(name, position) for position in shared[first:] for name in structure.stream]
    effects: dict[Patch, Effect] = {}
    for batch in passes.batches(patches, TOKENS_AT_ONCE):
        effects |= zip(batch, passes.read(batch, streams), strict=True)
        progress(len(effects), len(patches))
    rows = [PatchedPoint(name, [effects[name, position] for position in shared[first:]]) for name in structure.stream]
    asked = TokenProbability(
        chosen, model.tokenizer.text_of(chosen), float(logprobs[chosen].exp()), float(logprobs[chosen])
    )
    text_of = model.tokenizer.text_of
    tokens, second_tokens = ([text_of(token) for token in each[first : len(shared)]] for each in (ids, second_ids))
    return PatchMap(recording.after(len(ids) - 1), asked, list(shared[first:]), tokens, second_tokens, rows)
