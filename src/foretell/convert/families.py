"""The families that can be read and written, by the `model_type` of their config.json, and which one fits a model."""

from __future__ import annotations

from collections.abc import Mapping

from foretell.config import ModelConfig
from foretell.convert.config_json import differences
from foretell.convert.family import Family
from foretell.convert.gpt import GPT1, GPT2
from foretell.convert.llama import LLAMA, MISTRAL, QWEN2, QWEN3
from foretell.errors import ConfigError, did_you_mean

# in order of preference: if several can express a model, the first is chosen
Families = Mapping[str, Family]
FAMILIES: Families = {family.name: family for family in (GPT2, GPT1, LLAMA, MISTRAL, QWEN2, QWEN3)}


def find_family(name: str, families: Families = FAMILIES) -> Family:
    """The family of this name; an unknown name is a `ConfigError` that suggests the nearest."""
    if name not in families:
        known = ", ".join(families)
        raise ConfigError(f"unknown family '{name}'{did_you_mean(name, families)} (known: {known})")
    return families[name]


def choose_family(config: ModelConfig, name: str | None = None, families: Families = FAMILIES) -> Family:
    """The named family, or the first that can express the configuration; a `ConfigError` if none can."""
    if name is not None:
        family = find_family(name, families)
        check_expressible(config, family, families)
        return family
    missing = {family.name: differences(config, family) for family in families.values()}
    fitting = next((name for name, fields in missing.items() if not fields), None)
    if fitting is None:
        nearest = min(missing, key=lambda name: len(missing[name]))
        raise ConfigError(f"no family can express this model; {describe(families[nearest], missing[nearest])}")
    return families[fitting]


def check_expressible(config: ModelConfig, family: Family, families: Families = FAMILIES) -> None:
    """Raise `ConfigError` if the family cannot express the configuration, naming a family that can."""
    missing = differences(config, family)
    if missing:
        others = [other.name for other in families.values() if not differences(config, other)]
        hint = f"; {' and '.join(others)} can" if others else ""
        raise ConfigError(f"{describe(family, missing)}{hint}")


def describe(family: Family, missing: dict[str, tuple[object, object]]) -> str:
    """`gpt2 cannot express position = 'rotary' (it has 'learned'), norm = ...`, at most three fields."""
    parts = [f"{field} = {ours!r} (it has {theirs!r})" for field, (ours, theirs) in list(missing.items())[:3]]
    more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
    return f"{family.name} cannot express {', '.join(parts)}{more}"
