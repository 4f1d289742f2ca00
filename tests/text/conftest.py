"""Shared fixtures: a small text with awkward characters, tokenizers trained on it, and GPT-2's real files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from foretell.text import Tokenizer, load_tokenizer, train_tokenizer

SHARED = os.environ.get("FORETELL_SHARED") or Path(__file__).resolve().parents[3] / "shared"
DATA = Path(SHARED) / "data"

CORPUS = [
    "The cat sat on the mat, and the other cat didn't.\nThat's 3 cats; 1999 of them would've been too many!\n",
    "Größe, naïve café: 東京 の天気。\r\n\r\n\tfor i in range(10):\n        print(i)  # ☃ 👩‍👩‍👧 e\u0301\n",
    "the the the then there these  those   that\n\n\nthis\n",
]


@pytest.fixture(scope="session")
def corpus() -> list[str]:
    return CORPUS


@pytest.fixture(scope="session")
def trained() -> dict[str, Tokenizer]:
    """One tokenizer of each trained kind and split."""
    return {
        "characters": train_tokenizer("characters", CORPUS),
        "words": train_tokenizer("words", CORPUS),
        "words-capped": train_tokenizer("words", CORPUS, vocab_size=12),
        "bytes": train_tokenizer("bytes", CORPUS),
        "bpe-gpt2": train_tokenizer("bpe", CORPUS, vocab_size=330),
        "bpe-qwen2": train_tokenizer("bpe", CORPUS, vocab_size=330, split="qwen2"),
    }


@pytest.fixture(scope="session")
def data() -> Path:
    if not DATA.is_dir():
        pytest.skip(f"the shared test data is not at {DATA}")
    return DATA


@pytest.fixture(scope="session")
def gpt2(data: Path) -> Tokenizer:
    return load_tokenizer(data / "gpt2_bpe" / "tokenizer.json")
