"""GPT-2's published files and published cases, compared with transformers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from foretell.text import Tokenizer, gpt2_tokenizer, load_tokenizer

IONQ = (
    "The shares of IonQ Inc. and other companies linked to quantum computing tumbled in premarket trading on "
    "Wednesday, after Nvidia Corp. Chief Executive Officer Jensen Huang said that “very useful” "
    "quantum computers are likely decades away"
)
IONQ_IDS = (
    "464 7303 286 36404 48 3457 13 290 584 2706 6692 284 14821 14492 256 11137 287 662 10728 7313 319 3583 11 706 "
    "27699 11421 13 5953 10390 10391 32623 31663 531 326 564 250 548 4465 447 251 14821 9061 389 1884 4647 1497"
)


@pytest.fixture(scope="module")
def naughty(data: Path) -> list[str]:
    return json.loads((data / "unicode" / "blns.json").read_text(encoding="utf-8"))


def test_published_cases(gpt2: Tokenizer, data: Path) -> None:
    cases = json.loads((data / "tokenizer_cases" / "gpt2_cases.json").read_text(encoding="utf-8"))
    assert cases
    for case in cases:
        assert gpt2.encode(case["text"], allow_special="allowed_special" in case["source"]) == case["ids"]
        assert gpt2.decode(case["ids"]) == case["text"]


def test_worked_sentence_has_46_tokens(gpt2: Tokenizer) -> None:
    ids = gpt2.encode(IONQ)
    assert ids == [int(token_id) for token_id in IONQ_IDS.split()]
    assert len(ids) == 46
    assert gpt2.pieces([564, 250, 447, 251]) == ["ĠâĢ", "ľ", "âĢ", "Ŀ"]
    assert [gpt2.text_of(token) for token in (464, 7303, 564, 250)] == ["The", " shares", " <0xE2><0x80>", "<0x9C>"]
    assert gpt2.decode(ids) == IONQ


def test_attributes_of_gpt2(gpt2: Tokenizer) -> None:
    assert (gpt2.kind, gpt2.vocab_size, gpt2.end_id, gpt2.start_id) == ("bpe", 50257, 50256, None)
    assert gpt2.special_tokens == {"<|endoftext|>": 50256}


def test_truncation_in_the_published_file_is_ignored(gpt2: Tokenizer) -> None:
    """The tokenizer.json that comes with the files truncates at 50 tokens."""
    assert len(gpt2.encode("word " * 200)) > 200
    assert len(gpt2.encode_long("word " * 200)) > 200


@pytest.mark.parametrize(("vocab", "merges"), [("encoder.json", "vocab.bpe"), ("hf_vocab.json", "hf_merges.txt")])
def test_vocabulary_and_merges_equal_tokenizer_json(
    gpt2: Tokenizer, data: Path, naughty: list[str], vocab: str, merges: str
) -> None:
    files = gpt2_tokenizer(data / "gpt2_bpe" / vocab, data / "gpt2_bpe" / merges)
    assert (files.kind, files.vocab_size, files.end_id) == (gpt2.kind, gpt2.vocab_size, gpt2.end_id)
    for text in naughty:
        assert files.encode(text) == gpt2.encode(text)


def test_ids_and_text_equal_those_of_transformers(gpt2: Tokenizer, data: Path, naughty: list[str]) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is the oracle here")
    folder = data / "gpt2_bpe"
    peer = transformers.GPT2TokenizerFast(vocab=str(folder / "encoder.json"), merges=str(folder / "vocab.bpe"))
    for text in [*naughty, IONQ, (data / "unicode" / "UTF-8-demo.txt").read_text(encoding="utf-8")]:
        ids = gpt2.encode(text)
        assert peer.encode(text) == ids
        assert peer.decode(ids, clean_up_tokenization_spaces=False) == gpt2.decode(ids) == text


def test_encode_long_equals_encode_on_a_real_text(gpt2: Tokenizer, data: Path) -> None:
    text = (data / "unicode" / "emoji-test.txt").read_text(encoding="utf-8")[:200_000]
    assert gpt2.encode_long(text).tolist() == gpt2.encode(text)


def test_directory_with_vocabulary_and_merges(gpt2: Tokenizer, data: Path, tmp_path: Path) -> None:
    (tmp_path / "vocab.json").write_bytes((data / "gpt2_bpe" / "encoder.json").read_bytes())
    (tmp_path / "merges.txt").write_bytes((data / "gpt2_bpe" / "vocab.bpe").read_bytes())
    assert load_tokenizer(tmp_path).encode(IONQ) == gpt2.encode(IONQ)
