"""In which settings runs differ."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from foretell.config import Config, Section, make_section
from foretell.runs.run import RUN, Run


def differing_settings(runs: Sequence[Run]) -> dict[str, list[Any]]:
    """`section.field` -> its value in each run, for every setting that is not the same in all.

    A run of an older version has what was the rule then. Data, device and precision count as settings here.
    """
    settings = [settings_of(run) for run in runs]
    values = {name: [one[name] for one in settings] for name in settings[0]}
    return {name: found for name, found in values.items() if any(value != found[0] for value in found)}


def settings_of(run: Run) -> dict[str, Any]:
    """All settings of a run by their paths, as JSON has them."""
    record = run.record()
    config = make_section(Config, record["config"], str(run.directory / RUN))
    return {key: record[key] for key in ("data", "device", "dtype")} | flattened(config)


def flattened(section: Section, prefix: str = "") -> dict[str, Any]:
    """A section's fields, and those of the sections in it, as `a.b.c` -> value."""
    found: dict[str, Any] = {}
    for key, value in section.model_dump(mode="json").items():
        inner = getattr(section, key)
        found |= flattened(inner, f"{prefix}{key}.") if isinstance(inner, Section) else {prefix + key: value}
    return found
