"""Reading tokenizers from disk; every bad file is an error of one line that names it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from foretell.errors import OutputError, TokenizerError
from foretell.text import Tokenizer, gpt2_tokenizer, load_tokenizer, train_tokenizer

WORDS = {"type": "WordLevel", "vocab": {"a": 0, "b": 1}, "unk_token": "a"}
ADDED = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False)


def tokenizer_json(**sections: Any) -> str:
    return json.dumps({"version": "1.0", "model": WORDS} | sections)


BROKEN = {
    "empty": b"",
    "not JSON": b"hello",
    "cut short": tokenizer_json()[:40].encode(),
    "not UTF-8": b"\xff\xfe\x00{",
    "a list": b"[]",
    "null": b"null",
    "a number": b"1",
    "an empty object": b"{}",
    "nested deeply": b"[" * 200_000,
    "nested deeply inside": tokenizer_json(normalizer=0).replace(
        '"normalizer": 0', '"normalizer": ' + '{"type":"Sequence","normalizers":[' * 300 + "]}" * 300
    ).encode(),
    "model is a list": tokenizer_json(model=[]).encode(),
    "model of an unknown type": tokenizer_json(model={"type": "Magic"}).encode(),
    "vocabulary is a list": tokenizer_json(model=WORDS | {"vocab": [1]}).encode(),
    "vocabulary is empty": tokenizer_json(model=WORDS | {"vocab": {}}).encode(),
    "ids are text": tokenizer_json(model=WORDS | {"vocab": {"a": "0"}}).encode(),
    "ids are negative": tokenizer_json(model=WORDS | {"vocab": {"a": -1}}).encode(),
    "ids are too large": tokenizer_json(model=WORDS | {"vocab": {"a": 2**32}}).encode(),
    "ids occur twice": tokenizer_json(model=WORDS | {"vocab": {"a": 0, "b": 0}}).encode(),
    "version of the future": tokenizer_json(version="9.0").encode(),
    "added tokens are text": tokenizer_json(added_tokens="x").encode(),
    "added tokens are numbers": tokenizer_json(added_tokens=[1]).encode(),
    "an added token lacks its content": tokenizer_json(added_tokens=[{"id": 2}]).encode(),
    "an added token's content is a number": tokenizer_json(added_tokens=[ADDED | {"id": 2, "content": 5}]).encode(),
    "added tokens leave a gap": tokenizer_json(added_tokens=[ADDED | {"id": 9, "content": "c"}]).encode(),
    "a pattern is not a regular expression": tokenizer_json(
        pre_tokenizer={"type": "Split", "pattern": {"Regex": "("}, "behavior": "Isolated", "invert": False}
    ).encode(),
    "a merge of a token that is missing": tokenizer_json(
        model={"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": ["a c"]}
    ).encode(),
    "a merge to a token that is missing": tokenizer_json(
        model={"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": [["a", "b"]]}
    ).encode(),
    "a merge of three": tokenizer_json(model={"type": "BPE", "vocab": {"a": 0}, "merges": ["a a a"]}).encode(),
    "a merge that is a number": tokenizer_json(model={"type": "BPE", "vocab": {"a": 0}, "merges": [5]}).encode(),
    "a prefix that is a number": tokenizer_json(
        model={"type": "BPE", "vocab": {"a": 0}, "merges": [["a", "a"]], "continuing_subword_prefix": 5}
    ).encode(),
    "a template token without an entry": tokenizer_json(
        post_processor={
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
            "special_tokens": {},
        }
    ).encode(),
    "a table that makes the library panic": tokenizer_json(
        normalizer={"type": "Precompiled", "precompiled_charsmap": "AAAA"}
    ).encode(),
    "a table without an index": tokenizer_json(
        normalizer={"type": "Precompiled", "precompiled_charsmap": "AAAAAHgA"}
    ).encode(),
    "words of no characters": tokenizer_json(pre_tokenizer={"type": "FixedLength", "length": 0}).encode(),
}  # fmt: skip


@pytest.mark.parametrize("what", BROKEN)
def test_broken_file_is_named_in_one_line(what: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_bytes(BROKEN[what])
    for source in (path, tmp_path):
        with pytest.raises(TokenizerError) as caught:
            load_tokenizer(source)
        assert str(path) in str(caught.value)
        assert "\n" not in str(caught.value)
        assert len(str(caught.value)) < 400
    assert capfd.readouterr().err == ""  # a panic in Rust prints its own text


def test_intact_file_behind_the_broken_ones_loads(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(tokenizer_json())
    assert load_tokenizer(tmp_path).encode("b") == [1]


def test_file_cut_short_anywhere_is_refused(tmp_path: Path) -> None:
    train_tokenizer("words", ["a b c"]).save(tmp_path / "whole.json")
    whole = (tmp_path / "whole.json").read_bytes().rstrip()
    for length in range(0, len(whole), 37):
        (tmp_path / "cut.json").write_bytes(whole[:length])
        with pytest.raises(TokenizerError, match=r"cut\.json"):
            load_tokenizer(tmp_path / "cut.json")


def test_panic_in_rust_becomes_a_tokenizer_error() -> None:
    words = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    content = json.loads(tokenizer_json(normalizer={"type": "Prepend", "prepend": ""}, pre_tokenizer=words))
    with pytest.raises(TokenizerError, match="cannot be encoded: index out of bounds"):
        Tokenizer(content).encode("ab")


def test_missing_file_is_named_with_the_nearest_name(tmp_path: Path) -> None:
    train_tokenizer("bytes", ["a"]).save(tmp_path / "tokenizer.json")
    with pytest.raises(TokenizerError, match=r"tokeniser.json is missing, did you mean 'tokenizer.json'\?"):
        load_tokenizer(tmp_path / "tokeniser.json")
    with pytest.raises(TokenizerError, match="is missing"):
        load_tokenizer(tmp_path / "nowhere" / "tokenizer.json")


def test_folder_without_a_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match=r"holds no tokenizer; it needs tokenizer\.json"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize("name", ["tokenizer_config.json", "special_tokens_map.json"])
@pytest.mark.parametrize("form", [str, lambda token: {"content": token, "special": True}])
def test_end_token_of_a_settings_file_survives_saving(tmp_path: Path, name: str, form: Any) -> None:
    """A chat model ends its turns with a different token than the base model's documents."""
    specials = [ADDED | {"id": 2 + n, "content": token, "special": True} for n, token in enumerate(("</s>", "<turn>"))]
    (tmp_path / "tokenizer.json").write_text(tokenizer_json(added_tokens=specials))
    assert load_tokenizer(tmp_path).end_id == 2
    (tmp_path / name).write_text(json.dumps({"eos_token": form("<turn>")}))
    loaded = load_tokenizer(tmp_path)
    assert loaded.end_id == 3
    assert loaded.encode("b") == [1]
    loaded.save(tmp_path / "alone.json")
    assert load_tokenizer(tmp_path / "alone.json").end_id == 3
    assert load_tokenizer(tmp_path / "alone.json").start_id is None


