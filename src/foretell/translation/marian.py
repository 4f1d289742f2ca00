"""Marian checkpoints (Helsinki-NLP/opus-mt) in Hugging Face's layout: configuration and weights.

Junczys-Dowmunt et al. 2018; the layout is transformers' MarianMTModel. It has all sines first, then all cosines,
whereas ours alternate, so positions become a table of vectors. Sentencepiece files (source.spm, target.spm) are not
read: sentences are token ids.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from foretell.config.section import make_section
from foretell.convert.families import ACTIVATION_WORDS
from foretell.convert.huggingface_files import check_files, find_tensors
from foretell.errors import CheckpointError, ConfigError
from foretell.model.init import fill_decoder
from foretell.storage.files import CONFIG, WEIGHTS, read_json
from foretell.storage.safetensors_files import check_finite, read_tensor
from foretell.storage.safetensors_header import StoredTensor, check_shapes
from foretell.text.tokenizer_training import vocabulary_tokenizer
from foretell.translation.config import EncoderDecoderConfig
from foretell.translation.encoder_decoder import EncoderDecoder, empty_encoder_decoder, weight_shapes
from foretell.translation.pairs import Vocabulary

MODEL_TYPE = "marian"
EQUAL = (("encoder_attention_heads", "decoder_attention_heads"), ("encoder_ffn_dim", "decoder_ffn_dim"))
UNSUPPORTED = ("normalize_before", "normalize_embedding", "add_final_layer_norm")  # used by other models of this layout
# Our names within a block, and their names within a layer
BLOCK = {
    "attention.query": "self_attn.q_proj",
    "attention.key": "self_attn.k_proj",
    "attention.value": "self_attn.v_proj",
    "attention.output": "self_attn.out_proj",
    "attention_norm": "self_attn_layer_norm",
    "cross_attention.query": "encoder_attn.q_proj",
    "cross_attention.key": "encoder_attn.k_proj",
    "cross_attention.value": "encoder_attn.v_proj",
    "cross_attention.output": "encoder_attn.out_proj",
    "cross_attention_norm": "encoder_attn_layer_norm",
    "feedforward.up": "fc1",
    "feedforward.down": "fc2",
    "feedforward_norm": "final_layer_norm",
}


def is_marian(directory: Path) -> bool:
    return read_json(directory / CONFIG).get("model_type") == MODEL_TYPE


def read_marian(
    directory: Path, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32
) -> tuple[EncoderDecoder, Vocabulary]:
    """Read a Marian model for inference; a `CheckpointError` names any unsupported feature."""
    check_files(directory)
    values = read_json(directory / CONFIG)
    try:
        config = read_config(values)
    except ConfigError as error:
        raise CheckpointError(f"{directory / CONFIG}: {error}") from None
    stored = find_tensors(directory)
    weights = {path: tensor.to(device) for path, tensor in read_weights(stored, config, dtype, directory).items()}
    check_finite(weights, directory / WEIGHTS)
    model = empty_encoder_decoder(config)
    fill_decoder(model, weights)
    return model.eval(), read_vocabulary(values, config, directory)


def read_config(values: Mapping[str, Any]) -> EncoderDecoderConfig:
    """The shape described by a config.json; a `ConfigError` if it cannot be expressed."""
    for key in UNSUPPORTED:
        if values.get(key):
            raise ConfigError(f"'{key}' is not supported")
    for first, second in EQUAL:
        if values.get(first) != values.get(second):
            raise ConfigError(f"{first} and {second} differ, which is not supported")
    activation = values.get("activation_function", "gelu")
    if activation not in ACTIVATION_WORDS:
        raise ConfigError(f"unknown activation_function '{activation}'; known: {', '.join(ACTIVATION_WORDS)}")
    is_shared = values.get("share_encoder_decoder_embeddings", True)
    sizes = {
        "num_layers": values.get("decoder_layers"),
        "encoder_layers": values.get("encoder_layers"),
        "num_heads": values.get("decoder_attention_heads"),
        "width": values.get("d_model"),
        "feedforward_width": values.get("decoder_ffn_dim"),
        "context_length": values.get("max_position_embeddings"),
        "vocab_size": values.get("decoder_vocab_size") or values.get("vocab_size"),
        "source_vocab_size": None if is_shared else values.get("vocab_size"),
    }
    kinds = {
        "position": "learned",
        "norm_placement": "post",
        "activation": ACTIVATION_WORDS[activation],
        "scale_embeddings": bool(values.get("scale_embedding", False)),
        "tie_embeddings": bool(values.get("tie_word_embeddings", True)),
        "bias": {"head": True},
    }
    return make_section(EncoderDecoderConfig, {**sizes, **kinds})


def read_weights(
    stored: Mapping[str, StoredTensor], config: EncoderDecoderConfig, dtype: torch.dtype, directory: Path
) -> dict[str, Tensor]:
    """Our weights by path. Missing weights, wrong shapes and unused weights are a `CheckpointError`."""
    where, weights, theirs = directory / WEIGHTS, {}, {}
    expected: dict[str, tuple[int, ...]] = {}  # keyed by their names
    for path, shape in weight_shapes(config).items():
        if path.endswith("embed.position.weight"):
            weights[path] = sinusoids(*shape).to(dtype)
            continue
        theirs[path] = their_name(path, config)
        expected[theirs[path]] = (1, *shape) if path == "head.bias" else shape
    check_shapes(stored, expected, where)
    weights |= {path: read_tensor(stored[name], dtype) for path, name in theirs.items()}
    weights["head.bias"] = weights["head.bias"][0]
    repeated = ("embed_tokens.weight", "embed_positions.weight", "lm_head.weight")  # copies of shared and fixed tables
    left = [name for name in stored if name not in expected and not name.endswith(repeated)]
    if left:
        raise CheckpointError(f"{where} has a weight '{left[0]}' that the model does not")
    return weights


def their_name(path: str, config: EncoderDecoderConfig) -> str:
    if path == "head.bias":
        return "final_logits_bias"
    if path == "head.weight":
        return "lm_head.weight"
    side = "encoder" if path.startswith("encoder.") else "decoder"
    own, _, kind = path.removeprefix("encoder.").rpartition(".")
    if own == "embed.token":
        return "model.shared.weight" if config.source_vocab_size is None else f"model.{side}.embed_tokens.weight"
    layer, _, inner = own.removeprefix("trunk.blocks.").partition(".")
    return f"model.{side}.layers.{layer}.{BLOCK[inner]}.{kind}"


def sinusoids(positions: int, width: int) -> Tensor:
    """Vectors (positions, width) with all sines first, then all cosines, as in Marian."""
    pairs = torch.arange(0, width, 2, dtype=torch.float64)
    angles = torch.arange(positions, dtype=torch.float64)[:, None] * 10_000.0 ** (-pairs / width)
    return torch.cat((angles.sin(), angles.cos()), dim=-1).float()


def read_vocabulary(values: Mapping[str, Any], config: EncoderDecoderConfig, directory: Path) -> Vocabulary:
    """A vocabulary whose texts are ids, with the ids that begin and end a sentence."""
    ends, start = values.get("eos_token_id"), values.get("decoder_start_token_id")
    for name, token in (("eos_token_id", ends), ("decoder_start_token_id", start)):
        if not isinstance(token, int) or not 0 <= token < config.vocab_size:
            raise CheckpointError(f"{directory / CONFIG}: {name} is {token!r}, which is not a token id")
    special = dict.fromkeys((str(start), str(ends)))
    source, target = (
        vocabulary_tokenizer([str(token) for token in range(size)], special=list(special))
        for size in (config.source_vocab_size or config.vocab_size, config.vocab_size)
    )
    return Vocabulary(source, target, int(start or 0), int(ends or 0), int(ends or 0))
