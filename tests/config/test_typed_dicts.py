"""The typed dicts have the fields of the sections that they stand for, and their types."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import pytest
from pydantic import BaseModel

from foretell.config import DataConfig, ModelConfig, Section, TokenizerConfig, TrainingConfig
from foretell.config.typed_dicts import DataDict, LoRADict, ModelDict, TokenizerDict, TrainingDict
from foretell.model.lora import LoRAConfig

PAIRS = [
    (ModelDict, ModelConfig),
    (TokenizerDict, TokenizerConfig),
    (DataDict, DataConfig),
    (TrainingDict, TrainingConfig),
    (LoRADict, LoRAConfig),
]
SHORTHANDS = {"bias": bool, "dropout": float}  # of a nested section: one value for all of its fields


def kinds(annotation: Any) -> set[Any]:
    """The types of an annotation: literals by their values, tuples as sequences, sections as mappings."""
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return kinds(parts[0])
    if origin in (Union, UnionType):
        return set().union(*map(kinds, parts))
    if origin is Literal:
        return {frozenset(parts)}
    if origin in (tuple, Sequence):
        return {(Sequence, frozenset(kinds(parts[0])))}
    if origin in (dict, Mapping) or (isinstance(annotation, type) and issubclass(annotation, BaseModel)):
        return {Mapping}
    return {annotation}


@pytest.mark.parametrize(("typed_dict", "section"), PAIRS, ids=lambda each: each.__name__)
def test_a_typed_dict_has_the_fields_and_types_of_its_section(typed_dict: type, section: type[Section]) -> None:
    typed = {name: kinds(hint) for name, hint in get_type_hints(typed_dict).items()}
    fields = {name: kinds(hint) for name, hint in get_type_hints(section, include_extras=True).items()}
    fields = {name: hint for name, hint in fields.items() if name in section.model_fields}
    if section is ModelConfig:
        fields = {name: hint | {SHORTHANDS[name]} if name in SHORTHANDS else hint for name, hint in fields.items()}
    assert list(typed) == list(section.model_fields)
    assert typed == fields


def test_kinds_tell_types_apart() -> None:
    assert kinds(int | None) == {int, NoneType} != kinds(int)
    assert kinds(Literal["a"]) != kinds(Literal["b"])
    assert kinds(tuple[str, ...]) == kinds(Sequence[str]) != kinds(Sequence[int])
