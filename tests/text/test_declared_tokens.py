"""Settings files next to a tokenizer.json: what they declare, and the notes where they disagree."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from foretell.errors import TokenizerError
from foretell.text import Tokenizer, load_tokenizer, train_tokenizer
from foretell.text.tokenizer import CHAT_TEMPLATE

FLAGS = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
TURN, TOOL = 257, 258


def special(token_id: int, name: str, special: bool = True) -> dict[str, Any]:
    return {"id": token_id, "content": name, **FLAGS, "special": special}


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A tokenizer of bytes with three added tokens: <|endoftext|> 256, <turn> 257, <tool> 258 (not special)."""
    content = train_tokenizer("bytes", ["a"]).to_json()
    content["added_tokens"] += [special(TURN, "<turn>"), special(TOOL, "<tool>", special=False)]
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    return tmp_path


def load(directory: Path, **files: Any) -> Tokenizer:
    """The tokenizer with more JSON files next to it."""
    for name, content in files.items():
        (directory / f"{name}.json").write_text(json.dumps(content))
    return load_tokenizer(directory)


def test_special_and_ordinary_added_tokens(directory: Path) -> None:
    tokenizer = load(directory)
    assert tokenizer.added_tokens == {"<|endoftext|>": 256, "<turn>": TURN, "<tool>": TOOL}
    assert tokenizer.special_tokens == {"<|endoftext|>": 256, "<turn>": TURN}
    assert tokenizer.encode("<tool><turn>") == [TOOL, *b"<turn>"]
    assert tokenizer.notes == ()


def test_all_end_tokens_of_generation_config_are_used(directory: Path) -> None:
    tokenizer = load(directory, generation_config={"eos_token_id": [256, TURN]}, config={"eos_token_id": 3})
    assert (tokenizer.end_id, tokenizer.end_ids, tokenizer.notes) == (256, (256, TURN), ())
    tokenizer.save(directory / "again.json")
    assert load_tokenizer(directory / "again.json").end_ids == (256, TURN)


def test_named_end_token_comes_first_and_config_json_is_the_fallback(directory: Path) -> None:
    tokenizer = load(directory, tokenizer_config={"eos_token": "<turn>"}, config={"eos_token_id": 256})
    assert (tokenizer.end_id, tokenizer.end_ids) == (TURN, (TURN, 256))


def test_ordinary_tokens_are_not_end_tokens_even_if_config_json_names_them(directory: Path) -> None:
    """LlamaConfig's default is 2 and GPT2Config's 50256, for any vocabulary."""
    for token_id in (2, 50256):
        tokenizer = load(directory, config={"eos_token_id": token_id})
        assert tokenizer.end_ids == (256,)
        assert tokenizer.notes == (
            f"config.json names {token_id} as an end token, which is not a special token here: ignored",
        )


def test_tokens_listed_only_in_added_tokens_json_are_added(directory: Path) -> None:
    tokenizer = load(
        directory, added_tokens={"<pad>": 259}, special_tokens_map={"additional_special_tokens": ["<pad>"]}
    )
    assert (tokenizer.added_tokens["<pad>"], tokenizer.special_tokens["<pad>"], tokenizer.vocab_size) == (259, 259, 260)
    assert 259 not in tokenizer.encode("<pad>")


def test_token_is_special_if_any_file_calls_it_special(directory: Path) -> None:
    decoder = {str(TOOL): {"content": "<tool>", "special": True}}
    assert load(directory, tokenizer_config={"added_tokens_decoder": decoder}).special_tokens["<tool>"] == TOOL


def test_added_tokens_with_a_gap_or_a_taken_id_are_refused(directory: Path) -> None:
    for token_id in (3, 300):
        with pytest.raises(TokenizerError, match=f"the token '<pad>' has id {token_id}"):
            load(directory, added_tokens={"<pad>": token_id})


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("added_tokens", {"<pad>": "x"}),
        ("tokenizer_config", {"added_tokens_decoder": {"x": {"content": "<pad>"}}}),
        ("tokenizer_config", {"added_tokens_decoder": {"259": 3}}),
        ("generation_config", []),
        ("config", "text"),
    ],
)
def test_damaged_settings_file_is_named_in_one_line(directory: Path, file: str, content: Any) -> None:
    with pytest.raises(TokenizerError, match=f"{file}.json") as caught:
        load(directory, **{file: content})
    assert "\n" not in str(caught.value)


def test_special_token_missing_from_the_vocabulary_is_noted(directory: Path) -> None:
    tokenizer = load(directory, tokenizer_config={"bos_token": "<s>"})
    assert tokenizer.notes == ("the special token '<s>' is declared but not in the vocabulary: ignored",)


def with_template(directory: Path, single: list[dict[str, Any]]) -> None:
    """Give tokenizer.json a template that puts tokens around every text."""
    content = json.loads((directory / "tokenizer.json").read_text())
    entry = {"id": "<turn>", "ids": [TURN], "tokens": ["<turn>"]}
    content["post_processor"] = {
        "type": "TemplateProcessing",
        "single": single,
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"<turn>": entry},
    }
    (directory / "tokenizer.json").write_text(json.dumps(content))


