"""A recorded pass for a page, and its arrays, each computed when requested."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from foretell.config.model import ModelConfig
from foretell.errors import OutputError, TokenizerError, UsageError
from foretell.insight.attribution.lens_arrays import LensArrays, read_lens
from foretell.insight.contributions import Contributions, replaced_updates, terms_of_head
from foretell.insight.layers import (
    Neurons,
    encoder_weights,
    memory_weights_of,
    neurons_of,
    sublayer_of,
    updates_of,
    weights_of,
)
from foretell.insight.page.block_values import SUBLAYERS, BlockPart, BlockValue, block_parts, same_numbers
from foretell.insight.readout import LogitReadout, TaskReadout
from foretell.insight.recorded_pass import RecordedPass, record
from foretell.insight.replacement import Replacement, replaced_names
from foretell.insight.stream_terms import Term
from foretell.insight.trace import TRACE_BYTES, Trace
from foretell.language_model import LanguageModel, check_model
from foretell.model.cache import FreshKVView, KVView
from foretell.model.decoder import Decoder
from foretell.model.structure import Structure, model_structure
from foretell.text import Tokenizer

TOP = 5  # tokens per reading of the lens
LENS_POSITIONS = 256
TOP_ROWS = 10  # top tokens after the last position whose head rows are kept
STEPS = 10_000  # steps per unit: stored numbers are multiples of 0.0001


@dataclass(frozen=True)
class StreamPoint:
    """A point of the residual stream: the name of its value, and the layer that ends there, if any."""

    name: str
    label: str
    layer: int | None = None


@dataclass(frozen=True)
class AttentionNames:
    """The names of a core's queries and keys, and of a layer's weights."""

    query: str
    key: str
    weights: str


@dataclass(eq=False)
class PageModel:
    """A model, and the names of its values that a page shows.

    cross: the attention weights from the text to the memory, per layer. encoder: the encoder's weights. Both are empty
    without a memory. readout: for a tuned model. levels: for a forecaster, the values that the first tokens stand for.
    """

    model: LanguageModel
    structure: Structure
    points: list[StreamPoint]
    attention: list[AttentionNames]
    cross: list[str]
    encoder: list[str]
    readout: TaskReadout | None = None
    levels: np.ndarray | None = None

    @classmethod
    def of(cls, model: LanguageModel, readout: TaskReadout | None = None, levels: np.ndarray | None = None) -> Self:
        """Raises UsageError for a model without attention weights or without a tokenizer."""
        check_model(model)
        decoder, structure = model.decoder, model_structure(model.decoder)
        layers = range(model.config.num_layers)
        cross = [memory_weights_of(structure, layer) for layer in layers]
        return cls(
            model,
            structure,
            stream_points(decoder, structure),
            [attention_names(decoder, structure, layer) for layer in layers],
            [value.name for value in cross if value is not None],
            [value.name for value in encoder_weights(structure)],
            readout,
            levels,
        )

    def with_input(
        self, model: LanguageModel, levels: np.ndarray | None = None, readout: TaskReadout | None = None
    ) -> Self:
        """The page of the same decoder with another source, example or scale; it shares the names of the values."""
        other = copy.copy(self)
        other.model, other.levels, other.readout = model, levels, readout
        if levels is not None:  # the tokens stand for other values
            other.vocabulary = token_texts(model.tokenizer)
        return other

    @property
    def config(self) -> ModelConfig:
        return self.model.decoder.config

    @property
    def source_length(self) -> int:
        """The number of tokens that an encoder has read."""
        return 0 if self.model.memory is None else len(self.model.memory.ids)

    @cached_property
    def lens_points(self) -> list[int]:
        return [index for index, point in enumerate(self.points) if point.layer is not None]

    @cached_property
    def cores(self) -> dict[str, list[str]]:
        """The paths of the attention cores of each layer: of the decoder, from it to a memory, and of the encoder."""
        names = {"own": [each.weights for each in self.attention], "cross": self.cross, "encoder": self.encoder}
        return {kind: [name.removesuffix(".weights") for name in weights] for kind, weights in names.items()}

    @cached_property
    def blocks(self) -> list[list[BlockPart]]:
        """The values of each layer. The stream, queries and keys have other sections."""
        held = {point.name: f"stream.{index}" for index, point in enumerate(self.points)}
        held[self.points[0].name] = "embed.sum"
        for layer, names in enumerate(self.attention):
            held |= {names.query: f"queries.{layer}", names.key: f"keys.{layer}"}
        sections = {same_numbers(self.structure, name): section for name, section in held.items()}
        layers = range(self.config.num_layers)
        return [block_parts(self.model.decoder, self.structure, layer, sections) for layer in layers]

    @cached_property
    def encoder_blocks(self) -> list[list[BlockPart]]:
        """The values of each encoder layer, which are in no other sections; keys are also source tokens."""
        structure = replace(self.structure, stream=self.structure.memory_stream)
        layers = range(len(self.encoder))
        return [block_parts(self.model.decoder, structure, layer, {}, "encoder") for layer in layers]

    @cached_property
    def block_outline(self) -> dict[str, list[list[dict[str, Any]]]]:
        """`blocks` and `encoder_blocks` as JSON; conversion takes longer than a pass of a small model."""
        both = {"blocks": self.blocks, "encoderBlocks": self.encoder_blocks}
        return {name: [list(map(asdict, parts)) for parts in blocks] for name, blocks in both.items()}

    @cached_property
    def values(self) -> dict[str, BlockValue]:
        """The values of the layers that are in sections `values.<index>`, by index."""
        values = (value for parts in self.blocks for part in parts for value in part.values)
        prefix = "values."
        return {value.section.removeprefix(prefix): value for value in values if value.section.startswith(prefix)}

    @cached_property
    def neurons(self) -> list[Neurons | None]:
        layers = range(self.config.num_layers)
        return [neurons_of(self.model.decoder, self.structure, layer) for layer in layers]

    @cached_property
    def head_input(self) -> Term | None:
        """The terms of the stream that the head reads; None if a module does not declare its terms."""
        try:
            return terms_of_head(self.model.decoder, self.structure)
        except UsageError:  # such a model has a page without contributions
            return None

    @property
    def head_stream(self) -> Term:
        """`head_input`, for a page with contributions."""
        assert self.head_input is not None, "a module does not declare its terms"
        return self.head_input

    @property
    def task(self) -> TaskReadout:
        """The task's head, for the page of a tuned model."""
        assert self.readout is not None, "the model has no task's head"
        return self.readout

    @cached_property
    def vocabulary(self) -> list[str | None]:
        """The text of every token; None for an id without a token."""
        return token_texts(self.model.tokenizer)

    @torch.inference_mode()
    def record(
        self,
        ids: list[int],
        text: str,
        names: Iterable[str],
        replace: Mapping[str, Replacement] | None = None,
        budget_bytes: int = TRACE_BYTES,
        kv: KVView | None = None,
    ) -> PagePass:
        """Run the model once over ids and record these values; replacements are as in `Trace`.

        kv: the view of the pass, for a caller that keeps keys and values.
        """
        decoder, options = self.model.decoder, {"replace": replace, "structure": self.structure}
        replaced = replaced_updates(self.structure, {*replaced_names(decoder), *(replace or ())})
        select = list(dict.fromkeys([*names, *replaced]))
        recorded = record(self.model, ids, select, budget_bytes=budget_bytes, kv=kv, **options)
        with Trace(decoder, **options):  # the changes also apply to the head and to other sequences
            logits = decoder.head(recorded.hidden[-1:])[0, : self.model.tokenizer.vocab_size]  # (V,)
            outputs = None if self.readout is None else self.readout.read(decoder, recorded.hidden)
        return PagePass(self, text, self.model.texts_of(ids), recorded, logits, outputs, replaced)


