"""A family: sections of one kind, one for each index."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from foretell.errors import UsageError
from foretell.insight.page.packing import PackedSection, pack_exact, pack_rounded
from foretell.insight.page.page_pass import PageModel, PagePass

DIGITS = 12  # maximum digits of a number in a name
Index = int | str  # a string has several numbers or names, joined by points as in the name of the section


def once(_: PageModel) -> Sequence[int]:
    return (0,)


def per_layer(page: PageModel) -> Sequence[int]:
    return range(page.config.num_layers)


@dataclass(frozen=True)
class Family:
    """Sections of one kind. name: the section's name, with {} for the index if there are several.

    content: computes the content from the pass and the index. needs: the names of the values that the pass must record.
    left_out: the description of sections that do not fit into a file; empty for sections that every page needs.
    in_file: the indices in the file of a text with a number of tokens, if they are fewer. group: a file keeps or leaves
    out the sections of a group together, in families with the same `left_out`.
    """

    name: str
    content: Callable[[PagePass, Any], Any]
    pack: Callable[[str, Any], PackedSection] = pack_rounded
    indices: Callable[[PageModel], Sequence[Index]] = once
    needs: Callable[[PageModel, Any], Sequence[str]] = lambda page, index: ()
    left_out: str = ""
    in_file: Callable[[PageModel, int], Sequence[Index]] | None = None
    group: Callable[[Any], Any] = lambda index: index

    def section_name(self, index: Index) -> str:
        return self.name.format(index)

    def pack_live(self, index: Index, content: Any) -> PackedSection:
        """The section for a live page, in float32 without rounding, so that a number equals its explanation."""
        return (pack_exact if self.pack is pack_rounded else self.pack)(self.section_name(index), content)

    def section(self, traced: PagePass, index: Index) -> PackedSection:
        return self.pack(self.section_name(index), self.content(traced, index))

    def file_indices(self, page: PageModel, tokens: int) -> Sequence[Index]:
        return self.in_file(page, tokens) if self.in_file else self.indices(page)


def value_family(
    name: str,
    value: Callable[[PageModel, Any], str],
    indices: Callable[[PageModel], Sequence[Index]],
    left_out: str,
    group: Callable[[Any], Any] = lambda index: index,
) -> Family:
    """Sections with one recorded value each. value: the value's name, from the model and the index."""
    return Family(
        name,
        lambda traced, index: traced.array(value(traced.page, index)),
        indices=indices,
        needs=lambda page, index: [value(page, index)],
        left_out=left_out,
        group=group,
    )


@dataclass(frozen=True)
class PositionFamily(Family):
    """Sections of one position of the text. An index is a string of the numbers in the name, with the position last.

    There is a section for every position, so they are not listed: names are parsed.
    """

    indices: Callable[[PageModel], Sequence[Index]] = lambda page: ()
    sizes: Callable[[PageModel], Sequence[int]] = lambda page: ()  # limits of the numbers before the position
    is_of_source: bool = False  # the positions count tokens of the source

    def check(self, traced: PagePass, index: Index) -> None:
        """Raise UsageError for a position after the text or the source."""
        length = traced.page.source_length if self.is_of_source else len(traced.ids)
        if last_number(index) >= length:
            raise UsageError(f"the text has {length:,} tokens; there is no position {last_number(index)}")

    @property
    def prefix(self) -> str:
        return self.name.partition("{")[0]

    def index_in(self, page: PageModel, name: str) -> str | None:
        """The index of a section of this family; None for another name."""
        index = name.removeprefix(self.prefix)
        limits = (*self.sizes(page), page.config.context_length)
        numbers = index.split(".")
        is_index = len(numbers) == len(limits) and all(
            number.isdecimal() and len(number) < DIGITS and int(number) < limit
            for number, limit in zip(numbers, limits, strict=True)
        )
        return index if name.startswith(self.prefix) and is_index and self.section_name(index) == name else None


def last_number(index: Index) -> int:
    return int(str(index).rpartition(".")[2])
