"""Parts of saved models, fields of run.json and files that earlier versions wrote and that are not read any more."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# kind of a part in config.json -> the difference without it, for the log; empty: none
PARTS = {
    "side_counts": "",
    "tfidf": "the figures of its training are of a mixture with TF-IDF, and now the decoder answers alone",
}
FIELDS = {"finetuning": ("folds", "ensemble")}  # section of a run's configuration -> its fields
FILES = ("folds",)  # of a run


def without_retired_fields(config: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration in a run.json without fields of FIELDS. Its digest is of the configuration with them."""
    return {
        name: section and {key: value for key, value in section.items() if key not in FIELDS.get(name, ())}
        for name, section in config.items()
    }
