"""The stub `foretell/config/typed_dicts.pyi` has the fields of the sections and the options of trainings, with types.

`python tests/config/test_typed_dicts.py` writes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import pytest
from pydantic import BaseModel

import foretell.config
from foretell.config.model import ModelConfig, RopeScaling
from foretell.config.section import Section
from foretell.config.training import DataConfig, TokenizerConfig, TrainingConfig
from foretell.finetuning.kinds import ChatOptions, HeadOptions
from foretell.forecasting.options import ForecastOptions
from foretell.model.lora import LoRAConfig
from foretell.pretraining.options import DomainOptions, TextOptions
from foretell.session.request import TrainingRequest

STUB = Path(foretell.config.__file__).with_name("typed_dicts.pyi")
SECTIONS: tuple[type[Section], ...] = (ModelConfig, TokenizerConfig, DataConfig, TrainingConfig, LoRAConfig)
# The keywords of a function, and the dataclasses that declare them
KEYWORDS: dict[str, tuple[type, ...]] = {
    "TrainDict(TypedDict": (TextOptions, ForecastOptions),
    "HeadDict(TuningDict": (HeadOptions,),
    "ChatDict(TuningDict": (ChatOptions,),
    "DomainDict(TuningDict": (DomainOptions,),
}
HEAD = '''"""The sections of the configuration as dicts, for editors and type checkers, as in
`train(model={"width": 256})`, and the options of trainings as keywords.

Written by `python tests/config/test_typed_dicts.py`; import it under TYPE_CHECKING. The names of nanoGPT and Hugging
Face are accepted too, but type checkers do not know them.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypedDict

from foretell.session.reporter import Reporter

class TuningDict(TypedDict, total=False):
    resume: bool
    progress: bool | None
    reporter: Reporter | None
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
    if annotation is Path:
        return "str | Path"
    if origin in (tuple, Sequence):
        return f"Sequence[{source_of(parts[0])}]"
    if origin is dict:
        return f"Mapping[{', '.join(map(source_of, parts))}]"
    if issubclass(annotation, BaseModel):
        types = {source_of(field.annotation) for field in annotation.model_fields.values()}
        # A section whose fields are all alike also takes one value for all of them
        return f"Mapping[str, {value}] | {value}" if len(types) == 1 and (value := types.pop()) else "Mapping[str, Any]"
    return "None" if annotation is NoneType else annotation.__name__


def keywords_of(declared: tuple[type, ...]) -> dict[str, str]:
    """The options of dataclasses and of every training, and the sections that they take."""
    options = {
        each.name: source_of(get_type_hints(owner)[each.name])
        for owner in (*declared, TrainingRequest)
        for each in fields(owner)
        if each.metadata and each.name != "task"  # which has its own parameter
    }
    known = {section.__name__.removesuffix("Config").lower(): dict_name(section) for section in SECTIONS}
    sections = [section for owner in declared for section in vars(owner)["sections"]]
    return {**options, **{section: f"{known.get(section, 'Mapping[str, Any]')} | None" for section in sections}}


def dict_name(section: type[Section]) -> str:
    return section.__name__.replace("Config", "Dict")


def stub() -> str:
    """The content of the stub."""
    contents = {
        f"{dict_name(section)}(TypedDict": {
            name: source_of(field.annotation) for name, field in section.model_fields.items()
        }
        for section in SECTIONS
    }
    contents |= {name: keywords_of(declared) for name, declared in KEYWORDS.items()}
    classes = [
        "\n".join([f"class {name}, total=False):", *(f"    {key}: {kind}" for key, kind in members.items())])
        for name, members in contents.items()
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