@dataclass(frozen=True, eq=False)
class PagePass:
    """One pass over T tokens, for a page.

    outputs: the outputs of a task's head, as in `TaskReadout`. replaced: updates of the stream that were changed.
    """

    page: PageModel
    text: str
    pieces: list[str]
    recorded: RecordedPass
    last_logits: Tensor
    outputs: Tensor | None = None
    replaced: Sequence[str] = ()
    _lens: dict[int, LensArrays] = field(default_factory=dict)

    @property
    def ids(self) -> list[int]:
        return self.recorded.ids

    def has(self, names: Iterable[str]) -> bool:
        """True if the pass has recorded these values."""
        return set(names) <= set(self.recorded.trace.selected)

    @cached_property
    def contributions(self) -> Contributions:
        """The parts of the stream that the head reads, in this pass."""
        stream = terms_of_head(self.page.model.decoder, self.page.structure, self.replaced)
        return Contributions(self.recorded, stream)

    @cached_property
    def logit_readout(self) -> LogitReadout:
        return LogitReadout(self.recorded)

    def array(self, name: str) -> np.ndarray:
        """A recorded value without its row axis."""
        return array(self.recorded.trace[name][0])

    @property
    def logits(self) -> np.ndarray:
        """The logits (V,) at the last position."""
        return array(self.last_logits)

    def stream(self, point: int) -> np.ndarray:
        """The stream (T, D) at one of the points."""
        return self.array(self.page.points[point].name)

    def attention(self, layer: int) -> np.ndarray:
        """The weights (H, N) of the N visible (query, key) pairs, row by row, as whole multiples of 0.0001."""
        name = self.page.attention[layer].weights
        return whole_steps(name, array(self.recorded.trace[name][0][:, self.visible(layer)]))

    def visible(self, layer: int) -> Tensor:
        """The keys that each token may see in a layer, (T, S)."""
        ids = torch.tensor([self.ids], device=self.recorded.hidden.device)
        return FreshKVView(ids).mask(self.page.config.windows[layer]).allowed[0, 0]

    def memory_weights(self, name: str) -> np.ndarray:
        """The attention weights (H, T, S) to the memory, or of the encoder, in multiples of 0.0001."""
        return whole_steps(name, self.array(name))

    @property
    def lens_from(self) -> int:
        """The first position whose lens is kept."""
        return max(0, len(self.ids) - LENS_POSITIONS)

    @torch.inference_mode()
    def lens(self, point: int) -> LensArrays:
        """The lens of the last LENS_POSITIONS positions, at one of the lens points; computed once."""
        if point not in self._lens:
            stream = self.recorded.trace[self.page.points[self.page.lens_points[point]].name][0, self.lens_from :]
            self._lens[point] = self._read_lens(stream, [*self.ids[self.lens_from + 1 :], -1])
        return self._lens[point]

    @torch.inference_mode()
    def lens_at(self, position: int) -> LensArrays:
        """The lens of one position, at all P lens points."""
        points = [self.page.points[point].name for point in self.page.lens_points]
        stream = torch.stack([self.recorded.trace[name][0, position] for name in points])  # (P, D)
        return self._read_lens(stream, [*self.ids, -1][position + 1 : position + 2] * len(points))

    def _read_lens(self, stream: Tensor, targets: list[int]) -> LensArrays:
        return read_lens(self.page.model.decoder, stream, len(self.last_logits), TOP, targets)

    @cached_property
    def row_ids(self) -> list[int]:
        """The tokens whose head rows are on the page: the most probable token after each position, and TOP_ROWS after
        the last position."""
        best = self.lens(len(self.page.lens_points) - 1).ids[:, 0].tolist()
        return sorted({*best, *self.last_logits.topk(min(TOP_ROWS, len(self.last_logits))).indices.tolist()})

    def head_rows(self) -> np.ndarray:
        """The rows (R, D) of the head for `row_ids`."""
        return array(self.logit_readout.weight[self.row_ids])

    def head_biases(self) -> np.ndarray:
        """Their biases (R,)."""
        biases = self.logit_readout.biases
        return np.zeros(len(self.row_ids), np.float32) if biases is None else array(biases[self.row_ids])


