"""The stub `foretell/config/typed_dicts.pyi` has the fields of the sections, and their types.

`python tests/config/test_typed_dicts.py` writes it.
"""

from __future__ import annotations

from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import pytest
from pydantic import BaseModel

import foretell.config
from foretell.config.model import ModelConfig, RopeScaling
from foretell.config.section import Section
from foretell.config.training import DataConfig, TokenizerConfig, TrainingConfig
from foretell.model.lora import LoRAConfig

STUB = Path(foretell.config.__file__).with_name("typed_dicts.pyi")
SECTIONS: tuple[type[Section], ...] = (ModelConfig, TokenizerConfig, DataConfig, TrainingConfig, LoRAConfig)
HEAD = '''"""The sections of the configuration as dicts, for editors and type checkers: `train(model={"width": 256})`.

Written by `python tests/config/test_typed_dicts.py`; import it under TYPE_CHECKING. The names of nanoGPT and Hugging
Face are accepted too, but type checkers do not know them.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypedDict
'''


def source_of(annotation: Any) -> str:
    """The type of a field as source: tuples as sequences, sections as mappings."""
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return source_of(parts[0])
    if origin in (Union, UnionType):
        return " | ".join(map(source_of, parts))
    if origin is Literal:
        return f"Literal[{', '.join(map(repr, parts))}]".replace("'", '"')
    if origin is tuple:
        return f"Sequence[{source_of(parts[0])}]"
    if origin is dict:
        return f"Mapping[{', '.join(map(source_of, parts))}]"
    if issubclass(annotation, BaseModel):
        types = {source_of(field.annotation) for field in annotation.model_fields.values()}
        # A section whose fields are all alike also takes one value for all of them
        return f"Mapping[str, {value}] | {value}" if len(types) == 1 and (value := types.pop()) else "Mapping[str, Any]"
    return "None" if annotation is NoneType else annotation.__name__


def stub() -> str:
    """The content of the stub."""
    classes = [
        "\n".join(
            [
                f"class {section.__name__.replace('Config', 'Dict')}(TypedDict, total=False):",
                *(f"    {name}: {source_of(field.annotation)}" for name, field in section.model_fields.items()),
            ]
        )
        for section in SECTIONS
    ]
    return "\n".join([HEAD, "\n\n".join(classes), ""])


def test_the_typed_dicts_are_those_of_the_sections() -> None:
    assert STUB.read_text(encoding="utf-8") == stub(), "write it with: python tests/config/test_typed_dicts.py"


@pytest.mark.parametrize(
    ("annotation", "source"),
    [
        (int | None, "int | None"),
        (Literal["a", "b"], 'Literal["a", "b"]'),
        (tuple[int | None, ...], "Sequence[int | None]"),
        (dict[str, Annotated[float, "at least 0"]], "Mapping[str, float]"),
        (ModelConfig.model_fields["bias"].annotation, "Mapping[str, bool] | bool"),
        (RopeScaling, "Mapping[str, Any]"),
    ],
)
def test_the_source_of_a_type(annotation: Any, source: str) -> None:
    assert source_of(annotation) == source


if __name__ == "__main__":
    STUB.write_text(stub(), encoding="utf-8")
