"""Export of a model as a GGUF file, which is read back to check parity.

q8_0 stores blocks of 32 values of a row as 8-bit integers with one scale in float16.
"""

from __future__ import annotations

import json
import unicodedata
from collections import Counter
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import tokenizers
import torch
from torch import Tensor

from foretell.config.model import ModelConfig
from foretell.convert.family import Family, check_weights, iter_ours, iter_theirs, pairings
from foretell.convert.gguf.blocks import read_floats
from foretell.convert.gguf.files import read_gguf
from foretell.convert.gguf.header import GENERAL
from foretell.convert.gguf.kept_pairs import FILE_TYPE, QUANTIZATION_VERSION, pairs_of
from foretell.convert.gguf.metadata import FREQUENCIES, choose_architecture, frequency_divisors, write_metadata
from foretell.convert.gguf.pack_blocks import packed_matrices
from foretell.convert.gguf.vocabulary import PRE, is_composed, write_vocabulary
from foretell.convert.gguf.write import PackedTensor, pack_tensor, write_gguf
from foretell.convert.parity import ReadBack, check_parity, report_head, rounding
from foretell.errors import ForetellError, OutputError
from foretell.language_model import LanguageModel
from foretell.model.decoder import Decoder
from foretell.model.init import decoder_with_weights
from foretell.storage.files import check_new, new_files, write_json
from foretell.storage.manifest import EXPORT_REPORT, describe_files
from foretell.text.tokenizer_json import is_byte_level, missing_bytes

PRECISIONS = ("f32", "f16", "q8_0")
PACKED = "packed"  # the precision of a model that came packed: matrices keep their bytes, other tensors are f32
# llama.cpp's file types, by the most frequent type of matrices
FILE_TYPES = {
    "f32": 0,
    "f16": 1,
    "q4_0": 2,
    "q4_1": 3,
    "q8_0": 7,
    "q5_0": 8,
    "q5_1": 9,
    "q4_k": 14,
    "q5_k": 16,
    "q6_k": 18,
}
BLOCK = 32
ALWAYS_FULL = ("position_embd.weight",)  # llama.cpp adds its rows without conversion
BLOCKS_VERSION = 2  # of ggml's block formats


def export_gguf(
    model: LanguageModel, target: Path, precision: str = "f32", family_name: str | None = None
) -> dict[str, Any]:
    """Write a float32 model on the CPU as a new GGUF file, with a report in the same folder; returns the report.

    precision: 'f32', 'f16', 'q8_0' or 'packed'. By default, the first architecture that can express the model is
    chosen. Raises ConfigError for a configuration or weight that it cannot express, TokenizerError for a tokenizer that
    llama.cpp does not support, and OutputError for a missed bound; nothing is written in these cases.
    """
    matrices = packed_matrices(model) if precision == PACKED else {}
    model = model.with_float_weights("convert")
    check_new(target)
    config = model.decoder.config
    family = choose_architecture(config, family_name)
    check_weights(family, config, model.decoder.state_dict())
    kinds = Counter(matrix.kind.lower() for matrix in matrices.values())
    pairs = describe_file(model, family, next(iter(kinds.most_common(1)), (precision,))[0])
    tensors = pack_weights(model.decoder, family, precision, matrices)
    is_exact = precision in ("f32", PACKED)
    written = model if is_exact else unpacked_model(model, family, tensors)
    report_path = target.with_name(EXPORT_REPORT)
    if report_path.exists():
        report_path = target.with_name(f"{target.stem}.{EXPORT_REPORT}")
    prepare = partial(unicodedata.normalize, "NFC") if is_composed(model.tokenizer.to_json()) else str
    with new_files(target, report_path) as (file, report_file):
        write_gguf(file, family.name, pairs, tensors)
        report = {
            **report_head(family, precision),
            "pre_tokenizer": pairs[PRE],
            **check_parity(read_back(file), written, prepare),
            "rounding": None if is_exact else rounding(model, written),
            "notes": notes(model, tensors, precision),
            "files": describe_files([file]),
        }
        write_json(report_file, report)
    return report


