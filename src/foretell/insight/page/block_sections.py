"""The sections of the values inside the layers, and of direct contributions to logits."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from foretell.insight.page.block_values import BlockPart, BlockValue
from foretell.insight.page.contributions import (
    PARTS_AT_ONCE,
    WRITES_AT_ONCE,
    logit_contributions,
    neuron_writes,
    neurons_in,
    positions_of,
    sections_of,
    stream_needs,
    strongest_neurons,
    write_operations,
)
from foretell.insight.page.family import Family, PositionFamily, last_number, value_family
from foretell.insight.page.packing import PackedSection, pack_exact, pack_rounded, pack_text, pack_whole
from foretell.insight.page.page_pass import PageModel, PagePass, array

MOST_NUMBERS = 10_000_000  # up to this many numbers of the layers, a file may have room for all
LAST_POSITIONS = 8
FILE_OPERATIONS = 4 * 10**10  # floating-point operations that a file spends on the tokens that neurons write

# --- values ----------------------------------------------------------------------------------------------------------


def values_family(is_statistic: bool, left_out: str) -> Family:
    """The values of all layers that are in no other section. An index is a layer and a path inside it."""

    def indices(page: PageModel) -> list[str]:
        return [index for index, value in page.values.items() if value.is_statistic == is_statistic]

    return value_family("values.{}", lambda page, index: page.values[index].name, indices, left_out, layer_in)


def layer_in(index: str) -> int:
    return int(index.partition(".")[0])


# --- contributions ---------------------------------------------------------------------------------------------------


def has_contributions(page: PageModel) -> bool:
    return page.head_input is not None


def contribution_sections(page: PageModel, tokens: int) -> Sequence[int]:
    return range(sections_of(tokens, PARTS_AT_ONCE) if has_contributions(page) else 0)


# --- neurons ---------------------------------------------------------------------------------------------------------


def layers_with_neurons(page: PageModel) -> list[int]:
    return [layer for layer, neurons in enumerate(page.neurons) if neurons]


def neuron_names(page: PageModel, layer: int) -> list[str]:
    return neurons_in(page, layer).values


def neuron_family(attribute: str, pack: Callable[[str, Any], PackedSection]) -> Family:
    return Family(
        f"neurons.{attribute}.{{}}",
        lambda traced, layer: array(getattr(strongest_neurons(traced, layer), attribute)),
        pack,
        layers_with_neurons,
        neuron_names,
        "the strongest neurons, layer by layer",
    )


def write_sections(page: PageModel, tokens: int, most: int | None = None) -> list[str]:
    """The indices of the sections of written tokens, last positions first; at most `most` sections per layer."""
    if not has_contributions(page):
        return []
    sections = range(sections_of(tokens, WRITES_AT_ONCE))[::-1][:most]
    return [f"{layer}.{section}" for section in sections for layer in layers_with_neurons(page)]


def affordable_writes(page: PageModel, tokens: int) -> list[str]:
    return write_sections(page, tokens, max(1, FILE_OPERATIONS // max(1, write_operations(page))))


def last_written(traced: PagePass) -> int:
    """The number of positions whose written tokens are in a file; all of them for a model without neurons."""
    page, tokens = traced.page, len(traced.ids)
    sections = [int(index.split(".")[1]) for index in affordable_writes(page, tokens)]
    return tokens - positions_of(traced, min(sections), WRITES_AT_ONCE).start if sections else tokens


# --- one position ----------------------------------------------------------------------------------------------------


def last_positions(page: PageModel, tokens: int) -> Sequence[int]:
    """The positions with separate sections in a file, last first; only if it has no room for all values."""
    numbers = tokens * sum(page.structure.elements_per_row(value.name, 1) for value in page.values.values())
    return range(tokens)[::-1][:LAST_POSITIONS] if numbers > MOST_NUMBERS else ()


def values_at(blocks: Callable[[PageModel], list[list[BlockPart]]]) -> dict[str, Any]:
    """Content and needs of a family with the concatenated values of a layer at one position."""

    def values(page: PageModel, index: str) -> list[BlockValue]:
        parts = blocks(page)[layer_in(index)]
        return [value for part in parts for value in part.values if value.offset is not None]

    def content(traced: PagePass, index: str) -> np.ndarray:
        parts = []
        for value in values(traced.page, index):
            axis = next(axis for axis, letter in enumerate(value.axes) if letter in "TS")
            parts.append(traced.array(value.name).take(last_number(index), axis).ravel())
        return np.concatenate(parts)

    return {"content": content, "needs": lambda page, index: [value.name for value in values(page, index)]}


def source_positions(page: PageModel, _: int) -> list[str]:
    layers, positions = range(len(page.encoder)), range(page.source_length)
    return [f"{layer}.{position}" for layer in layers for position in positions]


LAST = "the values of the layers at the last positions, one by one"
# Small sections, which a file keeps before the vectors of the stream
CONTRIBUTIONS = (
    values_family(True, "means and variances of the norms, layer by layer"),
    Family(
        "contributions.parts",
        lambda traced, _: json.dumps(traced.contributions.described()),
        pack_text,
        lambda page: range(has_contributions(page)),
        stream_needs,
        "direct contributions to logits",
        group=lambda _: 0,
    ),
    Family(
        "contributions.{}",
        logit_contributions,
        pack_exact,
        lambda page: contribution_sections(page, page.config.context_length),
        stream_needs,
        "direct contributions to logits",
        contribution_sections,
        group=lambda _: 0,
    ),
    neuron_family("ids", pack_whole),
    neuron_family("values", pack_rounded),
    Family(
        "neurons.writes.{}",
        lambda traced, index: neuron_writes(traced, *map(int, index.split("."))),
        pack_exact,
        lambda page: write_sections(page, page.config.context_length),
        lambda page, index: [*stream_needs(page, index), *neuron_names(page, layer_in(index))],
        "the tokens that the strongest neurons write, the last tokens of the text first",
        affordable_writes,
        group=lambda index: index.split(".")[1],
    ),
)
STREAMS_AT = PositionFamily(
    "streams.{}",
    lambda traced, position: np.stack(
        [traced.stream(point)[int(position)] for point in range(len(traced.page.points))]
    ),
    needs=lambda page, _: [point.name for point in page.points],
    left_out=LAST,
    in_file=lambda page, tokens: [str(position) for position in last_positions(page, tokens)],
    group=last_number,
)
# The concatenated values of a layer at one position, each from its offset
VALUES_AT = PositionFamily(
    "values.at.{}",
    **values_at(lambda page: page.blocks),
    left_out=LAST,
    in_file=lambda page, tokens: [
        f"{layer}.{position}" for position in last_positions(page, tokens) for layer in range(page.config.num_layers)
    ],
    group=last_number,
    sizes=lambda page: [page.config.num_layers],
)
ENCODER_AT = PositionFamily(
    "encoder.at.{}",
    **values_at(lambda page: page.encoder_blocks),
    left_out="the values of the encoder's layers",
    in_file=source_positions,
    sizes=lambda page: [len(page.encoder)],
    is_of_source=True,
)
VALUES = (values_family(False, "the other values of the layers, layer by layer"),)
