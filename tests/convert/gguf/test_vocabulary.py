"""Tokenizers in a GGUF file: SentencePiece's pieces, scores and bytes return as the same tokenizer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import foretell
from foretell.convert.gguf.export import export_gguf
from foretell.convert.gguf.vocabulary import (
    BYTE,
    CONTROL,
    KINDS,
    NORMAL,
    SCORES,
    TOKENS,
    read_vocabulary,
    write_vocabulary,
)
from foretell.errors import TokenizerError
from foretell.text import Tokenizer

PIECES = ("▁", "t", "h", "e", "o", "n", "th", "he", "the", "▁the", "▁t", "on", "one", "▁▁", "en", "▁o", "then")
TEXTS = ("the one then", "  othen\tthe", "é 漢字 🙂", "<s></s> one<0x41>", "▁the", "")


def sentencepiece_pairs(**changes: Any) -> dict[str, Any]:
    """The pairs of a file whose pieces have scores in another order than their ids."""
    names = ["<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *PIECES]
    kinds = [CONTROL] * 2 + [BYTE] * 256 + [NORMAL] * len(PIECES)
    scores = [0.0] * 258 + [-float(index * 7 % len(PIECES)) for index in range(len(PIECES))]
    ids = {"tokenizer.ggml.bos_token_id": 0, "tokenizer.ggml.eos_token_id": 1}
    return {"tokenizer.ggml.model": "llama", TOKENS: names, KINDS: kinds, SCORES: scores, **ids, **changes}


def read(pairs: dict[str, Any]) -> Tokenizer:
    tokenizer = read_vocabulary(pairs)
    assert tokenizer is not None
    return tokenizer


@pytest.mark.parametrize("has_prefix", [False, True])
@pytest.mark.parametrize("unknown", [False, True])
def test_sentencepiece_returns(has_prefix: bool, unknown: bool) -> None:
    pairs = sentencepiece_pairs(**{"tokenizer.ggml.add_space_prefix": has_prefix})
    pairs[KINDS][5 if unknown else 0] = 2 if unknown else CONTROL
    first = read(pairs)
    written = write_vocabulary(first, 280)
    assert written[TOKENS][:275] == pairs[TOKENS] and written[KINDS][:275] == pairs[KINDS]
    assert written["tokenizer.ggml.add_space_prefix"] == has_prefix and written["tokenizer.ggml.add_bos_token"] is True
    second = read(written)
    assert second.to_json() == first.to_json()
    assert [second.encode(text) for text in TEXTS] == [first.encode(text) for text in TEXTS]
    assert second.end_ids == first.end_ids == (1,) and second.start_ids == (0,)


def test_a_model_with_sentencepiece_goes_to_gguf_and_back(make_model, tmp_path: Path) -> None:
    tokenizer = read(sentencepiece_pairs())
    report = export_gguf(make_model("gemma3", tokenizer), tmp_path / "out.gguf")
    assert report["pre_tokenizer"] == "default" and report["notes"] == []
    assert foretell.load(tmp_path / "out.gguf").tokenizer.to_json() == tokenizer.to_json()


def test_other_merges_with_bytes_are_refused() -> None:
    document = read(sentencepiece_pairs()).to_json()
    for name, value in (("merges", document["model"]["merges"][1:]), ("fuse_unk", False)):
        other = Tokenizer({**document, "model": {**document["model"], name: value}})
        with pytest.raises(TokenizerError, match="is not SentencePiece's BPE"):
            write_vocabulary(other, 280)
