"""A decoder's weights under the names of GPT-2's code, nanoGPT and transformers, so that all run the same model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from foretell.convert.family import Transpose
from foretell.convert.gpt import GPT2
from foretell.convert.llama import LLAMA
from foretell.convert.weights import iter_theirs
from foretell.model.decoder import Decoder


def gpt2_weights(decoder: Decoder, *, inputs_first: bool) -> dict[str, Tensor]:
    """The state dict that a peer loads, with a copy of the tied head.

    inputs_first: matrices inside blocks are (in, out), as in transformers' Conv1D, and not (out, in), as in nanoGPT.
    """
    left_out = () if inputs_first else (Transpose(),)
    rows = (replace(row, transforms=tuple(t for t in row.transforms if t not in left_out)) for row in GPT2.rows)
    weights = dict(iter_theirs(replace(GPT2, rows=tuple(rows)), decoder.config, decoder.state_dict()))
    return {**weights, "lm_head.weight": weights["transformer.wte.weight"]}


def make_transformers(decoder: Decoder) -> Any:
    """transformers' GPT-2 or Llama with a decoder's weights, in float32."""
    import transformers

    transformers.logging.set_verbosity_error()
    config = decoder.config
    if config.position == "learned":
        model: Any = transformers.GPT2LMHeadModel(  # the annotations of transformers contradict each other
            transformers.GPT2Config(
                n_layer=config.num_layers,
                n_head=config.num_heads,
                n_embd=config.width,
                n_positions=config.context_length,
                vocab_size=config.vocab_size,
                layer_norm_epsilon=config.norm_epsilon,
                bos_token_id=None,
                eos_token_id=None,
            )
        )
        model.load_state_dict(gpt2_weights(decoder, inputs_first=True))
        return model.eval()
    model = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            num_hidden_layers=config.num_layers,
            num_attention_heads=config.num_heads,
            num_key_value_heads=config.num_kv_heads,
            hidden_size=config.width,
            head_dim=config.head_width,
            intermediate_size=config.feedforward_width,
            max_position_embeddings=config.context_length,
            vocab_size=config.vocab_size,
            rms_norm_eps=config.norm_epsilon,
            tie_word_embeddings=config.tie_embeddings,
            bos_token_id=None,
            eos_token_id=None,
        )
    )
    weights = dict(iter_theirs(LLAMA, config, dict(decoder.named_parameters())))
    model.load_state_dict(weights, strict=not config.tie_embeddings)
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
