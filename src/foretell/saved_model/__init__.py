"""A saved model: `model.safetensors` under module paths, and a `config.json` that names its parts.

A part has its own weights, settings or files: a decoder, a tokenizer, a head, adapters, a codec of numbers.
A decoder with only a tokenizer is written in format 1, whose config.json holds the decoder's configuration directly;
anything else is format 2:

    {"model_type": "foretell", "format": 2, "parts": {"decoder": {"kind": "decoder", ...}, "label": {"kind": ...}}}

In model.safetensors, weights in the decoder's module tree, adapters included, have their module paths as keys. Keys
of other parts begin with the part's name.
"""
