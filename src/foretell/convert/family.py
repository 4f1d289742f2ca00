"""What the table of a family says: how its config.json and its weights are named, and what they are here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from foretell.convert.transforms import Transform

REQUIRED = ...  # the default of a field that must be there


@dataclass(frozen=True)
class Field:
    """A single value of a config.json and the fields of `ModelConfig` that it sets, dotted where they are nested.

    default: what transformers takes where the field is absent. words: their word for each value of ours; where they
    have several for one, the first is written.
    """

    ours: tuple[str, ...]
    default: Any = REQUIRED
    words: Mapping[str, str] | None = None


@dataclass(frozen=True)
class Row:
    """A module of theirs and the one of ours (or several), `*` for the layer; transforms apply to what was read."""

    theirs: str
    ours: tuple[str, ...]
    transforms: tuple[Transform, ...] = ()


@dataclass(frozen=True)
class Family:
    """Everything that is particular to one `model_type` of Hugging Face's."""

    name: str  # the model_type
    architecture: str
    prefix: str  # of every name but the head's; files of the bare trunk lack it
    rows: tuple[Row, ...]
    fields: Mapping[str, Field]
    shared: Mapping[str, Any]  # fields of ModelConfig that are the same in the whole family
    fixed: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)  # their field: the values that we can express
    noted: Mapping[str, str] = field(
        default_factory=dict
    )  # their field: why it makes no difference, said when it is on
    harmless: frozenset[str] = frozenset()  # their fields that have no say in the logits
    buffers: tuple[str, ...] = ()  # globs of names in files that are no weights
    is_rotary: bool = False  # rope_theta, rope_scaling, rope_parameters are understood
    tokenizer_class: str | None = None  # what transformers makes of any tokenizer beside it, whatever the files say
    splits_width: bool = False  # transformers refuses a width that is no multiple of the heads


def same(names: Mapping[str, str], prefix: str, block: str) -> tuple[Row, ...]:
    """Rows without transforms for the modules of a block."""
    return tuple(Row(f"{prefix}{theirs}", (f"{block}{ours}",)) for theirs, ours in names.items())


def names(text: str) -> frozenset[str]:
    """The words of a text."""
    return frozenset(text.split())


# What every config.json may hold without a say in the logits
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
ROPE = names("rope_theta rope_scaling rope_parameters")  # read by rope.py, where the family is rotary
# What would change the logits of any family: absent, or one of these values
FIXED: Mapping[str, tuple[Any, ...]] = {
    "is_encoder_decoder": (False, None),
    "add_cross_attention": (False, None),
    "pruned_heads": (None, {}),
    "quantization_config": (None,),
    "attn_logit_softcapping": (None,),
    "final_logit_softcapping": (None,),
    "partial_rotary_factor": (1.0, None),
    "position_embedding_type": ("absolute", "rope", None),
}
NOTED: Mapping[str, str] = {"auto_map": "code of its own is never run"}
