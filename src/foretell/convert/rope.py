"""Rotary positions in a config.json: rope_theta and rope_scaling, or rope_parameters, which newer files have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from foretell.config import ModelConfig
from foretell.errors import ConfigError

THETA = 10_000.0
# their name -> ours, by type
SCALINGS: dict[str, dict[str, str]] = {
    "default": {},
    "linear": {"factor": "factor"},
    "llama3": {
        "factor": "factor",
        "low_freq_factor": "low_frequency_factor",
        "high_freq_factor": "high_frequency_factor",
        "original_max_position_embeddings": "original_context_length",
    },
}
TYPE_KEYS = ("rope_type", "type")


def read_rope(values: Mapping[str, Any]) -> dict[str, Any]:
    """Our fields from theirs; what is not understood is refused by name (`ConfigError`)."""
    given = {name: values[name] for name in ("rope_parameters", "rope_scaling") if values.get(name)}
    for name, section in given.items():
        if not isinstance(section, dict):
            raise ConfigError(f"{name} = {section!r} is no section")
    if len(given) == 2 and _plain(given["rope_parameters"]) != _plain(given["rope_scaling"]):
        raise ConfigError("rope_parameters and rope_scaling contradict each other")
    name, section = next(iter(given.items()), ("rope_scaling", {}))
    thetas = [one["rope_theta"] for one in (values, section) if one.get("rope_theta") is not None]
    if len(thetas) == 2 and thetas[0] != thetas[1]:
        raise ConfigError(f"rope_theta = {thetas[0]!r} and {name}.rope_theta = {thetas[1]!r} contradict each other")
    return {"rope_theta": thetas[0] if thetas else THETA, "rope_scaling": _scaling(name, section, values)}


def _plain(section: Mapping[str, Any]) -> dict[str, Any]:
    """The section with its type under one name, and without what stands outside it as well."""
    rest = {key: value for key, value in section.items() if key not in (*TYPE_KEYS, "rope_theta")}
    return {**rest, "type": _type_of("", section)}


def _type_of(name: str, section: Mapping[str, Any]) -> str:
    kinds = [section[key] for key in TYPE_KEYS if section.get(key) is not None]
    if len(kinds) == 2 and kinds[0] != kinds[1]:
        raise ConfigError(f"{name}.rope_type = {kinds[0]!r} and {name}.type = {kinds[1]!r} contradict each other")
    return kinds[0] if kinds else "default"


def _scaling(name: str, section: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any] | None:
    kind = _type_of(name, section)
    if not isinstance(kind, str) or kind not in SCALINGS:
        raise ConfigError(f"{name} of type {kind!r} is not supported; known: {', '.join(SCALINGS)}")
    known = SCALINGS[kind]
    _refuse_unknown(name, kind, section)
    if kind == "default":
        return None
    found = {ours: section[theirs] for theirs, ours in known.items() if section.get(theirs) is not None}
    if kind == "llama3":
        found.setdefault("original_context_length", values.get("max_position_embeddings"))
    missing = [theirs for theirs, ours in known.items() if ours not in found]
    if missing:
        raise ConfigError(f"{name} of type {kind!r} has no {missing[0]}")
    return {"type": kind, **found}


def _refuse_unknown(name: str, kind: str, section: Mapping[str, Any]) -> None:
    for key, value in section.items():
        is_neutral = value is None or (key == "partial_rotary_factor" and value == 1)
        if key not in (*TYPE_KEYS, "rope_theta", *SCALINGS[kind]) and not is_neutral:
            raise ConfigError(f"{name}.{key} = {value!r} is not supported for type {kind!r}")


def write_rope(config: ModelConfig) -> dict[str, Any]:
    """Their fields from ours, in the older form, which every reader understands."""
    scaling = config.rope_scaling
    section = None
    if scaling is not None:
        values = scaling.model_dump()
        section = {"rope_type": scaling.type, **{key: values[ours] for key, ours in SCALINGS[scaling.type].items()}}
    return {"rope_theta": config.rope_theta, "rope_scaling": section}
