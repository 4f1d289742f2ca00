"""Conversion of a config.json to a `ModelConfig` and back, by the declaration of a family.

There are two notations of rotary positions: rope_theta and rope_scaling, or the newer rope_parameters.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from foretell.config.model import Bias, ModelConfig
from foretell.config.section import make_section
from foretell.convert.family import REQUIRED, Family, Field, LayerWindows, Rope, names
from foretell.errors import ConfigError
from foretell.numerics.norms import NORMS

NESTED = ("bias", "dropout")
NAME = re.compile(r"'[^']*'|\w+(?:\.\w+)*")  # a name, or a value in quotes, which is not translated
# Fields of any config.json that do not affect the logits
HARMLESS = names(
    """architectures model_type transformers_version _name_or_path torch_dtype dtype use_cache initializer_range
    bos_token_id eos_token_id pad_token_id unk_token_id sep_token_id decoder_start_token_id tokenizer_class prefix
    output_attentions output_hidden_states output_scores return_dict return_dict_in_generate chunk_size_feed_forward
    id2label label2id problem_type task_specific_params finetuning_task gradient_checkpointing torchscript is_decoder
    attn_implementation _attn_implementation _attn_implementation_internal _attn_implementation_autoset
    do_sample max_length min_length temperature top_k top_p typical_p repetition_penalty length_penalty early_stopping
    num_beams num_beam_groups diversity_penalty num_return_sequences no_repeat_ngram_size bad_words_ids
    encoder_no_repeat_ngram_size exponential_decay_length_penalty suppress_tokens begin_suppress_tokens
    forced_bos_token_id forced_eos_token_id remove_invalid_values tf_legacy_loss"""
)
THETA, SHARE = "rope_theta", "partial_rotary_factor"
ROPE_SECTIONS = ("rope_parameters", "rope_scaling")
# Fields that change the logits of every family: they must be absent or have one of these values
FIXED: Mapping[str, tuple[Any, ...]] = {
    "is_encoder_decoder": (False, None),
    "add_cross_attention": (False, None),
    "pruned_heads": (None, {}),
    "quantization_config": (None,),
    "attn_logit_softcapping": (None,),
    "final_logit_softcapping": (None,),
    SHARE: (1.0, None),
    "position_embedding_type": ("absolute", "rope", None),
}
NOTED: Mapping[str, str] = {"auto_map": "custom code is never run"}
FULL, SLIDING = "full_attention", "sliding_attention"  # types of layers: without a window, with one
MOST_LAYERS = 2**14
# rope type -> their name of each parameter -> ours
SCALINGS: dict[str, dict[str, str]] = {
    "default": {},
    "linear": {"factor": "factor"},
    "llama3": {
        "factor": "factor",
        "low_freq_factor": "low_frequency_factor",
        "high_freq_factor": "high_frequency_factor",
        "original_max_position_embeddings": "original_context_length",
    },
}
TYPE_KEYS = ("rope_type", "type")


def read_settings(family: Family, values: Mapping[str, Any]) -> tuple[ModelConfig, list[str]]:
    """The configuration described by a config.json, and notes on unused fields.

    Raises ConfigError, with the name, for a field that changes the logits and cannot be expressed.
    """
    check_fixed(family, values)
    fields: dict[str, Any] = dict(flat(family.shared))
    for name, theirs in family.fields.items():
        fields |= dict.fromkeys(theirs.ours, read_field(name, theirs, values))
    if family.windows is not None:
        fields["window"] = read_windows(family.windows, values, fields["num_layers"])
    if family.rope is not None:
        fields |= read_rope(family.rope, values)
    try:
        config = make_section(ModelConfig, nested(fields))
    except ConfigError as error:  # its message has our names
        theirs_of = {ours: name for name, theirs in family.fields.items() for ours in theirs.ours}
        if family.rope is not None:
            theirs_of |= {"rope_theta": family.rope.theta, "rotary_share": family.rope.share or SHARE}
            theirs_of["local_rope_theta"] = family.rope.local_theta or "local_rope_theta"
        message = str(error)
        if "head_width" not in theirs_of:  # it follows from the width
            message = message.replace(" or set head_width", "")
            theirs_of["head_width"] = f"{theirs_of['width']} / {theirs_of['num_heads']}"
        raise ConfigError(NAME.sub(lambda name: theirs_of.get(name[0], name[0]), message)) from None
    return config, unused(family, values)


def read_field(name: str, field: Field, values: Mapping[str, Any]) -> Any:
    value = values.get(name, field.default)
    if value is REQUIRED:
        raise ConfigError(f"{name} is missing")
    if isinstance(value, list | dict):
        raise ConfigError(f"{name} = {str(value)[:60]} is not a single value")
    if field.words is None:
        return value
    if value not in field.words:
        raise ConfigError(f"{name} = {value!r} is not supported; known: {', '.join(map(str, field.words))}")
    return field.words[value]


def check_fixed(family: Family, values: Mapping[str, Any]) -> None:
    has_share = family.rope is not None and family.rope.share is not None
    for name, allowed in {**FIXED, **family.fixed}.items():
        if name == SHARE and has_share:
            continue
        value = values.get(name, allowed[0])
        if isinstance(value, list):  # one entry per layer; compare the distinct entries
            value = [entry for index, entry in enumerate(value) if entry not in value[:index]]
        if value not in allowed:
            raise ConfigError(f"{name} = {str(value)[:60]} is not supported for {family.name}")


def unused(family: Family, values: Mapping[str, Any]) -> list[str]:
    """A line for each unused field that is set."""
    noted = {**NOTED, **family.noted}
    known = {*family.fields, *family.fixed, *FIXED, *family.harmless, *HARMLESS}
    if family.rope is not None:
        known |= {*ROPE_SECTIONS, THETA, family.rope.theta, SHARE, family.rope.share, family.rope.local_theta}
    if family.windows is not None:
        known |= {family.windows.size, family.windows.types, family.windows.period}
    notes = [f"{name} is ignored: {noted[name]}" for name in noted if values.get(name)]
    unknown = [name for name, value in values.items() if value and name not in known and name not in noted]
    return notes + [f"{name} is unknown and was not used" for name in unknown]


def read_windows(windows: LayerWindows, values: Mapping[str, Any], num_layers: Any) -> tuple[int | None, ...] | None:
    """The window of each layer; None if the number of layers is invalid, which is refused later."""
    if type(num_layers) is not int or not 0 < num_layers <= MOST_LAYERS:
        return None
    size, period = values.get(windows.size, windows.default_size), values.get(windows.period, windows.default_period)
    if windows.types is None and not size:
        return (None,) * num_layers
    types = None if windows.types is None else values.get(windows.types)
    if types is None:
        if type(period) is not int or period < 1:
            raise ConfigError(f"{windows.period} = {period!r} is not a number of layers")
        types = [FULL if layer % period == 0 else SLIDING for layer in range(1, num_layers + 1)]
    if not isinstance(types, list) or len(types) != num_layers or not all(each in (FULL, SLIDING) for each in types):
        raise ConfigError(f"{windows.types} must have {num_layers} entries, each '{FULL}' or '{SLIDING}'")
    if SLIDING in types and type(size) is not int:
        raise ConfigError(f"{windows.size} = {size!r} is not a number of positions, and some layers have a window")
    return tuple(size if each == SLIDING else None for each in types)


def write_windows(windows: LayerWindows, config: ModelConfig) -> dict[str, Any]:
    """Their fields of the windows; a single size, and for files without types the period of the first full layer."""
    size = next((window for window in config.windows if window is not None), windows.default_size)
    if windows.types is not None:
        types = [FULL if window is None else SLIDING for window in config.windows]
        return {windows.size: size, windows.types: types}
    full = [layer for layer, window in enumerate(config.windows, 1) if window is None]
    return {windows.size: size, windows.period: full[0] if full else config.num_layers + 1}


def in_older_notation(rope: Rope, values: Mapping[str, Any]) -> Mapping[str, Any]:
    """The values without sections of rope_parameters for each type of layer, as transformers 5 writes them."""
    by_type = values.get(ROPE_SECTIONS[0])
    if rope.local_theta is None or not isinstance(by_type, dict):
        return values
    name = f"{ROPE_SECTIONS[0]}.{SLIDING}"
    local = by_type.get(SLIDING) or {}
    if not by_type.keys() <= {FULL, SLIDING} or read_scaling(name, local, values, rope) is not None:
        raise ConfigError(
            f"{ROPE_SECTIONS[0]} = {str(by_type)[:80]} is not supported: give a base for each type of layer"
        )
    theta = {rope.local_theta: local["rope_theta"]} if "rope_theta" in local else {}
    return {**values, **theta, ROPE_SECTIONS[0]: by_type.get(FULL)}


def read_rope(rope: Rope, values: Mapping[str, Any]) -> dict[str, Any]:
    """Our rotary fields from theirs; a `ConfigError` names an unsupported scaling."""
    values = in_older_notation(rope, values)
    sections = {name: values[name] for name in ROPE_SECTIONS if values.get(name)}
    scalings = [read_scaling(name, section, values, rope) for name, section in sections.items()]
    if len(scalings) == 2 and scalings[0] != scalings[1]:
        raise ConfigError("rope_parameters and rope_scaling contradict each other")
    ours = {
        "rope_theta": agreed(rope.theta, THETA, values, sections, rope.default_theta),
        "rope_scaling": scalings[0] if scalings else None,
    }
    if rope.share is not None:
        ours["rotary_share"] = agreed(rope.share, SHARE, values, sections, rope.default_share)
    if rope.local_theta is not None:
        ours["local_rope_theta"] = values.get(rope.local_theta, rope.default_local_theta)
    return ours


def agreed(
    older: str, newer: str, values: Mapping[str, Any], sections: Mapping[str, Mapping[str, Any]], default: Any
) -> Any:
    """The value of a rotary field by its older or newer name, or in a section; a `ConfigError` if values differ."""
    places = {
        older: values.get(older),
        newer: values.get(newer),
        **{f"{name}.{newer}": section.get(newer) for name, section in sections.items()},
    }
    given = {name: value for name, value in places.items() if value is not None}
    first = next(iter(given.items()), (older, default))
    for name, value in given.items():
        if value != first[1]:
            raise ConfigError(f"{first[0]} = {first[1]!r} and {name} = {value!r} contradict each other")
    return first[1]


def read_scaling(name: str, section: Any, values: Mapping[str, Any], rope: Rope) -> dict[str, Any] | None:
    """Our rope_scaling from the section of this name, which may contain the rotated share."""
    if not isinstance(section, dict):
        raise ConfigError(f"{name} = {section!r} is not a section")
    kinds = [section[key] for key in TYPE_KEYS if section.get(key) is not None]
    if len(kinds) == 2 and kinds[0] != kinds[1]:
        raise ConfigError(f"{name}.rope_type = {kinds[0]!r} and {name}.type = {kinds[1]!r} contradict each other")
    kind = kinds[0] if kinds else "default"
    if kind not in rope.scalings:
        raise ConfigError(f"{name} of type {kind!r} is not supported; known: {', '.join(rope.scalings)}")
    for key, value in section.items():
        is_neutral = value is None or (key == SHARE and (rope.share is not None or value == 1))
        if key not in (*TYPE_KEYS, "rope_theta", *SCALINGS[kind]) and not is_neutral:
            raise ConfigError(f"{name}.{key} = {value!r} is not supported for type {kind!r}")
    if kind == "default":
        return None
    parameters = {ours: section[theirs] for theirs, ours in SCALINGS[kind].items() if section.get(theirs) is not None}
    if kind == "llama3":
        parameters.setdefault("original_context_length", values.get("max_position_embeddings"))
    missing = [theirs for theirs, ours in SCALINGS[kind].items() if ours not in parameters]
    if missing:
        raise ConfigError(f"{name} of type {kind!r} lacks {missing[0]}")
    return {"type": kind, **parameters}


def write_settings(family: Family, config: ModelConfig) -> dict[str, Any]:
    """The fields of a config.json that describes the configuration as closely as the family can (see `differences`)."""
    ours = meaningful(config)
    written = {name: write_field(field, ours, config) for name, field in family.fields.items()}
    fixed = {name: allowed[0] for name, allowed in family.fixed.items() if allowed[0] is not None}
    rope = {} if family.rope is None else write_rope(family.rope, config)
    return {**written, **fixed, **rope, **({} if family.windows is None else write_windows(family.windows, config))}


def write_field(field: Field, ours: Mapping[str, Any], config: ModelConfig) -> Any:
    """Their value for one of our fields; their default if ours cannot be expressed."""
    value = ours.get(field.ours[0], flat(config.model_dump())[field.ours[0]])
    if isinstance(value, tuple):  # a window per layer, and their field holds one number
        return value[0]
    if value is None and field.follows is not None:
        return getattr(config, field.follows)
    if field.words is None:
        return value
    return next((theirs for theirs, word in field.words.items() if word == value), field.default)


def write_rope(rope: Rope, config: ModelConfig) -> dict[str, Any]:
    """Their rotary fields from ours, in the older notation, which every reader supports."""
    scaling = config.rope_scaling
    section = None
    if scaling is not None and scaling.type in rope.scalings:
        values = scaling.model_dump()
        section = {"rope_type": scaling.type, **{key: values[ours] for key, ours in SCALINGS[scaling.type].items()}}
    share = {} if rope.share is None else {rope.share: config.rotary_share}
    local = {} if rope.local_theta is None else {rope.local_theta: config.local_rope_theta or config.rope_theta}
    return {rope.theta: config.rope_theta, "rope_scaling": section, **share, **local}


def meaningful(config: ModelConfig) -> dict[str, Any]:
    """The fields that affect the logits, under dotted names."""
    values = flat(config.model_dump())
    values["window"] = config.windows[0] if len(set(config.windows)) == 1 else config.windows
    if config.query_pre_attn_scalar == config.head_width:
        values["query_pre_attn_scalar"] = None
    if config.local_rope_theta == config.rope_theta and config.rope_scaling is None:
        values["local_rope_theta"] = None
    moot = {
        "init": True,
        **{f"dropout.{name}": True for name in ("embedding", "attention", "residual")},
        **dict.fromkeys(("rope_theta", "rope_scaling", "rotary_share"), config.position != "rotary"),
        "local_rope_theta": config.position != "rotary" or not any(config.windows),
        "qk_norm_scope": not config.qk_norm,
        "bias.norm": config.norm == "none" or not NORMS[config.norm].has_bias,
        "bias.attention_output": not config.attention_output,
        "norm_epsilon": config.norm == "none",
        "norm_placement": config.norm == "none",
        **dict.fromkeys(("activation", "feedforward_width", "bias.feedforward"), config.feedforward == "none"),
    }
    return {name: value for name, value in values.items() if not moot.get(name, False)}


def flat(values: Mapping[str, Any]) -> dict[str, Any]:
    """`{"bias": {"norm": True}}` as `{"bias.norm": True}`; a single value for a section applies to all its fields."""
    result = {name: value for name, value in values.items() if name not in NESTED}
    for section in NESTED:
        inner = values.get(section, {})
        inner = Bias.model_validate(inner).model_dump() if isinstance(inner, bool) else inner
        result |= {f"{section}.{name}": value for name, value in inner.items()}
    return result


def nested(values: Mapping[str, Any]) -> dict[str, Any]:
    """The inverse of `flat`."""
    result: dict[str, Any] = {}
    for name, value in values.items():
        section, _, key = name.rpartition(".")
        if section:
            result.setdefault(section, {})[key] = value
        else:
            result[name] = value
    return result
