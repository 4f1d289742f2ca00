"""Errors in a configuration as one line: where, what, and the nearest key that exists."""

from __future__ import annotations

from pydantic import BaseModel, ValidationError

from foretell.errors import ConfigError, did_you_mean

# Sizes of a model that follow from others
DERIVED_SIZES = ("num_kv_heads", "head_width", "feedforward_width")


def check_known(key: str, known: tuple[str, ...], what: str) -> None:
    """Refuse a key that is not known, with the nearest that is."""
    if key not in known:
        raise ConfigError(f"unknown {what} '{key}'{did_you_mean(key, known) or ' (known: ' + ', '.join(known) + ')'}")


def one_line(section: type[BaseModel], error: ValidationError, where: str) -> str:
    """The first of pydantic's findings as `where.field: what (what to do)`."""
    findings = error.errors(include_url=False)
    # A size that follows from others is missing only because one of those is wrong
    primary = [finding for finding in findings if not finding["loc"] or finding["loc"][-1] not in DERIVED_SIZES]
    finding = (primary or findings)[0]
    path = ".".join(str(part) for part in (*([where] if where else []), *finding["loc"]))
    if finding["type"] == "extra_forbidden":
        owner = _section_at(section, finding["loc"][:-1])
        known = tuple(owner.model_fields)
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
