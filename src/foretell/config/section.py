"""`Section`: the base class of every part of the configuration, which checks itself when it is made.

An error is one line: where, what, and the nearest key that exists.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from foretell.config.aliases import with_own_names
from foretell.errors import ConfigError, did_you_mean

FOLLOWS: Any = None  # the default of a field that follows from others, for type checkers; None itself is not valid
DERIVED_SIZES = ("num_kv_heads", "head_width", "feedforward_width")  # sizes of a model that follow from others


class SectionType(type(BaseModel)):
    """The class of `Section`: calling a section with wrong values raises a one-line `ConfigError`.

    Pydantic validates nested sections without this call, so its errors keep the whole path.
    """

    if not TYPE_CHECKING:  # a signature here would hide the fields from type checkers

        def __call__(cls, *args: Any, **values: Any) -> Any:
            try:
                return super().__call__(*args, **values)
            except ValidationError as error:
                raise ConfigError(_one_line(cls, error, "")) from None


class Section(BaseModel, metaclass=SectionType):
    """A part of the configuration: frozen, and closed to unknown keys.

    Values that are unknown, missing, of the wrong type or contradictory raise a one-line `ConfigError`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _translate(cls, values: Any) -> Any:
        return with_own_names(cls, values)


AnySection = TypeVar("AnySection", bound=Section)


def make_section(section: type[AnySection], values: Mapping[str, Any], where: str = "") -> AnySection:
    """A section from plain values, converting text; an error names the path of the field, below `where`."""
    try:
        return section.model_validate(dict(values))
    except ValidationError as error:
        raise ConfigError(_one_line(section, error, where)) from None


def check_known(key: str, known: tuple[str, ...], what: str) -> None:
    """Refuse a key that is not known, with the nearest that is."""
    if key not in known:
        raise ConfigError(f"unknown {what} '{key}'{did_you_mean(key, known) or ' (known: ' + ', '.join(known) + ')'}")


def raise_first(problems: Mapping[str, bool]) -> None:
    """Raise a `ValueError` with the first message whose condition is true."""
    for message, is_wrong in problems.items():
        if is_wrong:
            raise ValueError(message)


def _one_line(section: type[BaseModel], error: ValidationError, where: str) -> str:
    """The first of pydantic's errors as `where.field: what (what to do)`."""
    findings = error.errors(include_url=False)
    # A size that follows from others is missing only because one of the others is wrong
    primary = [finding for finding in findings if not finding["loc"] or finding["loc"][-1] not in DERIVED_SIZES]
    finding = (primary or findings)[0]
    path = ".".join(str(part) for part in (*([where] if where else []), *finding["loc"]))
    if finding["type"] == "extra_forbidden":
        known = tuple(_section_at(section, finding["loc"][:-1]).model_fields)
        near = did_you_mean(str(finding["loc"][-1]), known)
        return f"unknown key '{path}'{near or '; known here: ' + ', '.join(known)}"
    if finding["type"] == "missing":
        return f"missing key '{path}'"
    message = finding["msg"].removeprefix("Value error, ")
    if finding["type"] == "value_error":
        return f"{path}: {message}" if path else message
    return f"{path} = {finding['input']!r}: {message[0].lower() + message[1:]}"


def _section_at(section: type[BaseModel], location: tuple[int | str, ...]) -> type[BaseModel]:
    """The nested section at the path of an error, as far as there is one."""
    for part in location:
        annotation = section.model_fields[str(part)].annotation if str(part) in section.model_fields else None
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            section = annotation
    return section