def test_end_token_of_the_plain_vocabulary_becomes_special(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(tokenizer_json(pre_tokenizer={"type": "WhitespaceSplit"}))
    (tmp_path / "tokenizer_config.json").write_text('{"eos_token": "b"}')
    tokenizer = load_tokenizer(tmp_path)
    assert (tokenizer.end_id, tokenizer.special_tokens) == (1, {"b": 1})
    with pytest.raises(TokenizerError, match="'b', which is a special token"):
        tokenizer.encode("a b")


def test_start_token_survives_declaring_an_end_token(tmp_path: Path) -> None:
    names = ("<s>", "</s>", "<turn>")
    specials = [ADDED | {"id": 2 + n, "content": token, "special": True} for n, token in enumerate(names)]
    sequence = {"Sequence": {"id": "A", "type_id": 0}}
    template = {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, sequence],
        "pair": [sequence, {"Sequence": {"id": "B", "type_id": 0}}],
        "special_tokens": {"<s>": {"id": "<s>", "ids": [2], "tokens": ["<s>"]}},
    }
    (tmp_path / "tokenizer.json").write_text(tokenizer_json(added_tokens=specials, post_processor=template))
    assert load_tokenizer(tmp_path).end_id == 3
    (tmp_path / "tokenizer_config.json").write_text('{"eos_token": "<turn>"}')
    tokenizer = load_tokenizer(tmp_path)
    assert (tokenizer.start_id, tokenizer.end_id) == (2, 4)


