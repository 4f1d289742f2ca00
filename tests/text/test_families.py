"""Tokenizers of published model families: the ids of transformers, decoding, start and end tokens.

Each is a small tokenizer in a family's style, trained here and written by transformers as it writes the real ones:
as tokenizer.json, and for GPT-2, Qwen and OpenAI GPT as vocab.json and merges.txt too.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors, trainers

from foretell.text import Tokenizer, gpt2_tokenizer, load_tokenizer
from foretell.text.tokenizer_json import LLAMA3_PATTERN, QWEN2_PATTERN, piece_bytes

transformers = pytest.importorskip("transformers", reason="transformers is the oracle here")

BYTES = [f"<0x{byte:02X}>" for byte in range(256)]


def learned(backend: tokenizers.Tokenizer, texts: list[str], size: int, **options: Any) -> dict[str, Any]:
    """The `model` section of a backend trained on the texts."""
    backend.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=size, show_progress=False, **options))
    return json.loads(backend.to_str())["model"]


def byte_level(texts: list[str], pattern: str | None, size: int = 400) -> dict[str, Any]:
    """Byte-level BPE with words split by a pattern (None: GPT-2's)."""
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = byte_split(pattern)
    return learned(backend, texts, size, initial_alphabet=pre_tokenizers.ByteLevel.alphabet())


def byte_split(pattern: str | None) -> pre_tokenizers.PreTokenizer:
    if pattern is None:
        return pre_tokenizers.ByteLevel(add_prefix_space=False)
    split = pre_tokenizers.Split(Regex(pattern), "isolated")
    return pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def merges_of(model: dict[str, Any]) -> list[tuple[str, str]]:
    return [(first, second) for first, second in model["merges"]]


def gpt2(texts: list[str]) -> Any:
    model = byte_level(texts, None)
    vocabulary = model["vocab"] | {"<|endoftext|>": len(model["vocab"])}
    return transformers.GPT2Tokenizer(vocab=vocabulary, merges=merges_of(model))


def smollm(texts: list[str]) -> Any:
    """GPT-2's with single digits and the chat model's end of turn."""
    model = byte_level(texts, None)
    backend = tokenizers.Tokenizer(models.BPE(model["vocab"], merges_of(model)))
    split = [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    backend.pre_tokenizer = pre_tokenizers.Sequence(split)
    backend.decoder = decoders.ByteLevel()
    names = {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>", "unk_token": "<|endoftext|>"}
    return transformers.PreTrainedTokenizerFast(tokenizer_object=backend, **names)


def qwen(texts: list[str]) -> Any:
    model = byte_level(texts, QWEN2_PATTERN)
    made = transformers.Qwen2Tokenizer(vocab=model["vocab"], merges=merges_of(model), eos_token="<|im_end|>")
    made.add_tokens([AddedToken("<|im_start|>", special=True), AddedToken("<tool_call>", special=False)])
    return made


def llama3(texts: list[str]) -> Any:
    model = byte_level(texts, LLAMA3_PATTERN)
    backend = tokenizers.Tokenizer(models.BPE(model["vocab"], merges_of(model), ignore_merges=True))
    backend.pre_tokenizer, backend.decoder = byte_split(LLAMA3_PATTERN), decoders.ByteLevel()
    backend.add_special_tokens(["<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>"])
    start = ("<|begin_of_text|>", len(model["vocab"]))
    template = processors.TemplateProcessing(
        single=f"{start[0]} $A", pair=f"{start[0]} $A {start[0]}:1 $B:1", special_tokens=[start]
    )
    backend.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), template])
    names = {"bos_token": start[0], "eos_token": "<|eot_id|>"}
    return transformers.PreTrainedTokenizerFast(tokenizer_object=backend, **names)


def sentencepiece(texts: list[str]) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """Vocabulary and merges of a SentencePiece BPE: ▁ for spaces, a token for each byte, no split into words."""
    backend = tokenizers.Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    words = [word for text in texts for word in text.split(" ")]
    model = learned(backend, words, 420, special_tokens=["<unk>", "<s>", "</s>", *BYTES])
    return model["vocab"], merges_of(model)