def stream_points(decoder: Decoder, structure: Structure) -> list[StreamPoint]:
    """The points of the stream on a page: the embedding, after each sublayer, and after the last norm."""
    start, *blocks = structure.stream
    points = [StreamPoint(start, "embedding", -1)]
    for layer, block in enumerate(blocks):
        updates = updates_of(decoder, structure, layer)
        inner = [update for update in updates[:-1] or updates if structure[block].reads[0] != update.name]
        for update in inner:
            sublayer = sublayer_of(structure, update).rpartition(".")[2]
            points.append(StreamPoint(update.name, f"layer {layer}, after {SUBLAYERS.get(sublayer, sublayer)}"))
        points.append(StreamPoint(block, f"after layer {layer}", layer))
    (final,) = structure["head"].reads
    if structure.origin(final) != structure.origin(blocks[-1]):
        points.append(StreamPoint(final, "after the last norm"))
    return points


def attention_names(decoder: Decoder, structure: Structure, layer: int) -> AttentionNames:
    """Raises the error of `weights_of`."""
    weights = weights_of(decoder, structure, layer)
    core = structure.with_formula("attention", f"{structure.stream[layer + 1]}.")[0]
    query, key, *_ = core.reads
    return AttentionNames(query, key, weights.name)


def token_texts(tokenizer: Tokenizer) -> list[str | None]:
    """The texts of all ids; None for an id that is not used by any token."""

    def text_of(token_id: int) -> str | None:
        try:
            return tokenizer.text_of(token_id)
        except TokenizerError:
            return None

    return [text_of(token_id) for token_id in range(tokenizer.vocab_size)]


def array(values: Tensor) -> np.ndarray:
    """The tensor as an array on the CPU, in float32 or better."""
    return values.detach().to("cpu", torch.promote_types(values.dtype, torch.float32)).numpy()


def steps(values: np.ndarray) -> np.ndarray:
    """The nearest whole multiples of 0.0001, ties to even as in Python's formatting.

    A float32 times 10,000 is exact in float64, so the multiple equals `f"{value:.4f}"`.
    """
    return np.rint(values.astype(np.float64) * STEPS)


def whole_steps(name: str, weights: np.ndarray) -> np.ndarray:
    """Attention weights as `steps`, in 16 bits."""
    check_finite(name, weights)
    return steps(weights).astype(np.uint16)


def check_finite(name: str, values: np.ndarray) -> None:
    """Raise `OutputError` if a value is infinite or NaN."""
    if not np.isfinite(values).all():
        raise OutputError(f"the page cannot be made: the model's {name} are not all finite numbers")
