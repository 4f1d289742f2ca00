"""The families that can be read and written, by the `model_type` of their config.json."""

from __future__ import annotations

from collections.abc import Mapping

from foretell.config import ModelConfig
from foretell.convert.family import Family
from foretell.convert.gpt1 import GPT1
from foretell.convert.gpt2 import GPT2
from foretell.convert.llama import LLAMA, MISTRAL
from foretell.convert.qwen import QWEN2, QWEN3
from foretell.convert.settings import differences
from foretell.errors import ConfigError, did_you_mean

# in the order in which a model is offered to them: where several fit, the first takes it
Families = Mapping[str, Family]
FAMILIES: Families = {one.name: one for one in (GPT2, GPT1, LLAMA, MISTRAL, QWEN2, QWEN3)}


def find_family(name: str, families: Families = FAMILIES) -> Family:
    """The family of this name; any other is a `ConfigError` that names the nearest."""
    if name not in families:
        known = ", ".join(families)
        raise ConfigError(f"unknown family '{name}'{did_you_mean(name, families)} (known: {known})")
    return families[name]


def choose_family(config: ModelConfig, name: str | None = None, families: Families = FAMILIES) -> Family:
    """The named family, or the first that can express the configuration; where none can, a `ConfigError` says why."""
    if name is not None:
        family = find_family(name, families)
        check_expressible(config, family, families)
        return family
    missed = {one.name: differences(config, one) for one in families.values()}
    fitting = next((name for name, missing in missed.items() if not missing), None)
    if fitting is None:
        nearest = min(missed, key=lambda name: len(missed[name]))
        raise ConfigError(f"no family can express this model; {describe(families[nearest], missed[nearest])}")
    return families[fitting]


def check_expressible(config: ModelConfig, family: Family, families: Families = FAMILIES) -> None:
    """Refuse a configuration that the family has no words for (`ConfigError`), and say which other has."""
    missing = differences(config, family)
    if missing:
        others = [one.name for one in families.values() if not differences(config, one)]
        hint = f"; {' and '.join(others)} can" if others else ""
        raise ConfigError(f"{describe(family, missing)}{hint}")


def describe(family: Family, missing: dict[str, tuple[object, object]]) -> str:
    """`gpt2 cannot express position = 'rotary' (it has 'learned'), norm = ...`, three fields at most."""
    parts = [f"{field} = {ours!r} (it has {theirs!r})" for field, (ours, theirs) in list(missing.items())[:3]]
    more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
    return f"{family.name} cannot express {', '.join(parts)}{more}"