def llama2(texts: list[str]) -> Any:
    """As Llama 2's tokenizer.json is published: a normalizer puts the ▁ in front."""
    vocabulary, merges = sentencepiece(texts)
    backend = tokenizers.Tokenizer(models.BPE(vocabulary, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    backend.decoder = decoders.Sequence(steps)
    backend.add_special_tokens(["<unk>", "<s>", "</s>"])
    backend.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s>:1 $B:1", special_tokens=[("<s>", vocabulary["<s>"])]
    )
    names = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    return transformers.PreTrainedTokenizerFast(tokenizer_object=backend, **names)


def mistral(texts: list[str]) -> Any:
    """As transformers' own class builds it: a pre-tokenizer puts the ▁ in front, only at the very beginning."""
    vocabulary, merges = sentencepiece(texts)
    return transformers.LlamaTokenizer(vocab=vocabulary, merges=merges, add_bos_token=True)


def openai_gpt(texts: list[str]) -> Any:
    backend = tokenizers.Tokenizer(models.BPE(unk_token="<unk>", end_of_word_suffix="</w>"))
    backend.normalizer = normalizers.BertNormalizer(lowercase=True)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    model = learned(backend, texts, 200, special_tokens=["<unk>"], end_of_word_suffix="</w>")
    return transformers.OpenAIGPTTokenizer(vocab=model["vocab"], merges=merges_of(model))


FAMILIES: dict[str, Callable[[list[str]], Any]] = {
    "gpt2": gpt2,
    "smollm": smollm,
    "qwen": qwen,
    "llama3": llama3,
    "llama2": llama2,
    "mistral": mistral,
    "openai-gpt": openai_gpt,
}


def write_pair(peer: Any, directory: Path) -> None:
    """Write a tokenizer as vocab.json, merges.txt and tokenizer_config.json, as those families were first published."""
    peer.save_pretrained(directory)
    content = json.loads((directory / "tokenizer.json").read_text(encoding="utf-8"))
    (directory / "tokenizer.json").unlink()
    model = content["model"]
    (directory / "vocab.json").write_text(json.dumps(model["vocab"]), encoding="utf-8")
    lines = ["#version: 0.2", *(" ".join(pair) for pair in model["merges"])]
    (directory / "merges.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    settings = json.loads((directory / "tokenizer_config.json").read_text(encoding="utf-8"))
    decoder = {str(token["id"]): {k: v for k, v in token.items() if k != "id"} for token in content["added_tokens"]}
    settings["added_tokens_decoder"] = decoder
    (directory / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")


PAIRS = ("gpt2", "qwen", "openai-gpt")
LOADED = [*FAMILIES, *(f"{family}-pair" for family in PAIRS)]
STARTS = {"llama3": "<|begin_of_text|>", "llama2": "<s>", "mistral": "<s>"}
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<s>", "</s>", "<unk>", "<|eot_id|>", "<tool_call>"]
# Text that breaks tokenizers: special tokens, runs of white space, digits, decomposed characters
AWKWARD = st.lists(
    st.one_of(
        st.text(max_size=8), st.sampled_from([*SPECIAL, " ", "  ", "\n", "\r\n", "▁", "1999", "e\u0301", "'s", "👩‍👧"])
    )
).map("".join)


@dataclass
class Pair:
    """A tokenizer as foretell reads it from a directory, and as transformers does."""

    ours: Tokenizer
    peer: Any
    directory: Path

    def peer_ids(self, text: str, allow_special: bool) -> list[int]:
        self.peer.backend_tokenizer.encode_special_tokens = not allow_special
        return self.peer.backend_tokenizer.encode(text, add_special_tokens=True).ids


@pytest.fixture(scope="module")
def pairs(corpus: list[str], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Pair]:
    made = {}
    for name in LOADED:
        directory = tmp_path_factory.mktemp(name)
        family = FAMILIES[name.removesuffix("-pair")](corpus)
        (write_pair if name.endswith("-pair") else type(family).save_pretrained)(family, directory)
        made[name] = Pair(load_tokenizer(directory), type(family).from_pretrained(directory), directory)
    return made


@pytest.fixture(scope="module")
def texts(data: Path, corpus: list[str]) -> list[str]:
    cases = json.loads((data / "tokenizer_cases" / "gpt2_cases.json").read_text(encoding="utf-8"))
    naughty = json.loads((data / "unicode" / "blns.json").read_text(encoding="utf-8"))
    demo = (data / "unicode" / "UTF-8-demo.txt").read_text(encoding="utf-8")
    emoji = (data / "unicode" / "emoji-test.txt").read_text(encoding="utf-8")[:30_000]
    return [*(case["text"] for case in cases), *naughty, demo, emoji, *corpus]


@pytest.mark.parametrize("name", LOADED)
@pytest.mark.parametrize("allow_special", [False, True])
def test_published_cases_and_unicode_match_transformers(
    pairs: dict[str, Pair], texts: list[str], name: str, allow_special: bool
) -> None:
    pair = pairs[name]
    for text in texts:
        ids = pair.ours.encode_input(text, allow_special)
        assert ids == pair.peer_ids(text, allow_special), text
        assert pair.ours.decode(ids) == pair.peer.decode(ids, clean_up_tokenization_spaces=False)


@pytest.mark.parametrize("name", LOADED)
@settings(max_examples=60)
@given(text=AWKWARD, allow_special=st.booleans())
def test_random_strings_match_transformers(pairs: dict[str, Pair], name: str, text: str, allow_special: bool) -> None:
    ours, expected = pairs[name].ours, pairs[name].peer_ids(text, allow_special)
    ids, encoded, start = ours.encode_input(text, allow_special), ours.encode(text, allow_special), [*ours.start_ids]
    if encoded[: len(start)] == start:  # transformers puts a second start token before such a text
        assert ids == encoded and expected == start + encoded
    else:
        assert ids == expected == start + encoded


BYTE_LEVEL = ("gpt2", "gpt2-pair", "smollm", "llama3")  # these tokens are the bytes of the text


@pytest.mark.parametrize("name", LOADED)
@settings(max_examples=60)
@given(text=AWKWARD, at=st.integers(0, 40))
def test_a_divided_text_has_the_ids_of_the_whole_and_the_answer_begins_with_its_first_character(
    pairs: dict[str, Pair], name: str, text: str, at: int
) -> None:
    ours, context = pairs[name].ours, text[:at]
    ((ids, first),) = ours.encode_answers(context, [text[at:]])
    assert ids == ours.encode_input(text)
    if name in BYTE_LEVEL:
        starts = len(ours.start_ids)
        sizes = [len(b"".join(map(ours.bytes_of, ids[starts:end]))) for end in range(starts, len(ids) + 1)]
        assert first == starts + sum(size <= len(context.encode()) for size in sizes[1:])


@pytest.mark.parametrize("name", LOADED)
@settings(max_examples=40)
@given(text=AWKWARD)
def test_streamed_text_equals_decoded_text(pairs: dict[str, Pair], name: str, text: str) -> None:
    ours = pairs[name].ours
    stream, ids = ours.stream(), ours.encode_input(text)
    assert "".join([*map(stream.push, ids), stream.finish()]) == ours.decode(ids)


@pytest.mark.parametrize("name", ["gpt2", "smollm", "llama3", "llama2", "gpt2-pair"])
@settings(max_examples=60)
@given(text=AWKWARD.map(lambda text: text.replace("▁", "_")))
def test_round_trip_of_any_text(pairs: dict[str, Pair], name: str, text: str) -> None:
    assert pairs[name].ours.decode(pairs[name].ours.encode(text)) == text


def test_known_changes_of_the_round_trip(pairs: dict[str, Pair]) -> None:
    back = {name: pair.ours.decode(pair.ours.encode(" E\u0301 the ▁ Cat.")) for name, pair in pairs.items()}
    assert back["qwen"] == " \u00c9 the ▁ Cat."  # NFC
    assert back["llama2"] == " E\u0301 the   Cat."  # ▁ is how a space is written
    assert back["mistral"] == "E\u0301 the   Cat."  # and the first one is removed as the one put in front
    assert back["openai-gpt"] == "e the <unk>cat ."  # lower case, no accents, no white space kept


@pytest.mark.parametrize("name", LOADED)
def test_start_token_is_in_encode_input_and_nowhere_else(pairs: dict[str, Pair], name: str) -> None:
    ours = pairs[name].ours
    start = STARTS.get(name)
    assert ours.start_ids == (() if start is None else (ours.special_tokens[start],))
    assert ours.encode_input("the cat") == [*ours.start_ids, *ours.encode("the cat")]
    assert not {*ours.start_ids} & {*ours.encode("the cat"), *ours.encode_long("the cat").tolist()}


@pytest.mark.parametrize("name", LOADED)
def test_special_tokens_in_a_text_stay_text_unless_allowed(pairs: dict[str, Pair], name: str) -> None:
    ours = pairs[name].ours
    special = {*ours.special_tokens.values()} - {ours.special_tokens.get("<unk>")}
    for token in ours.special_tokens:
        assert not special & {*ours.encode(f"a {token} b")}
        assert ours.special_tokens[token] in ours.encode(f"a {token} b", allow_special=True)


def test_end_token_of_each_family(pairs: dict[str, Pair]) -> None:
    ends = {name: [pair.ours.piece(token) for token in pair.ours.end_ids] for name, pair in pairs.items()}
    assert ends == {
        "gpt2": ["<|endoftext|>"],
        "gpt2-pair": ["<|endoftext|>"],
        "smollm": ["<|im_end|>"],
        "qwen": ["<|im_end|>"],
        "qwen-pair": ["<|im_end|>"],
        "llama3": ["<|eot_id|>"],
        "llama2": ["</s>"],
        "mistral": ["</s>"],
        "openai-gpt": [],
        "openai-gpt-pair": [],
    }


@pytest.mark.parametrize("name", LOADED)
def test_saving_and_loading_preserves_the_tokenizer(pairs: dict[str, Pair], name: str, tmp_path: Path) -> None:
    ours = pairs[name].ours
    ours.save(tmp_path / "tokenizer.json")
    again = load_tokenizer(tmp_path)
    assert again.fingerprint == ours.fingerprint
    assert (again.start_ids, again.end_ids, again.added_tokens) == (ours.start_ids, ours.end_ids, ours.added_tokens)


@pytest.mark.parametrize("name", ["llama3", "smollm", "qwen"])
def test_encode_long_equals_encode(pairs: dict[str, Pair], name: str, corpus: list[str]) -> None:
    text = "".join(corpus) * 900
    assert pairs[name].ours._cut is not None
    assert pairs[name].ours.encode_long(text).tolist() == pairs[name].ours.encode(text)


@pytest.mark.parametrize("name", ["llama3", "smollm", "qwen", "gpt2"])
def test_answers_after_a_long_context_have_the_ids_of_the_whole_text(
    pairs: dict[str, Pair], name: str, corpus: list[str]
) -> None:
    ours, context = pairs[name].ours, "".join(corpus) * 900
    answers = ["the", " the", "'s", ".", "\n the"]
    for answer, (ids, first) in zip(answers, ours.encode_answers(context, answers), strict=True):
        assert ids == ours.encode_input(context + answer)
        assert ours.decode(ids[first:]).endswith(answer) and first < len(ids)


@pytest.mark.parametrize("name", ["llama2", "mistral", "openai-gpt"])
def test_streamed_continuation_has_the_space_before_its_first_word(pairs: dict[str, Pair], name: str) -> None:
    """Without the prompt its first word would be the beginning of a text, which has no space."""
    ours = pairs[name].ours
    prompt, ids = ours.encode_input("the cat"), ours.encode("the mat")
    alone, after = ours.stream(), ours.stream(before=prompt)
    assert "".join([*map(alone.push, ids), alone.finish()]) == "the mat"
    for _ in range(2):
        assert "".join([*map(after.push, ids), after.finish()]) == " the mat"


def test_gpt2_ids_equal_those_of_tiktoken(gpt2: Tokenizer, data: Path, texts: list[str]) -> None:
    tiktoken = pytest.importorskip("tiktoken", reason="tiktoken is the oracle here")
    folder = data / "gpt2_bpe"
    pieces = json.loads((folder / "encoder.json").read_text(encoding="utf-8"))
    ranks = {piece_bytes(piece): rank for piece, rank in pieces.items() if piece != "<|endoftext|>"}
    pattern = r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"""
    special = {"<|endoftext|>": 50256}
    peer = tiktoken.Encoding("gpt2-here", pat_str=pattern, mergeable_ranks=ranks, special_tokens=special)
    ours = gpt2_tokenizer(folder / "encoder.json", folder / "vocab.bpe")
    for text in texts:
        assert ours.encode(text) == gpt2.encode(text) == peer.encode_ordinary(text)
        assert ours.encode(text, allow_special=True) == peer.encode(text, allowed_special="all")
