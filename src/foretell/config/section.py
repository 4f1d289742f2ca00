"""`Section`: the base class of every part of the configuration, which checks itself when it is made."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from foretell.config.field_names import with_own_names
from foretell.config.messages import one_line
from foretell.errors import ConfigError

FOLLOWS: Any = None  # the default of a field that follows from others, for type checkers; None itself is not valid


class SectionType(type(BaseModel)):
    """The class of `Section`: calling a section with wrong values raises a one-line `ConfigError`.

    Pydantic validates nested sections without this call, so that its findings keep their whole path.
    """

    if not TYPE_CHECKING:  # a signature here would hide the fields from type checkers

        def __call__(cls, *args: Any, **values: Any) -> Any:
            try:
                return super().__call__(*args, **values)
            except ValidationError as error:
                raise ConfigError(one_line(cls, error, "")) from None


class Section(BaseModel, metaclass=SectionType):
    """A part of the configuration: frozen, and closed to unknown keys.

    Values that are unknown, missing, of the wrong type or contradictory raise a one-line `ConfigError`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _translate(cls, values: Any) -> Any:
        return with_own_names(cls, values)


def raise_first(problems: Mapping[str, bool]) -> None:
    for message, wrong in problems.items():
        if wrong:
            raise ValueError(message)


AnySection = TypeVar("AnySection", bound=Section)


def make_section(section: type[AnySection], values: Mapping[str, Any], where: str = "") -> AnySection:
    """Build a section from plain values, converting text; what is wrong with them is a `ConfigError` of one line."""
    try:
        return section.model_validate(dict(values))
    except ValidationError as error:
        raise ConfigError(one_line(section, error, where)) from None