TEXT, MARK = {"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": "<turn>", "type_id": 0}}


def test_tokenizer_json_decides_about_the_start_token_and_disagreement_is_noted(directory: Path) -> None:
    tokenizer = load(directory, tokenizer_config={"bos_token": "<turn>", "add_bos_token": True})
    assert tokenizer.start_ids == ()
    assert "tokenizer_config.json has add_bos_token true, but tokenizer.json adds no start token" in tokenizer.notes[0]
    with_template(directory, [MARK, TEXT])
    assert load_tokenizer(directory).notes == ()
    tokenizer = load(directory, tokenizer_config={"add_bos_token": False})
    assert tokenizer.encode_input("a") == [TURN, 97]
    assert "has add_bos_token false, but tokenizer.json adds a start token" in tokenizer.notes[0]


def test_several_start_tokens(directory: Path) -> None:
    with_template(directory, [MARK, MARK, TEXT])
    assert load_tokenizer(directory).encode_input("a") == [TURN, TURN, 97]


def test_token_after_every_text_is_left_out_and_noted(directory: Path) -> None:
    with_template(directory, [TEXT, MARK])
    tokenizer = load_tokenizer(directory)
    assert tokenizer.encode_input("a") == [97]
    assert tokenizer.end_id == TURN
    assert "puts a token after every text; it is left out here" in tokenizer.notes[0]


def test_same_token_as_start_and_end_token(directory: Path) -> None:
    with_template(directory, [MARK, TEXT])
    tokenizer = load(directory, tokenizer_config={"eos_token": "<turn>"})
    tokenizer.save(directory / "again.json")
    for same in (tokenizer, load_tokenizer(directory / "again.json")):
        assert (same.start_ids, same.end_ids) == ((TURN,), (TURN,))


def test_start_token_of_vocabulary_and_merges_follows_add_bos_token(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is the oracle here")
    vocabulary = train_tokenizer("bytes", ["a"]).to_json()["model"]["vocab"] | {"<|endoftext|>": 256}
    (tmp_path / "vocab.json").write_text(json.dumps(vocabulary))
    (tmp_path / "merges.txt").write_text("#version: 0.2\n")
    settings = {"tokenizer_class": "GPT2Tokenizer", "bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>"}
    tokenizer = load(tmp_path, tokenizer_config={**settings, "add_bos_token": True, "add_prefix_space": True})
    peer = transformers.GPT2Tokenizer.from_pretrained(tmp_path)
    assert tokenizer.encode_input("ab") == peer.encode("ab") == [256, 32, 97, 98]
    assert (tokenizer.start_ids, tokenizer.end_ids) == ((256,), (256,))


def test_class_of_vocabulary_and_merges_defaults_to_the_model_type(tmp_path: Path) -> None:
    vocabulary = train_tokenizer("bytes", ["a"]).to_json()["model"]["vocab"]
    (tmp_path / "vocab.json").write_text(json.dumps({**vocabulary, "ĠĠ": 257}))
    (tmp_path / "merges.txt").write_text("Ġ Ġ\n")
    assert load(tmp_path, config={"model_type": "gpt2"}).encode("e\u0301") == [*"e\u0301".encode()]
    assert load(tmp_path, config={"model_type": "qwen3"}).encode("e\u0301") == [*"\u00e9".encode()]


def test_directory_with_only_a_sentencepiece_model_gives_advice(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.model").write_bytes(b"\n\x0e")
    with pytest.raises(TokenizerError, match=r"tokenizer\.model is not supported: save the tokenizer with"):
        load_tokenizer(tmp_path)


def test_chat_template_survives_saving(directory: Path, tmp_path: Path) -> None:
    assert load(directory).chat_template is None
    assert load(directory, tokenizer_config={"chat_template": "{{ a }}"}).chat_template == "{{ a }}"
    (directory / CHAT_TEMPLATE).write_text("{{ größer }}", encoding="utf-8")
    tokenizer = load_tokenizer(directory)
    assert tokenizer.chat_template == "{{ größer }}"  # its own file has priority
    (tmp_path / "saved").mkdir()
    tokenizer.save(tmp_path / "saved" / "tokenizer.json")
    for source in (tmp_path / "saved", tmp_path / "saved" / "tokenizer.json"):
        assert load_tokenizer(source).chat_template == "{{ größer }}"


def test_default_chat_template_is_kept_and_the_others_are_noted(directory: Path) -> None:
    templates = [{"name": name, "template": f"{{{{ {name} }}}}"} for name in ("default", "tool_use", "rag")]
    tokenizer = load(directory, tokenizer_config={"chat_template": templates})
    assert tokenizer.chat_template == "{{ default }}"
    assert tokenizer.notes == ("only the chat template 'default' is kept, not tool_use, rag",)


@pytest.mark.parametrize("name", [["default"], {"a": 1}, None, 5])
def test_chat_template_whose_name_is_not_a_text_is_left_out(directory: Path, name: Any) -> None:
    templates = [{"name": name, "template": "x"}, {"name": "default", "template": "{{ a }}"}]
    assert load(directory, tokenizer_config={"chat_template": templates}).chat_template == "{{ a }}"
