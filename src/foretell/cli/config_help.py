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
MEANINGS = {
    "model": {
        "num_layers": "blocks",
        "num_heads": "query heads per layer",
        "num_kv_heads": "key and value heads; fewer than num_heads is grouped-query attention",
        "width": "size of the residual stream",
        "head_width": "size of a head; left out: width / num_heads",
        "feedforward_width": "left out: 4 * width, gated: 8/3 * width",
        "context_length": "the most tokens that the model can see",
        "vocab_size": "rows of the embedding; left out: the tokenizer's",
        "position": "how positions are represented",
        "rope_theta": "base of the rotary frequencies",
        "rope_scaling": "rotary positions for a longer context than the model was trained with",
        "norm": "kind of normalisation",
        "norm_placement": "before or after each part of a block",
        "norm_epsilon": "added to the variance",
        "qk_norm": "normalise queries and keys",
        "feedforward": "kind of feed-forward layer",
        "activation": "of the feed-forward layer",
        "attention_output": "a projection of the heads' outputs",
        "attention_residual": "add the attention's output to the stream",
        "residual": "parallel: attention and feed-forward read the same stream, through two norms or a shared one",
        "bias": "biases: true, false, or attention, attention_output, feedforward, norm, head",
        "window": "how many positions back a query sees, itself included; a number or one per layer",
        "tie_embeddings": "the head uses the weights of the token embedding",
        "dropout": "a rate, or embedding, attention, residual",
        "init": "whose initial weights",
    },
    "tokenizer": {
        "kind": "what a token is",
        "vocab_size": "number of entries, for bpe and words",
        "split": "how bpe cuts text into words before merging; none: qwen2",
        "start_token": "a special token to put before every text",
    },
    "data": {
        "text_field": "the field or column that holds the text",
        "validation_fraction": "share of the documents held out",
        "document_mask": "hide other documents that were packed into the same row",
        "shuffle_documents": "join the documents in another random order in every epoch",
        "window_length": "tokens per row of training; none: the context",
        "special": "names in the data that are read as special tokens",
        "rows": "each line or record is a row of its own, padded, never joined with another",
        "prompt_field": "rows of two parts: the field or column with the prompt",
        "answer_field": "the field or column with the answer",
        "separator": "between prompt and answer",
        "loss_on": "all tokens or those of the answer; left out: the answer where there is one",
    },
    "training": {
        "steps": "optimizer steps",
        "batch_size": "rows per step, over all micro-batches",
        "gradient_accumulation_steps": "micro-batches per step",
        "learning_rate": "the largest, after the warm-up",
        "final_learning_rate_share": "where the schedule ends, as a share of learning_rate",
        "warmup_steps": "steps in which the rate rises",
        "schedule": "how the rate falls",
        "decay_fraction": "stable_decay: the last share of the steps, falling linearly",
        "optimizer": "the optimizer of the matrices",
        "frozen": "globs over weights that are not trained",
        "weight_decay": "for weights of two dimensions or more",
        "weight_decay_by_path": "glob = decay; the last match counts",
        "momentum": "muon and sgd",
        "beta1": "adamw, also for what muon leaves to it",
        "beta2": "adamw, also for what muon leaves to it",
        "epsilon": "adamw, also for what muon leaves to it",
        "clip_norm": "largest norm of the gradient; none: not clipped",
        "compile": "blocks and loss by torch's compiler; none: on a GPU",
        "parallel": "ddp: a copy of the model on every process; fsdp: a share of it",
        "checkpoint_activations": "globs of modules whose values are computed again for the gradient",
        "label_smoothing": "share of the target's probability given to all tokens",
        "patience": "evaluations without a better validation loss before training stops",
        "evaluate_every": "steps between evaluations",
        "evaluation_tokens": "validation tokens per evaluation",
        "log_every": "steps between lines of metrics.jsonl",
        "sample_every": "steps between samples",
        "sample_prompts": "texts to continue; none: the beginning of the validation text",
        "checkpoint_every": "steps between checkpoints",
        "keep_checkpoints": "the last few; the best is always kept",
        "seed": "the seed of everything random",
    },
}
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
            for line in wrap(MEANINGS[section][name], WIDTH - INDENT):
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
