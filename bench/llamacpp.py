"""llama.cpp as a contender: the same weights in a GGUF file, any number of sequences in one batch."""

from __future__ import annotations

import ctypes
import importlib
import tempfile
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from measure import Clock

from foretell.convert.family import iter_theirs
from foretell.convert.gguf.metadata import choose_architecture, write_metadata
from foretell.convert.gguf.write import PackedTensor, write_gguf
from foretell.model.decoder import Decoder

llama_cpp: Any = importlib.import_module("llama_cpp")  # its annotations leave out what its calls return
CONTEXT = 1024
PREFILL_AT_ONCE = 512
ALWAYS_FLOAT32 = ("position_embd.weight",)


class LlamaCpp:
    """A file's model in llama.cpp, with this context for each of its rows."""

    name = "llama.cpp"

    def __init__(self, path: Path, vocab_size: int, rows: int, context: int):
        self.vocab_size, self.rows = vocab_size, rows
        llama_cpp.llama_backend_init()
        llama_cpp.llama_log_set(ignore_log, None)
        settings = llama_cpp.llama_model_default_params()
        settings.use_mmap = False
        self.model: Any = llama_cpp.llama_model_load_from_file(str(path).encode(), settings)
        settings = llama_cpp.llama_context_default_params()
        settings.n_ctx, settings.n_seq_max = context * rows, rows
        settings.n_batch = settings.n_ubatch = max(PREFILL_AT_ONCE, rows)
        settings.n_threads = settings.n_threads_batch = torch.get_num_threads()
        self.context: Any = llama_cpp.llama_init_from_model(self.model, settings)

    def decode(self, prompts: list[list[int]], new_tokens: int) -> tuple[float, list[list[int]]]:
        """Greedy continuations, and the seconds from the first token to the last."""
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self.context), True)
        newest = [self._read_prompt(row, prompt) for row, prompt in enumerate(prompts)]
        texts, started = [[token] for token in newest], Clock.now()
        for step in range(new_tokens - 1):
            positions = [len(prompt) + step for prompt in prompts]
            newest = self._read(newest, positions, list(range(len(prompts))), [True] * len(prompts))
            for text, token in zip(texts, newest, strict=True):
                text.append(token)
        return Clock.now() - started, texts

    def read(self, prompt: list[int]) -> float:
        """The seconds of reading a prompt, up to the next token's logits."""
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self.context), True)
        started = Clock.now()
        self._read_prompt(0, prompt)
        return Clock.now() - started

    def _read_prompt(self, row: int, prompt: list[int]) -> int:
        tokens: list[int] = []
        for first in range(0, len(prompt), PREFILL_AT_ONCE):
            part = prompt[first : first + PREFILL_AT_ONCE]
            is_last = [first + index + 1 == len(prompt) for index in range(len(part))]
            tokens = self._read(part, range(first, first + len(part)), [row] * len(part), is_last)
        return tokens[-1]

    def _read(self, tokens: list[int], positions: Any, rows: list[int], wanted: list[bool]) -> list[int]:
        """Read tokens; the likeliest next token after each that is wanted."""
        batch = llama_cpp.llama_batch_init(len(tokens), 0, 1)
        batch.n_tokens = len(tokens)
        for index, (token, position, row, want) in enumerate(zip(tokens, positions, rows, wanted, strict=True)):
            batch.token[index], batch.pos[index] = token, position
            batch.n_seq_id[index], batch.seq_id[index][0] = 1, row
            batch.logits[index] = want
        status = llama_cpp.llama_decode(self.context, batch)
        assert status == 0, f"llama_decode returned {status}"
        found = [
            int(np.ctypeslib.as_array(llama_cpp.llama_get_logits_ith(self.context, index), (self.vocab_size,)).argmax())
            for index, want in enumerate(wanted)
            if want
        ]
        llama_cpp.llama_batch_free(batch)
        return found


@llama_cpp.llama_log_callback
def ignore_log(level: int, text: bytes, data: ctypes.c_void_p) -> None:
    """llama.cpp writes nothing."""


def open_decoder(decoder: Decoder, precision: str, rows: int) -> LlamaCpp:
    """A decoder's weights in llama.cpp; precision: f32, bf16, q8_0 or q4_0."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.gguf"
        write_file(decoder, precision, path)
        return LlamaCpp(path, decoder.config.vocab_size, rows, CONTEXT)


def write_file(decoder: Decoder, precision: str, path: Path) -> None:
    """Write a GGUF file without a tokenizer; input and output are token ids."""
    family = choose_architecture(decoder.config)
    pairs = {
        "general.type": "model",
        **write_metadata(family, decoder.config),
        "tokenizer.ggml.model": "none",
        f"{family.name}.vocab_size": decoder.config.vocab_size,
    }
    weights = {path: weight.detach().to("cpu", torch.float32) for path, weight in decoder.named_parameters()}
    tensors = {}
    for name, tensor in iter_theirs(family, decoder.config, weights):
        kind = "F32" if tensor.dim() < 2 or name in ALWAYS_FLOAT32 else precision.upper()
        content = gguf.quantize(tensor.numpy(), gguf.GGMLQuantizationType[kind])
        tensors[name] = PackedTensor(kind, torch.from_numpy(content))
    write_gguf(path, family.name, pairs, tensors)
