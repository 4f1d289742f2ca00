"""The key-value pairs of a GGUF file: a `ModelConfig` and a tokenizer, written and read back.

Fields are listed without the prefix of the architecture's name. A new architecture is one declaration here, and its
entry in `ARCHITECTURES`.

Only byte-level BPE (and plain bytes) can be exported. llama.cpp's token types: 1 normal, 3 control (our special tokens,
which are never encoded from text), 4 user-defined (added tokens that can be encoded from text), 5 unused. llama.cpp
selects the pre-tokenizer, which splits text before the merges, by name. With a wrong name it would silently give other
tokens, so the tokenizer's split is compared with the known ones.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import tokenizers

from foretell.config.model import ModelConfig
from foretell.convert.config_json import read_settings, write_settings
from foretell.convert.families import BLOCK, GPT2, LLAMA, QKV, QWEN2, QWEN3, choose_family
from foretell.convert.family import Family, Field, Permute, Rope, Row, Split
from foretell.errors import CheckpointError, ConfigError, TokenizerError
from foretell.text import Tokenizer, tokenizer_json
from foretell.text.tokenizer_json import TokenizerJson
from foretell.textbook.attention import Vector
from foretell.textbook.rotary import frequency

# Fields that are not written, because llama.cpp infers them: (the tensor that implies it, the value if it is present)
IMPLIED: Mapping[str, tuple[str, bool]] = {
    "tie_embeddings": ("output.weight", False),
    "attention_bias": ("blk.0.attn_q.bias", True),
    "feed_forward_bias": ("blk.0.ffn_up.bias", True),
}
SIZES = {
    "vocab_size": Field(("vocab_size",)),
    "context_length": Field(("context_length",)),
    "embedding_length": Field(("width",)),
    "block_count": Field(("num_layers",)),
    "feed_forward_length": Field(("feedforward_width",)),
    "attention.head_count": Field(("num_heads",)),
    "tie_embeddings": Field(("tie_embeddings",)),
}
ROTARY_SIZES = {
    **SIZES,
    "attention.head_count_kv": Field(("num_kv_heads",)),
    "attention.key_length": Field(("head_width",)),
    "attention.value_length": Field(("head_width",)),
    "rope.dimension_count": Field(("head_width",)),
    "attention.layer_norm_rms_epsilon": Field(("norm_epsilon",)),
}
ROWS = (
    Row("token_embd", ("embed.token",)),
    Row("output_norm", ("trunk.norm",)),
    Row("output", ("head",)),
    Row("blk.*.attn_norm", (f"{BLOCK}.attention_norm",)),
    Row("blk.*.attn_output", (f"{BLOCK}.attention.output",)),
    Row("blk.*.ffn_norm", (f"{BLOCK}.feedforward_norm",)),
    Row("blk.*.ffn_up", (f"{BLOCK}.feedforward.up",)),
    Row("blk.*.ffn_down", (f"{BLOCK}.feedforward.down",)),
)
GATED_ROWS = (
    *ROWS,
    Row("blk.*.attn_v", (f"{BLOCK}.attention.value",)),
    Row("blk.*.ffn_gate", (f"{BLOCK}.feedforward.gate",)),
)
ROTARY_ROWS = (
    *GATED_ROWS,
    Row("blk.*.attn_q", (f"{BLOCK}.attention.query",)),
    Row("blk.*.attn_k", (f"{BLOCK}.attention.key",)),
)
LLAMA_ROWS = (  # llama.cpp rotates pairs (2i, 2i+1) here
    *GATED_ROWS,
    Row("blk.*.attn_q", (f"{BLOCK}.attention.query",), (Permute(),)),
    Row("blk.*.attn_k", (f"{BLOCK}.attention.key",), (Permute(),)),
)
NORMED_ROWS = (
    *ROTARY_ROWS,
    Row("blk.*.attn_q_norm", (f"{BLOCK}.attention.query_norm",)),
    Row("blk.*.attn_k_norm", (f"{BLOCK}.attention.key_norm",)),
)

GPT2_FILE = Family(
    name="gpt2",
    architecture="GGUF",
    prefix="",
    rows=(*ROWS, Row("position_embd", ("embed.position",)), Row("blk.*.attn_qkv", QKV, (Split(),))),
    fields={**SIZES, "attention.layer_norm_epsilon": Field(("norm_epsilon",))},
    shared={**GPT2.shared, "activation": "gelu_tanh"},
)
QWEN2_FILE = Family(
    name="qwen2",
    architecture="GGUF",
    prefix="",
    rows=ROTARY_ROWS,
    fields=ROTARY_SIZES,
    shared={**QWEN2.shared, "activation": "silu"},
    rope=Rope(),
)
QWEN3_FILE = replace(QWEN2_FILE, name="qwen3", rows=NORMED_ROWS, shared={**QWEN3.shared, "activation": "silu"})
LLAMA_FILE = replace(
    QWEN2_FILE,
    name="llama",
    rows=LLAMA_ROWS,
    fields={
        **ROTARY_SIZES,
        "attention_bias": Field(("bias.attention", "bias.attention_output"), False),
        "feed_forward_bias": Field(("bias.feedforward",), False),
    },
    shared={**LLAMA.shared, "activation": "silu"},
)
ARCHITECTURES = {family.name: family for family in (GPT2_FILE, LLAMA_FILE, QWEN2_FILE, QWEN3_FILE)}
STRETCHED = ("llama",)  # for these, llama.cpp reads a factor for each rotary frequency
SQUARE = ("qwen2",)  # for these, llama.cpp requires query and output matrices of (width, width)
BASE, TYPE, FACTOR = "rope.freq_base", "rope.scaling.type", "rope.scaling.factor"
# Llama 3.1's rope scaling has no keys in GGUF: llama.cpp reads a tensor with a factor for each frequency.
FREQUENCIES = "rope_freqs.weight"
# Name in a config.json -> our key, from which the parity check recomputes the tensor
SCALING_KEYS = {
    "factor": "foretell.rope.factor",
    "low_freq_factor": "foretell.rope.low_frequency_factor",
    "high_freq_factor": "foretell.rope.high_frequency_factor",
    "original_max_position_embeddings": "foretell.rope.original_context_length",
}


def choose_architecture(config: ModelConfig, name: str | None = None) -> Family:
    """The named architecture, or the first that can express the configuration; a `ConfigError` if none can."""
    try:
        family = choose_family(config, name, ARCHITECTURES)
    except ConfigError as error:
        raise ConfigError(f"GGUF: {error}") from None
    if family.name in SQUARE and config.num_heads * config.head_width != config.width:
        raise ConfigError(
            f"GGUF: {family.name} cannot express head_width = {config.head_width}; llama.cpp reads heads of "
            "width / num_heads there"
        )
    scaling = config.rope_scaling
    if scaling is not None and scaling.type == "llama3" and family.name not in STRETCHED:
        raise ConfigError(
            f"GGUF: {family.name} cannot express rope_scaling of type 'llama3'; llama.cpp does not read it there"
        )
    return family


def write_metadata(family: Family, config: ModelConfig) -> dict[str, Any]:
    """The key-value pairs that describe the configuration, with full keys."""
    values = write_settings(family, config)
    theta, scaling = values.pop("rope_theta", None), values.pop("rope_scaling", None)
    pairs = {f"{family.name}.{name}": value for name, value in values.items() if name not in IMPLIED}
    if theta is not None:
        pairs[f"{family.name}.{BASE}"] = float(theta)
    if scaling is not None and scaling["rope_type"] == "linear":
        pairs |= {f"{family.name}.{TYPE}": "linear", f"{family.name}.{FACTOR}": float(scaling["factor"])}
    elif scaling is not None:
        pairs |= {key: scaling[name] for name, key in SCALING_KEYS.items()}
    return pairs


def read_metadata(pairs: Mapping[str, Any], tensors: Collection[str]) -> tuple[Family, ModelConfig]:
    """Architecture and configuration of a file, from its pairs and the names of its tensors."""
    name = pairs.get("general.architecture")
    if name not in ARCHITECTURES:
        raise CheckpointError(f"architecture {name!r} is not supported; known: {', '.join(ARCHITECTURES)}")
    family = ARCHITECTURES[name]
    prefix = f"{name}."
    values = {key.removeprefix(prefix): value for key, value in pairs.items() if key.startswith(prefix)}
    values |= {field: (tensor in tensors) == value for field, (tensor, value) in IMPLIED.items()}
    known = {field: value for field, value in values.items() if field in family.fields}
    config, _ = read_settings(family, known | (rope_values(values, pairs) if family.rope is not None else {}))
    return family, config


def rope_values(values: Mapping[str, Any], pairs: Mapping[str, Any]) -> dict[str, Any]:
    """The rotary fields of the file, as in a config.json."""
    scaling = None
    if values.get(TYPE, "none") != "none":
        scaling = {"rope_type": values[TYPE], "factor": values[FACTOR]}
    elif SCALING_KEYS["factor"] in pairs:
        scaling = {"rope_type": "llama3", **{name: pairs[key] for name, key in SCALING_KEYS.items()}}
    return {"rope_theta": values[BASE], "rope_scaling": scaling}


def frequency_divisors(config: ModelConfig) -> Vector | None:
    """The divisor of each rotary frequency for llama.cpp (E/2), float32; None without Llama 3.1's scaling."""
    if config.rope_scaling is None or config.rope_scaling.type != "llama3":
        return None
    plain = config.replaced(rope_scaling=None)
    pairs = range(config.head_width // 2)
    return np.array([frequency(plain, pair) / frequency(config, pair) for pair in pairs], dtype=np.float32)


NORMAL, CONTROL, USER_DEFINED, UNUSED = 1, 3, 4, 5
START = "tokenizer.ggml"
TOKENS, KINDS, MERGES, PRE = f"{START}.tokens", f"{START}.token_type", f"{START}.merges", f"{START}.pre"
TEMPLATE = "tokenizer.chat_template"
NO_MERGE = "Ā Ā"  # llama.cpp requires merges, and the format has no empty list; this pair never occurs
PLACEMENT = ("single_word", "lstrip", "rstrip")


@dataclass(frozen=True)
class PreTokenizer:
    """A pre-tokenizer as in a tokenizer.json. takes_words: words in the vocabulary become tokens directly."""

    document: TokenizerJson
    takes_words: bool = False  # `ignore_merges`


# llama.cpp's name -> its split; Llama 3 and DBRX have the same split
PRE_TOKENIZERS = {
    "gpt-2": PreTokenizer(tokenizer_json.byte_level_split(use_regex=True)),
    "qwen2": PreTokenizer(tokenizer_json.pattern_split(tokenizer_json.QWEN2_PATTERN)),
    "llama-bpe": PreTokenizer(tokenizer_json.pattern_split(tokenizer_json.LLAMA3_PATTERN), takes_words=True),
    "dbrx": PreTokenizer(tokenizer_json.pattern_split(tokenizer_json.LLAMA3_PATTERN)),
    "smollm": PreTokenizer(tokenizer_json.digit_split()),
}
WITHOUT_MERGES = "gpt-2"  # for plain bytes, the split does not matter


def write_vocabulary(tokenizer: Tokenizer, vocab_size: int) -> dict[str, Any]:
    """The pairs of a tokenizer for a model with `vocab_size` rows; `TokenizerError` if llama.cpp cannot have it."""
    document = tokenizer.to_json()
    check_kind(tokenizer, document)
    check_marks(tokenizer, document)
    names, kinds = token_list(document, vocab_size)
    ends = tokenizer.end_ids
    pairs = {
        f"{START}.model": "gpt2",
        PRE: find_split(document),
        TOKENS: names,
        KINDS: kinds,
        MERGES: [" ".join(merge) for merge in document["model"]["merges"]] or [NO_MERGE],
        f"{START}.bos_token_id": ends[0] if tokenizer.start_id is None else tokenizer.start_id,
        f"{START}.eos_token_id": ends[0],
        f"{START}.add_bos_token": bool(tokenizer.start_ids),
        f"{START}.add_eos_token": False,
    }
    if len(ends) > 1:
        pairs[f"{START}.eot_token_id"] = ends[1]
    if tokenizer.chat_template is not None:
        pairs[TEMPLATE] = tokenizer.chat_template
    return pairs


def check_kind(tokenizer: Tokenizer, document: TokenizerJson) -> None:
    """Refuse tokenizers that are not byte-level BPE in llama.cpp's form."""
    if tokenizer.kind not in ("bpe", "bytes") or document["decoder"]["type"] != "ByteLevel":
        actual = "bpe of characters" if tokenizer.kind == "bpe" else tokenizer.kind
        raise TokenizerError(
            f"GGUF: the tokenizer is of kind {actual}, but only byte-level tokenizers can be exported: bpe and bytes "
            "of the kinds trained here"
        )
    model = document["model"]
    for field in ("continuing_subword_prefix", "end_of_word_suffix", "unk_token", "byte_fallback"):
        if model.get(field):
            raise TokenizerError(
                f"GGUF: the tokenizer has {field} = {model[field]!r}, which llama.cpp does not support"
            )
    missing = tokenizer_json.missing_bytes(model["vocab"])
    if missing:
        raise TokenizerError(
            f"GGUF: {len(missing)} of the bytes of UTF-8 are not in the vocabulary, the first is 0x{missing[0]:02X}; "
            "llama.cpp would drop them silently"
        )
    if not is_composed(document) and document["normalizer"] is not None:
        raise TokenizerError(
            f"GGUF: the tokenizer normalizes text ({document['normalizer']['type']}), llama.cpp does not"
        )


def is_composed(document: TokenizerJson) -> bool:
    """True if the tokenizer normalizes text to Unicode's NFC first, which llama.cpp does not."""
    return document["normalizer"] == {"type": "NFC"}


def check_marks(tokenizer: Tokenizer, document: TokenizerJson) -> None:
    """Refuse start, end and added tokens that GGUF cannot express."""
    if len(tokenizer.start_ids) > 1:
        raise TokenizerError(f"GGUF: {len(tokenizer.start_ids)} tokens start every text; llama.cpp adds one")
    if not tokenizer.end_ids:
        raise TokenizerError("GGUF: the tokenizer has no end token, and llama.cpp would use token 11")
    for token in document["added_tokens"]:
        if not token["special"] and any(token[flag] for flag in PLACEMENT):
            raise TokenizerError(
                f"GGUF: the added token {token['content']!r} absorbs or requires white space around it; "
                "llama.cpp does not"
            )


def token_list(document: TokenizerJson, vocab_size: int) -> tuple[list[str], list[int]]:
    """The name and type of every row; rows without a token are unused."""
    names = [f"[PAD{token_id}]" for token_id in range(vocab_size)]
    kinds = [UNUSED] * vocab_size
    for name, token_id in document["model"]["vocab"].items():
        names[token_id], kinds[token_id] = name, NORMAL
    for token in document["added_tokens"]:
        names[token["id"]] = token["content"]
        kinds[token["id"]] = CONTROL if token["special"] else USER_DEFINED
    name, count = Counter(names).most_common(1)[0]
    if count > 1:  # llama.cpp aborts
        raise TokenizerError(f"GGUF: {count} of the model's rows have the name {name!r}; each needs a different one")
    return names, kinds


def find_split(document: TokenizerJson) -> str:
    """llama.cpp's name of this tokenizer's pre-tokenizer; `TokenizerError` if there is none."""
    model = document["model"]
    if not model["merges"]:
        return WITHOUT_MERGES
    ours = tokenizer_json.split_steps(document["pre_tokenizer"]), bool(model.get("ignore_merges"))
    for name, known in PRE_TOKENIZERS.items():
        if ours == (tokenizer_json.split_steps(known.document), known.takes_words):
            return name
    raise TokenizerError(
        "GGUF: the tokenizer splits text differently from all known pre-tokenizers of llama.cpp "
        f"({', '.join(PRE_TOKENIZERS)}), so llama.cpp would read other tokens; "
        "train one with --tokenizer.split qwen2 or gpt2"
    )


def read_vocabulary(pairs: Mapping[str, Any]) -> tokenizers.Tokenizer:
    """A tokenizer built only from the pairs; text is never encoded as a control token."""
    pre_tokenizer = PRE_TOKENIZERS[pairs[PRE]]
    names, kinds = pairs[TOKENS], pairs[KINDS]
    vocabulary = {name: token_id for token_id, name in enumerate(names)}
    merges = [merge for merge in pairs[MERGES] if merge.replace(" ", "") in vocabulary]
    document = tokenizer_json.byte_level_json(vocabulary, merges, pre_tokenizer.document)
    document["model"]["ignore_merges"] = pre_tokenizer.takes_words
    document["added_tokens"] = [
        tokenizer_json.special_token(names[token_id], token_id) | {"special": kind == CONTROL}
        for token_id, kind in enumerate(kinds)
        if kind in (CONTROL, USER_DEFINED)
    ]
    backend = tokenizers.Tokenizer.from_str(json.dumps(document))
    backend.encode_special_tokens = True
    return backend
