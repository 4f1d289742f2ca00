"""`foretell train --help-config`: every field of the configuration with its type, default and meaning."""

from __future__ import annotations

import types
from textwrap import wrap
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel

from foretell.cli.terminal import results
from foretell.config import DataConfig, ModelConfig, TokenizerConfig, TrainingConfig

SECTIONS: dict[str, type[BaseModel]] = {
    "model": ModelConfig,
    "tokenizer": TokenizerConfig,
    "data": DataConfig,
    "training": TrainingConfig,
}
CHOSEN = "chosen"
# Defaults that the size, the text and the machine decide
CHOSEN_FIELDS = frozenset(
    f"{section}.{field}"
    for section, fields in {
        "model": "num_layers num_heads num_kv_heads width head_width feedforward_width context_length vocab_size "
        "position norm qk_norm feedforward activation bias tie_embeddings dropout",
        "tokenizer": "vocab_size",
        "training": "steps batch_size learning_rate warmup_steps optimizer schedule final_learning_rate_share "
        "evaluate_every evaluation_tokens log_every sample_every checkpoint_every",
    }.items()
    for field in fields.split()
)
INDENT, WIDTH = 6, 80


def show_config() -> None:
    """Print all sections."""
    console = results()
    console.print("Fields for --config FILE (TOML, a table per section) and as options, such as --training.patience 5")
    console.print("chosen: by the size, the text and the machine; the log of training says why")
    for section, fields in SECTIONS.items():
        console.print(f"\n[{section}]", style="bold")
        for name, info in fields.model_fields.items():
            default = CHOSEN if f"{section}.{name}" in CHOSEN_FIELDS else written(info.get_default())
            console.print(f"  --{section}.{name.replace('_', '-')} {kind_of(info.annotation)} = {default}")
            for line in wrap(info.description or "", WIDTH - INDENT):
                console.print(" " * INDENT + line, style="dim")


def kind_of(annotation: Any) -> str:
    """A type in short: its choices, or int, float, bool, text, list, table."""
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return "|".join(map(str, parts))
    if origin in (Union, types.UnionType):
        return "|".join("none" if part is type(None) else kind_of(part) for part in parts)
    if origin is tuple:
        return "list"
    if origin is dict or (isinstance(annotation, type) and issubclass(annotation, BaseModel)):
        return "table"
    return {int: "int", float: "float", bool: "bool", str: "text"}.get(annotation, "int")


def written(value: Any) -> str:
    """A default as it is written in TOML."""
    if isinstance(value, BaseModel):
        return ", ".join(f"{name} {written(part)}" for name, part in value)
    if value is None or value in ((), {}):
        return "none"
    return str(value).lower() if isinstance(value, bool) else str(value)
