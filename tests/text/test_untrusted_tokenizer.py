"""A small tokenizer.json cannot take much memory or time, and published ones are within the bounds."""

from __future__ import annotations

import base64
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from foretell.errors import TokenizerError
from foretell.text import Tokenizer, load_tokenizer, train_tokenizer
from foretell.text.untrusted_tokenizer import (
    MOST_EXPANSION,
    MOST_PREPENDED,
    MOST_TEMPLATE_IDS,
    MOST_UNUSED_IDS,
    gets_whole_texts,
)

WORDS: dict[str, Any] = {"type": "WordLevel", "vocab": {"a": 0, "b": 1}, "unk_token": "a"}
PIECES: dict[str, Any] = {"type": "BPE", "vocab": {"a": 0}, "merges": []}
REPLACE = {"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 100}
REGEX = {"type": "Replace", "pattern": {"Regex": "|a"}, "content": "a" * 100}
START = {"id": 2, "content": "<s>", "special": True} | dict.fromkeys(
    ("single_word", "lstrip", "rstrip", "normalized"), False
)
SEQUENCE = {"Sequence": {"id": "A", "type_id": 0}}


def charsmap(text: str) -> str:
    return base64.b64encode(struct.pack("<I", 4) + bytes(4) + text.encode() + b"\0").decode()


def sequence(section: str, steps: list[dict[str, Any]]) -> dict[str, Any]:
    names = {"normalizer": "normalizers", "pre_tokenizer": "pretokenizers", "decoder": "decoders"}
    return {section: {"type": "Sequence", names[section]: steps}}


def template(ids: int) -> dict[str, Any]:
    entry = {"id": "<s>", "ids": [2] * ids, "tokens": ["<s>"] * ids}
    step = {"SpecialToken": {"id": "<s>", "type_id": 0}}
    single = {"single": [step, SEQUENCE], "pair": [SEQUENCE, SEQUENCE], "special_tokens": {"<s>": entry}}
    return {"added_tokens": [START], "post_processor": {"type": "TemplateProcessing", **single}}


BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
COSTLY: dict[str, tuple[dict[str, Any], str]] = {
    "an id of 2^31-1": ({"model": WORDS | {"vocab": {"a": 0, "b": 2**31 - 1}}}, "'b' has the id 2147483647"),
    "an id of 2^32-2": ({"model": WORDS | {"vocab": {"a": 0, "b": 2**32 - 2}}}, "'b' has the id 4294967294"),
    "normalizers in steps": (sequence("normalizer", [REPLACE] * 5), "normalizer can make a text 10,000,000,000 times"),
    "a pattern that matches nothing": (sequence("normalizer", [REGEX]), "normalizer can make a text 101 times"),
    "nested normalizers": (
        sequence("normalizer", [sequence("normalizer", [REPLACE])["normalizer"]]),
        "normalizer can make a text 100 times",
    ),
    "byte-level steps": (sequence("pre_tokenizer", [BYTE_LEVEL] * 20), "pre_tokenizer can make a text 1,048,576 times"),
    "decoders in steps": (sequence("decoder", [REPLACE] * 5), "decoder can make a text 10,000,000,000 times"),
    "decoders that double": (sequence("decoder", [{"type": "BPEDecoder", "suffix": ""}] * 30), "decoder can make"),
    "a precompiled table": (
        {"normalizer": {"type": "Precompiled", "precompiled_charsmap": charsmap("x" * 5000)}},
        "normalizer can make a text 5,000 times",
    ),
    "a merge in the middle of a character": (
        {"model": PIECES | {"vocab": {"a": 0, "é": 1}, "merges": [["a", "é"]], "continuing_subword_prefix": "#"}},
        "the second token of merge 1 lacks the prefix '#'",
    ),
    "a merge shorter than its prefix": (
        {"model": PIECES | {"vocab": {"a": 0, "b": 1}, "merges": ["a b"], "continuing_subword_prefix": "##########"}},
        "the second token of merge 1 lacks the prefix",
    ),
    "many steps": (sequence("normalizer", [{"type": "NFC"}] * 500), r"normalizer has 501 steps \(at most 200\)"),
    "prepending 1 MB": ({"normalizer": {"type": "Prepend", "prepend": "a" * 10**6}}, "has 1,000,000 characters"),
    "a long suffix": ({"model": PIECES | {"end_of_word_suffix": "b" * 10**6}}, "end_of_word_suffix has 1,000,000 char"),
    "a million start ids": (template(10**6), "its template puts 1,000,000 tokens around a text"),
}


@pytest.mark.parametrize("what", COSTLY)
def test_costly_tokenizer_is_refused_before_the_library_reads_it(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("foretell.text.untrusted_tokenizer.tokenizers", None)
    sections, message = COSTLY[what]
    with pytest.raises(TokenizerError, match=message) as raised:
        Tokenizer({"version": "1.0", "model": WORDS} | sections, "x.json")
    assert "\n" not in str(raised.value)


def test_what_is_just_within_the_bounds_loads() -> None:
    within = REPLACE | {"content": "a" * MOST_EXPANSION}
    for sections in (
        {"normalizer": within},
        {"decoder": within},
        {"normalizer": {"type": "Prepend", "prepend": "a" * MOST_PREPENDED}},
        template(MOST_TEMPLATE_IDS),
    ):
        Tokenizer({"version": "1.0", "model": WORDS} | sections).encode_input("a")


def test_a_vocabulary_may_have_unused_ids() -> None:
    content = {"version": "1.0", "model": WORDS | {"vocab": {"a": 0, "b": MOST_UNUSED_IDS}}}
    assert Tokenizer(content).encode("b") == [MOST_UNUSED_IDS]


def test_every_kind_trained_here_is_within_the_bounds(tmp_path: Path) -> None:
    for kind in ("bpe", "bytes", "characters", "words"):
        train_tokenizer(kind, ["a text"]).save(tmp_path / "x.json", overwrite=True)
        load_tokenizer(tmp_path / "x.json")


GROWTH = """
import re, sys
from pathlib import Path
from foretell.text import load_tokenizer

def own_memory():
    return int(re.findall(r"RssAnon:\\s+(\\d+)", Path("/proc/self/status").read_text())[0])

backend = load_tokenizer(Path(sys.argv[1]))._plain
before = own_memory()
for number in range(3000):
    backend.encode(f"{number:x>250b}".translate({ord("0"): "a", ord("1"): "b"}))
print(own_memory() - before)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc")
@pytest.mark.parametrize(("kind", "is_kept"), [("bytes", False), ("bpe", True)])
def test_the_library_keeps_words_but_not_whole_texts(kind: str, is_kept: bool, tmp_path: Path) -> None:
    """It would keep the texts of a server's users, up to 80 MB of them. The process is new: it has no free memory."""
    train_tokenizer(kind, ["a text"]).save(tmp_path / "x.json", overwrite=True)
    assert gets_whole_texts(load_tokenizer(tmp_path / "x.json").to_json()) != is_kept
    command = [sys.executable, "-c", GROWTH, str(tmp_path / "x.json")]
    growth = int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)  # kilobytes
    assert (growth > 2**13) == is_kept
