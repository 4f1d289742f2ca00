"""Numbers that have an address and no trace name: the meanings of their indices, and the steps to one of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from foretell.errors import UsageError
from foretell.insight.address import Address, Dimensions, resolve_index
from foretell.insight.explain.steps import Working
from foretell.insight.recording import Recording, with_token_ids
from foretell.paths import suggest

Explained = tuple[float, Working]  # the stored number, and the steps to it
Texts = Mapping[str, Sequence[str]]  # of the indices of a dimension, such as the labels of outputs


class ImpliedNumber(NamedTuple):
    """One of these numbers: its index and what that means, the stored number, and the steps to it."""

    index: tuple[int, ...]
    meaning: tuple[str, ...]
    stored: float
    working: Working


@dataclass(frozen=True)
class NumberKind:
    """Numbers of one name: the meanings and sizes of their indices, and the steps to one of them."""

    dimensions: Dimensions
    sizes: tuple[int, ...]
    explain: Callable[[tuple[int, ...]], Explained]


def explain_number(
    recording: Recording, kinds: Mapping[str, NumberKind], wanted: Address, texts: Texts
) -> ImpliedNumber:
    """The steps to a number of one of the kinds, by name. An index may be given as the text that it stands for.

    Raises `UsageError` for an unknown name, text or index.
    """
    if wanted.name not in kinds:
        raise UsageError(f"no value is named '{wanted.name}'{suggest(wanted.name, [*kinds])}")
    kind = kinds[wanted.name]
    ids = with_token_ids(recording.model, wanted, kind.dimensions).index
    given = [index_of(*pair, texts) for pair in zip(kind.dimensions, ids, strict=False)]
    address = Address(wanted.name, (*given, *ids[len(given) :]))
    index = resolve_index(address, kind.dimensions, kind.sizes)
    of_token = {"position": recording.token, "source": recording.token, "token": recording.named}
    text_of = of_token | {dimension: known.__getitem__ for dimension, known in texts.items()}
    meaning = tuple(
        f"{dimension} {entry} {text_of[dimension](entry)}" if dimension in text_of else f"{dimension} {entry}"
        for dimension, entry in zip(kind.dimensions, index, strict=True)
    )
    return ImpliedNumber(index, meaning, *kind.explain(index))


def index_of(dimension: str, entry: int | str, texts: Texts) -> int | str:
    """The index that a text of this dimension stands for; anything else as it is."""
    if isinstance(entry, int) or dimension not in texts:
        return entry
    if entry not in texts[dimension]:
        raise UsageError(f"no {dimension} is named {entry!r}{suggest(entry, texts[dimension])}")
    return texts[dimension].index(entry)
