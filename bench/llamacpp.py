"""llama.cpp as a contender: the same weights in a GGUF file, run by llama-cpp-python, one row at a time."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import llama_cpp
import numpy as np
import torch
from torch import Tensor

from foretell.convert.gguf.architectures import GPT2_FILE, write_metadata
from foretell.convert.gguf.writer import pack_weights, write_gguf
from foretell.model.decoder import Decoder

FILES = {torch.float32: "f32", torch.bfloat16: "f16"}  # both 16 bits; foretell writes no bfloat16 GGUF files


def make_llamacpp(decoder: Decoder, dtype: torch.dtype) -> tuple[Callable, Callable]:
    """Two functions of prompts (1, T): one generates greedily, the other computes the next token's logits."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "gpt2.gguf"
        write_file(decoder, FILES[dtype], path)
        threads = torch.get_num_threads()
        llama = llama_cpp.Llama(
            str(path),
            n_ctx=1024,
            n_batch=512,
            n_threads=threads,
            n_threads_batch=threads,
            use_mmap=False,
            verbose=False,
        )

    def read(prompts: Tensor) -> np.ndarray[Any, Any]:
        llama.reset()
        llama.eval(prompts[0].tolist())
        return last_logits(llama, decoder.config.vocab_size)

    def generate_all(prompts: Tensor, new_tokens: int) -> list[list[int]]:
        generated = [int(read(prompts).argmax())]
        while len(generated) < new_tokens:
            llama.eval(generated[-1:])
            generated.append(int(last_logits(llama, decoder.config.vocab_size).argmax()))
        return [generated]

    return generate_all, read


def write_file(decoder: Decoder, precision: str, path: Path) -> None:
    """Write a GGUF file without a tokenizer; input and output are token ids."""
    pairs = {
        "general.type": "model",
        **write_metadata(GPT2_FILE, decoder.config),
        "tokenizer.ggml.model": "none",
        "gpt2.vocab_size": decoder.config.vocab_size,
    }
    write_gguf(gguf, path, "gpt2", pairs, pack_weights(gguf, decoder, GPT2_FILE, precision))


def last_logits(llama: llama_cpp.Llama, vocab_size: int) -> np.ndarray[Any, Any]:
    """Logits (V,) of the token after the last one."""
    return np.ctypeslib.as_array(llama_cpp.llama_get_logits_ith(llama.ctx, -1), shape=(vocab_size,))
