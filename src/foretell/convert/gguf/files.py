"""A GGUF file as a MODEL, without its weights: configuration, tokenizer, and names and shapes of tensors.

Imports no torch.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from foretell.config.model import ModelConfig
from foretell.config.quantization import FormName, QuantizationConfig
from foretell.convert.family import Family, pairings
from foretell.convert.gguf.header import TYPE_OF_NAME, read_header, refuse
from foretell.convert.gguf.metadata import FREQUENCIES, read_metadata
from foretell.convert.gguf.vocabulary import read_vocabulary
from foretell.convert.huggingface_files import HuggingFaceFiles
from foretell.errors import CheckpointError, ConfigError, TokenizerError
from foretell.saved_model.config_file import NO_TOKENIZER, check_depth, check_vocabulary
from foretell.storage.files import open_regular
from foretell.storage.safetensors_header import StoredTensor, check_shapes, stamp_of
from foretell.text import id_tokenizer

MAX_DIVISORS = 2**12  # bytes
TABLE, POSITIONS = "embed.token", "embed.position.weight"  # positions are a table of floats


@dataclass(frozen=True)
class GGUFFile(HuggingFaceFiles):
    """A file with a checked header. tensors: by their names in the file. pairs: all of them."""

    pairs: Mapping[str, Any] = field(default_factory=dict)

    def type_of(self, tensor: StoredTensor) -> str:
        kind = TYPE_OF_NAME[tensor.dtype]
        return tensor.float_name if kind.weights == 1 else kind.name.lower()


def read_gguf(path: Path) -> GGUFFile:
    """Check a file. A damaged or unsupported one is a `CheckpointError` or `TokenizerError`."""
    header = read_header(path)
    tensors = dict(header.tensors)
    divisors = tensors.pop(FREQUENCIES, None)
    try:
        family, config, notes = read_metadata(
            header.pairs, tensors, None if divisors is None else read_vector(divisors)
        )
        check_depth(config, len(tensors), path)
        expected = {pairing.theirs: pairing.shape for pairing in pairings(family, config)}
        tokenizer = read_vocabulary(header.pairs)
    except ConfigError as error:
        raise CheckpointError(f"{path}: {error}") from None
    except TokenizerError as error:
        raise TokenizerError(f"{path}: {error}") from None
    check_shapes(tensors, expected, path)
    if unknown := next((name for name in tensors if name not in expected), None):
        raise CheckpointError(
            f"{path} has a tensor '{unknown[:80]}' that a {family.name} of this configuration does not"
        )
    if tokenizer is None:
        tokenizer = id_tokenizer(config.vocab_size)
        notes.append(NO_TOKENIZER)
    check_vocabulary(tokenizer, config, path)
    if missing := config.vocab_size - tokenizer.vocab_size:
        notes.append(f"{missing:,} of the model's {config.vocab_size:,} tokens are not in the tokenizer")
    forms = packed_forms(family, config, tensors)
    packing = QuantizationConfig.packed(forms, TABLE) if forms else None
    lines = tuple(f"{path}: {note}" for note in notes)
    return GGUFFile(family, config, tokenizer, tensors, lines, packing, header.pairs)


def packed_forms(family: Family, config: ModelConfig, tensors: Mapping[str, StoredTensor]) -> dict[str, FormName]:
    """The forms of the matrices that are stored in blocks, by the paths of their modules."""
    return {
        path.removesuffix(".weight"): cast(FormName, stored.dtype.lower())
        for pairing in pairings(family, config)
        if TYPE_OF_NAME[(stored := tensors[pairing.theirs]).dtype].weights > 1 and len(stored.shape) == 2
        for path in pairing.ours
        if path != POSITIONS
    }


def read_vector(stored: StoredTensor) -> tuple[float, ...]:
    if stored.dtype != "F32" or len(stored.shape) != 1 or stored.size > MAX_DIVISORS:
        refuse(stored.file, f"'{stored.name}' is {stored.dtype} of shape {stored.shape}, not a short vector in F32")
    with open_regular(stored.file) as file:
        file.seek(stored.start)
        data = file.read(stored.size)
        if len(data) < stored.size or stamp_of(file) != stored.stamp:
            raise CheckpointError(f"{stored.file} changed while it was read; load it again")
    return struct.unpack(f"<{stored.size // 4}f", data)
