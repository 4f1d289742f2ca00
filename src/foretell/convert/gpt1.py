"""GPT-1 in Hugging Face's layout: GPT-2's, with the norm after each sublayer and none at the end."""

from __future__ import annotations

from foretell.convert.family import Family, Field, Row
from foretell.convert.gpt2 import BLOCK_ROWS, GPT2, SIZES, SUMMARY

GPT1 = Family(
    name="openai-gpt",
    architecture="OpenAIGPTLMHeadModel",
    prefix="transformer.",
    rows=(
        Row("transformer.tokens_embed", ("embed.token",)),
        Row("transformer.positions_embed", ("embed.position",)),
        *BLOCK_ROWS,
        Row("lm_head", ("head",)),
    ),
    # its "gelu" is the tanh form, unlike GPT-2's; the feed-forward layer is always four times as wide
    fields={
        **SIZES,
        "afn": Field(("activation",), "gelu", {"gelu": "gelu_tanh", "relu": "relu", "silu": "silu", "swish": "silu"}),
    },
    shared={**GPT2.shared, "norm_placement": "post"},
    harmless=SUMMARY,
    buffers=("transformer.h.*.attn.bias", "transformer.position_ids"),
)
