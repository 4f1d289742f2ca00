"""`foretell info MODEL`: every weight's path, shape and size, and every name that can be traced."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from foretell.cli.arguments import Json, ModelArgument
from foretell.cli.terminal import open_model, print_json, results

if TYPE_CHECKING:
    from foretell.language_model import LanguageModel


def info(model: ModelArgument, /, *, json: Json = False) -> None:
    """Every weight's path, shape and size, and every name that can be traced.

    The path of a module is also the name of its output, and the key of its
    weights on disk.
    """
    loaded = open_model(model, "cpu", "auto")
    facts = describe(loaded)
    if json:
        print_json(facts)
    else:
        show(facts)


def describe(loaded: LanguageModel) -> dict[str, Any]:
    """Configuration, tokenizer, cost and all weights, as plain values."""
    from foretell.insight.points import Derived, make_catalog
    from foretell.model.cost import cache_bytes_per_token, training_flops_per_token

    decoder, tokenizer = loaded.decoder, loaded.tokenizer
    weights = [
        {"path": path, "shape": list(weight.shape), "parameters": weight.numel()}
        for path, weight in decoder.named_parameters()
    ]
    return {
        "name": loaded.name,
        "config": decoder.config.model_dump(mode="json"),
        "tokenizer": {"kind": tokenizer.kind, "vocab_size": tokenizer.vocab_size, "special": tokenizer.special_tokens},
        "parameters": sum(one["parameters"] for one in weights),
        "training_flops_per_token": training_flops_per_token(decoder.config),
        "cache_bytes_per_token": cache_bytes_per_token(decoder.config, element_bytes=4),
        "weights": weights,
        "modules": [path for path, _ in decoder.named_modules() if path],
        "names": [
            {"name": name, "derived": isinstance(entry, Derived)}
            for name, entry in make_catalog(decoder).entries.items()
        ],
    }


def show(facts: dict[str, Any]) -> None:
    """The facts as a table that fits 80 columns."""
    console = results()
    config, tokenizer = facts["config"], facts["tokenizer"]
    console.print(facts["name"], style="bold")
    console.print(
        f"{facts['parameters']:,} parameters: {config['num_layers']} layers, {config['num_heads']} heads of "
        f"{config['head_width']}, width {config['width']}, context {config['context_length']}"
    )
    console.print(
        f"{config['position']} positions, {config['norm']} ({config['norm_placement']}), "
        f"{config['feedforward']} feed-forward of {config['feedforward_width']}, {config['activation']}"
    )
    console.print(f"tokenizer: {tokenizer['kind']}, {tokenizer['vocab_size']:,} tokens")
    console.print(
        f"cost: {facts['training_flops_per_token'] / 1e6:,.1f} MFLOP to train on a token, "
        f"{facts['cache_bytes_per_token']:,} bytes of cache a token"
    )
    console.print()
    for weight in facts["weights"]:
        shape = " x ".join(f"{size:,}" for size in weight["shape"])
        console.print(f"{weight['path']:<48} {shape:>16} {weight['parameters']:>13,}")
    console.print("\nvalues to trace and explain (*: any layer; derived: from recorded ones)")
    for pattern, is_derived in name_patterns(facts["names"]).items():
        console.print(f"{pattern:<48} {'derived' if is_derived else ''}".rstrip())


def name_patterns(names: list[dict[str, Any]]) -> dict[str, bool]:
    """All names, those of the layers written once; and is it a derived one?"""
    return {re.sub(r"(?<=^trunk\.blocks\.)\d+", "*", one["name"]): one["derived"] for one in names}
