"""Options of trainings, each said once: a dataclass declares them with their types, defaults and help.

The command line takes the dataclass as it is, requests inherit it, and the keywords of Python are written from it
(`typed_dicts.pyi`). Modules that declare options import neither torch nor pydantic, so that `--help` stays fast, and
leave out `from __future__ import annotations`: cyclopts would look up inherited types in the module of the subclass.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from typing import Any

from foretell.system import DeviceName, DtypeName


def option(help: str, *, default: Any = None, sets: str = "") -> Any:
    """A field of such a dataclass. sets: the field of the configuration that the option sets: `tokenizer.kind`."""
    return field(default=default, metadata={"help": help, "sets": sets})


def help_of(options: type, name: str) -> str:
    """The help of an option, for one with the same meaning elsewhere."""
    return next(each.metadata["help"] for each in fields(options) if each.name == name)


def settings_of(options: Any) -> Iterator[tuple[str, str, str, Any]]:
    """Name, section, field and value of each option that sets a field of the configuration, if it is given."""
    for each in fields(options):
        value = getattr(options, each.name)
        if each.metadata.get("sets") and value != each.default:
            section, _, key = each.metadata["sets"].partition(".")
            yield each.name, section, key, value


@dataclass(frozen=True, kw_only=True)
class DeviceOptions:
    """The device and the precision of a model."""

    device: DeviceName = option("Where to compute: auto, cpu, cuda or mps.", default="auto")
    dtype: DtypeName = option("Precision: auto, float32 or bfloat16.", default="auto")
