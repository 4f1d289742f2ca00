"""A small GPT-2 directory with random weights for the commands in the documents, written by transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from foretell.text import train_tokenizer

TEXT = "Once upon a time there was a cat. It sat on a mat, and the dog sat on a log.\n" * 80
END = "<|endoftext|>"


@pytest.fixture(scope="session")
def gpt2_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """config.json, model.safetensors, tokenizer.json and tokenizer_config.json of an untrained GPT-2."""
    directory = tmp_path_factory.mktemp("models") / "gpt2"
    transformers.logging.disable_progress_bar()
    tokenizer = train_tokenizer("bpe", [TEXT], vocab_size=320)
    sizes = {"n_layer": 2, "n_head": 2, "n_embd": 64, "n_positions": 64, "vocab_size": tokenizer.vocab_size}
    ends = {"bos_token_id": tokenizer.end_id, "eos_token_id": tokenizer.end_id}
    config = transformers.GPT2Config(**sizes, **ends, initializer_range=0.1)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        transformers.GPT2LMHeadModel(config).save_pretrained(directory)
    model = tokenizer.to_json()["model"]
    merges: Any = [tuple(merge) for merge in model["merges"]]
    special = dict.fromkeys(("bos_token", "eos_token", "unk_token"), END)
    transformers.GPT2Tokenizer(vocab=model["vocab"], merges=merges, **special).save_pretrained(directory)
    return directory