def test_end_token_missing_from_tokenizer_json_is_refused(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(tokenizer_json())
    (tmp_path / "tokenizer_config.json").write_text('{"eos_token": "<gone>"}')
    with pytest.raises(TokenizerError, match=r"its end token '<gone>' is not in tokenizer\.json"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize("content", ["[]", "{", ""])
def test_broken_settings_file_is_named(tmp_path: Path, content: str) -> None:
    (tmp_path / "tokenizer.json").write_text(tokenizer_json())
    (tmp_path / "tokenizer_config.json").write_text(content)
    with pytest.raises(
        TokenizerError, match=r"tokenizer_config\.json (is not readable JSON|does not hold a JSON object)"
    ):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize(
    ("vocabulary", "merges", "message"),
    [
        ("[]", "", "does not hold a JSON object"),
        ("{}", "", "is not a vocabulary"),
        ('{"a": "x"}', "", "is not a vocabulary"),
        ('{"a": 0}', "#version: 0.2\na b c\n", "line 2: a merge is two tokens"),
        ('{"a": 0}', "#version: 0.2\na z\n", "merge 1 needs the token 'z'"),
    ],
)
def test_vocabulary_and_merges_that_do_not_fit_are_refused(
    tmp_path: Path, vocabulary: str, merges: str, message: str
) -> None:
    (tmp_path / "vocab.json").write_text(vocabulary)
    (tmp_path / "merges.txt").write_text(merges)
    for load in (
        lambda: load_tokenizer(tmp_path),
        lambda: gpt2_tokenizer(tmp_path / "vocab.json", tmp_path / "merges.txt"),
    ):
        with pytest.raises(TokenizerError, match=message):
            load()


def test_vocabulary_and_merges_of_another_class_are_refused(tmp_path: Path) -> None:
    (tmp_path / "vocab.json").write_text('{"a": 0}')
    (tmp_path / "merges.txt").write_text("")
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "RobertaTokenizerFast"}')
    with pytest.raises(TokenizerError, match="of a RobertaTokenizerFast, not of one of GPT2Tokenizer"):
        load_tokenizer(tmp_path)


def test_transformers_reads_saved_tokenizers(tmp_path: Path, corpus: list[str]) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is the oracle here")
    for kind in ("characters", "bytes", "bpe"):
        tokenizer = train_tokenizer(kind, corpus)
        tokenizer.save(tmp_path / "tokenizer.json", overwrite=True)
        peer = transformers.PreTrainedTokenizerFast(tokenizer_file=str(tmp_path / "tokenizer.json"))
        for text in corpus:
            assert peer.encode(text) == tokenizer.encode(text)


def test_a_tokenizer_is_kept_until_its_files_change(tmp_path):
    train_tokenizer("characters", ["ab"]).save(tmp_path / "tokenizer.json")
    kept = load_tokenizer(tmp_path)
    assert load_tokenizer(tmp_path)._plain is kept._plain
    with pytest.raises(OutputError, match="it exists; give another name, or overwrite=True"):
        kept.save(tmp_path / "tokenizer.json")
    train_tokenizer("characters", ["abc"]).save(tmp_path / "tokenizer.json", overwrite=True)
    assert load_tokenizer(tmp_path).vocab_size == kept.vocab_size + 1
    (tmp_path / "chat_template.jinja").write_text("{{ messages }}", encoding="utf-8")
    assert load_tokenizer(tmp_path).chat_template == "{{ messages }}"
