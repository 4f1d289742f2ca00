"""The sections of a page: a registry of their names, the values that each needs, and how it is packed.

A page in a file contains the sections that fit; a live page requests those that it shows.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from foretell.insight.page.block_sections import CONTRIBUTIONS, ENCODER_AT, STREAMS_AT, VALUES, VALUES_AT
from foretell.insight.page.contributions import outcome_logits, outcome_parts, outcome_tokens, stream_needs
from foretell.insight.page.family import Family, Index, PositionFamily, once, per_layer, value_family
from foretell.insight.page.learning import can_learn, learning_step
from foretell.insight.page.outline import model_outline
from foretell.insight.page.packing import PackedSection, pack_exact, pack_rounded, pack_text, pack_weights, pack_whole
from foretell.insight.page.page_pass import STEPS, PageModel, PagePass, array
from foretell.insight.stream_terms import names_by_token

THUMB_CELLS = 64  # cells per side of a small map; for longer texts a cell shows its largest weight
FILE_NUMBERS = 100_000_000  # optional numbers recorded for a file; more would not fit
HIDDEN = -1  # marks a cell of a small map without visible keys


def stream_names(page: PageModel, _: int = 0) -> list[str]:
    return [point.name for point in page.points]


def attention_operands(page: PageModel, layer: int) -> list[str]:
    return [page.attention[layer].weights]


def lens_family(attribute: str, pack: Callable[[str, Any], PackedSection] = pack_rounded) -> Family:
    return Family(
        f"lens.{attribute}.{{}}",
        lambda traced, point: getattr(traced.lens(point), attribute),
        pack,
        lambda page: range(len(page.lens_points)),
        lambda page, point: [page.points[page.lens_points[point]].name],
    )


def memory_family(kind: str, names: Callable[[PageModel], list[str]]) -> Family:
    return Family(
        f"memory.{kind}.{{}}",
        lambda traced, layer: traced.memory_weights(names(traced.page)[layer]),
        pack_weights,
        lambda page: range(len(names(page))),
        lambda page, layer: [names(page)[layer]],
    )


def embedding_family(name: str, value: str) -> Family:
    """One term of the embedding; there is no section if the embedding has only one term."""
    return Family(
        f"embed.{name}",
        lambda traced, _: array(traced.recorded.trace[value].expand(1, -1, -1)[0]),
        indices=lambda page: range("embed.position" in page.structure.values),
        needs=lambda page, _: [value],
        left_out=EMBEDDING,
    )


def task_family(
    name: str,
    content: Callable[[PagePass, int], Any],
    pack: Callable[[str, Any], PackedSection] = pack_exact,
    needs: Callable[[PageModel, Any], Sequence[str]] = lambda page, _: (),
    has_tags: bool = True,
) -> Family:
    """A section about the labels or number that a tuned model predicts. has_tags: also for tags."""

    def indices(page: PageModel) -> range:
        return range(page.readout is not None and (has_tags or not page.readout.is_per_position))

    return Family(f"outcomes.{name}", content, pack, indices, needs)


def token_needs(page: PageModel, _: Index) -> list[str]:
    return names_by_token(page.head_stream, page.structure)


@dataclass(frozen=True)
class TagFamily(PositionFamily):
    """Sections about the tag at one position, of a model for tags."""

    def index_in(self, page: PageModel, name: str) -> str | None:
        return super().index_in(page, name) if page.readout is not None and page.readout.is_per_position else None


TAG_PARTS = TagFamily("outcomes.parts.{}", outcome_parts, pack_exact, needs=stream_needs)
TAG_TOKENS = TagFamily("outcomes.tokens.{}", outcome_tokens, pack_exact, needs=token_needs)


def norms(traced: PagePass, _: int) -> np.ndarray:
    """The Euclidean norms (P, T) of the stream at all points."""
    # Copying all streams takes 30 times as long
    streams = (traced.recorded.trace[point.name][0] for point in traced.page.points)
    return np.stack([array(torch.linalg.vector_norm(stream, dim=-1, dtype=torch.float64)) for stream in streams])


def thumbs(traced: PagePass, layer: int) -> np.ndarray:
    """The attention of all heads of a layer (H, N, N) in at most THUMB_CELLS cells per side, in ten-thousandths."""
    T = len(traced.ids)
    visible = traced.visible(layer).cpu().numpy()
    weights = np.full((traced.page.config.num_heads, T, T), HIDDEN, np.int16)
    weights[:, visible] = traced.attention(layer)
    side = min(T, THUMB_CELLS)
    first = -(-np.arange(side) * T // side)  # the first token of each cell
    return np.maximum.reduceat(np.maximum.reduceat(weights, first, axis=1), first, axis=2)


def lens_row(traced: PagePass, position: int) -> np.ndarray:
    lens = traced.lens_at(position)
    columns = (lens.ids, lens.probabilities, lens.logits, lens.following, lens.ranks, lens.entropies)
    return np.column_stack([column.astype(np.float32) for column in columns])


EMBEDDING = "word and position vectors"
HEAD_INPUT = "the vectors that the head reads, and its rows"
OPERANDS = "queries and keys, layer by layer"
# In the order of a file: sections that are left out first come last
FAMILIES = (
    Family("vocabulary", lambda traced, _: json.dumps(traced.page.vocabulary, ensure_ascii=False), pack_text),
    Family("logits", lambda traced, _: traced.logits, pack_exact),
    Family("stream.sizes", norms, needs=stream_names),
    lens_family("ids", pack_whole),
    lens_family("probabilities"),
    lens_family("logits"),
    lens_family("following"),
    lens_family("ranks", pack_whole),
    lens_family("entropies"),
    memory_family("cross", lambda page: page.cross),
    memory_family("encoder", lambda page: page.encoder),
    Family("levels", lambda traced, _: traced.page.levels, pack_exact, lambda page: range(page.levels is not None)),
    task_family("logits", lambda traced, _: outcome_logits(traced)),
    task_family("words", lambda traced, _: np.array(traced.page.task.words()), pack_whole),
    task_family("parts", outcome_parts, needs=stream_needs, has_tags=False),
    task_family("tokens", outcome_tokens, needs=token_needs, has_tags=False),
    value_family("embed.sum", lambda page, _: page.points[0].name, once, EMBEDDING),
    embedding_family("words", "embed.token"),
    embedding_family("positions", "embed.position"),
    # Exact, because a logit would add up D rounding errors
    Family("final", lambda traced, _: traced.stream(-1), pack_exact, needs=stream_names, left_out=HEAD_INPUT),
    Family("head.ids", lambda traced, _: np.array(traced.row_ids), pack_whole, needs=stream_names, left_out=HEAD_INPUT),
    Family("head.rows", lambda traced, _: traced.head_rows(), pack_exact, needs=stream_names, left_out=HEAD_INPUT),
    Family("head.biases", lambda traced, _: traced.head_biases(), pack_exact, needs=stream_names, left_out=HEAD_INPUT),
    *CONTRIBUTIONS,
    Family(
        "learning.step",
        lambda traced, _: json.dumps(learning_step(traced)),
        pack_text,
        lambda page: range(can_learn(page)),
        left_out="one step of gradient descent",
    ),
    STREAMS_AT,
    VALUES_AT,
    ENCODER_AT,
    value_family("queries.{}", lambda page, layer: page.attention[layer].query, per_layer, OPERANDS),
    value_family("keys.{}", lambda page, layer: page.attention[layer].key, per_layer, OPERANDS),
    value_family(
        "stream.{}",
        lambda page, point: page.points[point].name,
        lambda page: range(1, len(page.points)),
        "the stream's vectors, place by place",
    ),
    *VALUES,
)
# Attention, of which a file keeps the last rows that fit
ATTENTION = Family(
    "attention.{}", lambda traced, layer: traced.attention(layer), pack_weights, per_layer, attention_operands
)
# Only in a live page: a file derives them from the attention, the lens of all positions and the whole stream
THUMBS = Family(
    "thumbs.{}", thumbs, lambda name, whole: pack_rounded(name, whole / STEPS), per_layer, attention_operands
)
# The lens of one position at all points (P, 3 K + 3): ids, probabilities, logits, following, rank, entropy
LENS_AT = PositionFamily(
    "lens.at.{}",
    lambda traced, position: lens_row(traced, int(position)),
    pack_exact,
    needs=lambda page, _: [page.points[point].name for point in page.lens_points],
)
BY_POSITION = (LENS_AT, TAG_PARTS, TAG_TOKENS, STREAMS_AT, VALUES_AT, ENCODER_AT)
# The loss of each token except the first, in nats
LOSSES = Family("losses", lambda traced, _: np.array(traced.recorded.losses), pack_exact)


def outline(traced: PagePass, _: int) -> str:
    """The outline of the model for a live page, with its sections; fetched once per model."""
    listed = {"available": list(all_sections(traced.page)), "byPosition": [family.prefix for family in BY_POSITION]}
    return json.dumps({**model_outline(traced.page), **listed}, ensure_ascii=False)


OUTLINE = Family("outline", outline, pack_text)


def all_sections(page: PageModel) -> dict[str, tuple[Family, Index]]:
    """Family and index of every section of a page of this model, except sections of single positions."""
    return {
        family.section_name(index): (family, index)
        for family in (OUTLINE, *FAMILIES, ATTENTION, THUMBS, LOSSES)
        for index in family.indices(page)
    }


def find_sections(
    page: PageModel, listed: Mapping[str, tuple[Family, Index]], names: Sequence[str]
) -> dict[str, tuple[Family, Index]]:
    """Family and index of each name that is a section of a page of this model. listed: from `all_sections`."""
    chosen = {name: listed[name] for name in names if name in listed}
    for name in names:
        for family in BY_POSITION:
            if (index := family.index_in(page, name)) is not None:
                chosen[name] = (family, index)
    return chosen


def needed_values(page: PageModel, sections: Iterable[tuple[Family, Index]]) -> list[str]:
    """The values that a pass must record for these sections."""
    return list(dict.fromkeys(value for family, index in sections for value in family.needs(page, index)))


def values_of_file(page: PageModel, tokens: int) -> list[str]:
    """The values that a pass over `tokens` tokens must record for a file, within its limit of optional numbers."""
    names, room = dict[str, None](), FILE_NUMBERS
    for family in (*(family for family in FAMILIES if not family.left_out), ATTENTION):
        for index in family.indices(page):
            names |= dict.fromkeys(family.needs(page, index))
    for family in (family for family in FAMILIES if family.left_out):
        for index in family.file_indices(page, tokens):
            added = [name for name in family.needs(page, index) if name not in names]
            room -= sum(page.structure.elements_per_row(name, tokens) for name in added)
            names |= dict.fromkeys(added) if room > 0 else {}
    return list(names)
