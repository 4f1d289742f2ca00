"""A config.json and a `ModelConfig`, each from the other by a family's table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from foretell.config import Bias, ModelConfig, make_section
from foretell.convert.family import FIXED, HARMLESS, NOTED, REQUIRED, ROPE, Family, Field
from foretell.convert.rope import read_rope, write_rope
from foretell.errors import ConfigError

NESTED = ("bias", "dropout")


def read_settings(family: Family, values: Mapping[str, Any]) -> tuple[ModelConfig, list[str]]:
    """The configuration that a config.json describes, and what is to be said about it.

    What would change the logits and cannot be expressed is a `ConfigError` that names the field.
    """
    check_fixed(family, values)
    fields: dict[str, Any] = dict(flat(family.shared))
    for name, field in family.fields.items():
        fields |= dict.fromkeys(field.ours, read_field(name, field, values))
    if family.is_rotary:
        fields |= read_rope(values)
    return make_section(ModelConfig, nested(fields)), unused(family, values)


def read_field(name: str, field: Field, values: Mapping[str, Any]) -> Any:
    """Our value for one of their fields."""
    value = values.get(name, field.default)
    if value is REQUIRED:
        raise ConfigError(f"{name} is missing")
    if isinstance(value, list | dict):
        raise ConfigError(f"{name} = {str(value)[:60]} is no single value")
    if field.words is None:
        return value
    if value not in field.words:
        raise ConfigError(f"{name} = {value!r} is not supported; known: {', '.join(field.words)}")
    return field.words[value]


def check_fixed(family: Family, values: Mapping[str, Any]) -> None:
    """Refuse their fields that have another value than we can express."""
    for name, allowed in {**FIXED, **family.fixed}.items():
        value = values.get(name, allowed[0])
        if isinstance(value, list):  # one entry a layer: distinct ones count
            value = [entry for place, entry in enumerate(value) if entry not in value[:place]]
        if value not in allowed:
            raise ConfigError(f"{name} = {str(value)[:60]} is not supported for {family.name}")


def unused(family: Family, values: Mapping[str, Any]) -> list[str]:
    """A line for every field that is on and was not used."""
    noted = {**NOTED, **family.noted}
    known = {*family.fields, *family.fixed, *FIXED, *family.harmless, *HARMLESS, *(ROPE if family.is_rotary else ())}
    notes = [f"{name} is left out: {noted[name]}" for name in noted if values.get(name)]
    strange = [name for name, value in values.items() if value and name not in known and name not in noted]
    return notes + [f"{name} is not known here and was not used" for name in strange]


def write_settings(family: Family, config: ModelConfig) -> dict[str, Any]:
    """The fields of a config.json, as near as the family comes to the configuration (see `differences`)."""
    ours = meaningful(config)
    written = {name: write_field(field, ours, config) for name, field in family.fields.items()}
    fixed = {name: allowed[0] for name, allowed in family.fixed.items() if allowed[0] is not None}
    return {**written, **fixed, **(write_rope(config) if family.is_rotary else {})}


def write_field(field: Field, ours: Mapping[str, Any], config: ModelConfig) -> Any:
    """Their value for one of our fields; their default where they have no word for ours."""
    value = ours.get(field.ours[0], flat(config.model_dump())[field.ours[0]])
    if isinstance(value, tuple):  # a window for each layer, where one number is to stand
        return value[0]
    if field.words is None:
        return value
    return next((theirs for theirs, word in field.words.items() if word == value), field.default)


def differences(config: ModelConfig, family: Family) -> dict[str, tuple[Any, Any]]:
    """Every field that would not survive a journey through the family's config.json: (ours, what would come back)."""
    if family.splits_width and config.width % config.num_heads:
        return {"width": (config.width, f"multiples of num_heads {config.num_heads}")}
    ours = meaningful(config)
    try:
        back = meaningful(read_settings(family, write_settings(family, config))[0])
    except ConfigError:  # a shape that even its own fields contradict, such as heads that do not divide the width
        return {"head_width": (config.head_width, "width / num_heads")}
    # a field that has no say over there is lacking because of another one that differs
    return {name: (value, back[name]) for name, value in ours.items() if name in back and back[name] != value}


def meaningful(config: ModelConfig) -> dict[str, Any]:
    """The fields that have a say in the logits, under dotted names."""
    values = flat(config.model_dump())
    values["window"] = config.windows[0] if len(set(config.windows)) == 1 else config.windows
    moot = {
        "init": True,
        **{f"dropout.{name}": True for name in ("embedding", "attention", "residual")},
        "rope_theta": config.position != "rotary",
        "rope_scaling": config.position != "rotary",
        "bias.norm": config.norm != "layernorm",
        "bias.attention_output": not config.attention_output,
        "norm_epsilon": config.norm == "none",
        "norm_placement": config.norm == "none",
        **dict.fromkeys(("activation", "feedforward_width", "bias.feedforward"), config.feedforward == "none"),
    }
    return {name: value for name, value in values.items() if not moot.get(name, False)}


def flat(values: Mapping[str, Any]) -> dict[str, Any]:
    """`{"bias": {"norm": True}}` as `{"bias.norm": True}`; a section given as one value stands for all its fields."""
    result = {name: value for name, value in values.items() if name not in NESTED}
    for section in NESTED:
        inner = values.get(section, {})
        inner = Bias.model_validate(inner).model_dump() if isinstance(inner, bool) else inner
        result |= {f"{section}.{name}": value for name, value in inner.items()}
    return result


def nested(values: Mapping[str, Any]) -> dict[str, Any]:
    """The opposite of `flat`."""
    result: dict[str, Any] = {}
    for name, value in values.items():
        section, _, key = name.rpartition(".")
        if section:
            result.setdefault(section, {})[key] = value
        else:
            result[name] = value
    return result
