"""A decoder's weights under the names of GPT-2's code, nanoGPT and transformers, so that all run the same model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from foretell.convert.config_json import write_settings
from foretell.convert.families import GPT2, choose_family
from foretell.convert.family import Transpose, iter_theirs
from foretell.model.decoder import Decoder


def nanogpt_weights(decoder: Decoder) -> dict[str, Tensor]:
    """The state dict that nanoGPT loads, with a copy of the tied head.

    Matrices inside blocks are (out, in), and not (in, out) as in transformers' Conv1D.
    """
    rows = (replace(row, transforms=tuple(t for t in row.transforms if t != Transpose())) for row in GPT2.rows)
    weights = dict(iter_theirs(replace(GPT2, rows=tuple(rows)), decoder.config, decoder.state_dict()))
    return {**weights, "lm_head.weight": weights["transformer.wte.weight"]}


def make_transformers(decoder: Decoder) -> Any:
    """transformers' model with a decoder's weights, in float32, of the family that can express it, such as GPT-2."""
    import transformers

    transformers.logging.set_verbosity_error()
    config = decoder.config
    family = choose_family(config)
    settings = write_settings(family, config) | {"bos_token_id": None, "eos_token_id": None}
    shape = transformers.AutoConfig.for_model(family.name, **settings)
    model: Any = transformers.AutoModelForCausalLM.from_config(shape, dtype=torch.float32)
    loaded = model.load_state_dict(dict(iter_theirs(family, config, dict(decoder.named_parameters()))), strict=False)
    assert not loaded.unexpected_keys and set(loaded.missing_keys) <= {"lm_head.weight"}, loaded  # a tied head
    return model.eval()


def save_transformers(decoder: Decoder, folder: Path) -> None:
    """A folder in transformers' layout with a tokenizer whose token i is `<i>`."""
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    make_transformers(decoder).save_pretrained(folder)
    words = {f"<{token}>": token for token in range(decoder.config.vocab_size)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<0>"))
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="<0>", bos_token="<0>", eos_token="<0>"
    ).save_pretrained(folder)