def notes(model: LanguageModel, tensors: Mapping[str, PackedTensor], precision: str) -> list[str]:
    lines = []
    if precision == "q8_0" and (wider := [name for name, tensor in tensors.items() if tensor.kind == "F16"]):
        lines.append(
            f"{len(wider)} of {len(tensors)} tensors have rows whose length is not a multiple of 32: f16, not q8_0"
        )
    document = model.tokenizer.to_json()
    if is_composed(document):
        lines.append("the tokenizer normalizes text to NFC, but llama.cpp does not: normalize texts before using it")
    if missing := is_byte_level(document) and missing_bytes(document["model"]["vocab"]):
        lines.append(
            f"{len(missing)} of the bytes of UTF-8 are not in the vocabulary, the first is 0x{missing[0]:02X}: "
            "llama.cpp drops them silently"
        )
    if len(model.tokenizer.end_ids) > 2:
        lines.append(f"{len(model.tokenizer.end_ids)} tokens end a text; GGUF stores the first two")
    return lines


def pack_weights(
    decoder: Decoder, family: Family, precision: str, matrices: Mapping[str, PackedTensor] = {}
) -> dict[str, PackedTensor]:
    """All tensors of the file; `matrices` by the paths of their weights keep their bytes."""
    weights = {path: weight.detach().to("cpu", torch.float32) for path, weight in decoder.named_parameters()}
    weights |= {path: matrix.content for path, matrix in matrices.items()}
    first = {pairing.theirs: pairing.ours[0] for pairing in pairings(family, decoder.config)}
    packed = {
        name: PackedTensor(matrices[first[name]].kind, tensor)
        if first[name] in matrices
        else pack(name, tensor, precision_of(name, tuple(tensor.shape), precision).upper())
        for name, tensor in iter_theirs(family, decoder.config, weights)
    }
    divisors = frequency_divisors(decoder.config)
    return packed if divisors is None else {**packed, FREQUENCIES: PackedTensor("F32", torch.tensor(divisors))}


def precision_of(name: str, shape: tuple[int, ...], wanted: str) -> str:
    """The precision of a tensor: f32 for vectors, f16 instead of q8_0 if the row length is not a multiple of 32."""
    if len(shape) < 2 or name in ALWAYS_FULL or wanted == PACKED:
        return "f32"
    return "f16" if wanted == "q8_0" and shape[-1] % BLOCK else wanted


def pack(name: str, tensor: Tensor, kind: str) -> PackedTensor:
    """The packed values of a tensor; overflow is an `OutputError`."""
    packed = pack_tensor(tensor, kind)
    if not packed.values().isfinite().all():
        raise OutputError(f"'{name}' holds values that are not finite in {kind.lower()}; give another dtype")
    return packed


def unpacked_model(model: LanguageModel, family: Family, packed: Mapping[str, PackedTensor]) -> LanguageModel:
    """The model with the values of the packed tensors, in float32."""
    weights = dict(iter_ours(family, model.decoder.config, lambda name: packed[name].values()))
    return LanguageModel(decoder_with_weights(model.decoder.config, weights).eval(), model.tokenizer, model.name)


def describe_file(model: LanguageModel, family: Family, precision: str) -> dict[str, Any]:
    """The pairs of the file; kept ones where foretell does not compute them, also the name."""
    config: ModelConfig = model.decoder.config
    kept = pairs_of(model)
    return {
        "general.type": "model",
        "general.name": Path(model.name).name,
        **{key: value for key, value in kept.items() if key.startswith(GENERAL)},
        FILE_TYPE: FILE_TYPES[precision],
        **({QUANTIZATION_VERSION: BLOCKS_VERSION} if precision.startswith("q") else {}),
        **write_metadata(family, config),
        **write_vocabulary(model.tokenizer, config.vocab_size, kept),
    }


def read_back(path: Path) -> ReadBack:
    """Configuration, float32 weights and tokenizer from the file. Raises `OutputError` if it cannot be read."""
    try:
        file = read_gguf(path)
    except ForetellError as error:
        raise OutputError(f"the export differs from the model: {error}") from None
    weights = iter_ours(file.family, file.config, lambda name: read_floats(file.tensors[name], torch.float32))
    backend = tokenizers.Tokenizer.from_str(json.dumps(file.tokenizer.to_json()))
    backend.encode_special_tokens = True
    return ReadBack(
        file.config,
        {module: tensor.numpy() for module, tensor in weights},
        backend,
        f"the reader of GGUF, tokenizers {tokenizers.__version__}, the textbook in NumPy",
    )
