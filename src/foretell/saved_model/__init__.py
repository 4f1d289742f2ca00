"""A saved model: `model.safetensors` under module paths, and a `config.json` that names the parts it is made of.

A part is a piece with weights, settings or files of its own: a decoder, a tokenizer, a head, adapters, a codec of
numbers. Each part's class knows its keys. A decoder with a tokenizer alone is written as format 1, whose config.json
holds the decoder's configuration directly; anything else is format 2:

    {"model_type": "foretell", "format": 2, "parts": {"decoder": {"kind": "decoder", ...}, "label": {"kind": ...}}}

In model.safetensors the keys of the decoder's weights are their module paths. Keys of other parts begin with the part's
name, except those of parts inside the decoder, such as adapters, which are module paths too.

part.py               Part, and the kinds that are known; PartSource: where a part reads its weights from
decoder_part.py       DecoderPart
quantization_part.py  QuantizationPart: weights of a decoder that are stored as integers
tokenizer_part.py     TokenizerPart
save_parts.py         write the parts of a model
load_parts.py         read them
weights_file.py       tensors as safetensors files
"""
