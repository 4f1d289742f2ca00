"""A GGUF file passes the parity check or is removed; what llama.cpp cannot do is refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from foretell.cli.main import run as run_command
from foretell.convert import parity
from foretell.convert.gguf import export as export_module
from foretell.convert.gguf.export import PRECISIONS, export_gguf, read_back
from foretell.convert.gguf.metadata import choose_architecture
from foretell.convert.gguf.write import PackedTensor, write_gguf
from foretell.errors import ConfigError, OutputError, TokenizerError
from foretell.language_model import LanguageModel
from foretell.model.presets import SIZES, preset_config
from foretell.saved_model.parts_on_disk import save_model
from foretell.storage.manifest import EXPORT_REPORT
from foretell.text import Tokenizer, tokenizer_json, train_tokenizer

gguf = pytest.importorskip("gguf", reason="the package `gguf` is not installed")


def kinds_in(path: Path) -> dict[str, str]:
    """The precision of each tensor of a file."""
    return {tensor.name: tensor.tensor_type.name.lower() for tensor in gguf.GGUFReader(path).tensors}


def pairs_in(path: Path) -> dict[str, Any]:
    return {name: field.contents() for name, field in gguf.GGUFReader(path).fields.items()}


# --- parity ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("precision", PRECISIONS)
def test_an_export_is_the_same_model_and_its_report_gives_the_differences(
    case: str, precision: str, make_model, tmp_path: Path
) -> None:
    model = make_model(case)
    report = export_gguf(model, tmp_path / "out.gguf", precision)
    assert json.loads((tmp_path / EXPORT_REPORT).read_text()) == report
    assert sorted(path.name for path in tmp_path.iterdir()) == [EXPORT_REPORT, "out.gguf"]
    assert case.startswith(report["family"])
    assert all(probe["logit_difference"] <= 1e-4 for probe in report["probes"])
    assert all(probe["greedy_same"] == probe["greedy_tokens"] > 0 for probe in report["probes"])
    assert report["tokenizer"]["same"] == report["tokenizer"]["texts"] > 0
    assert (report["rounding"] is None) == (precision == "f32")
    weights = read_back(tmp_path / "out.gguf").weights
    assert set(weights) == {path for path, _ in model.decoder.named_parameters()}
    if precision == "f32":
        for path, weight in model.decoder.named_parameters():
            base = np.float32(path.endswith("norm.weight") and model.config.norm == "rmsnorm_offset")
            assert np.array_equal(base + weights[path], base + weight.detach().numpy()), path


def spoil_a_weight(pairs: dict[str, Any], tensors: dict[str, PackedTensor]) -> None:
    tensors["blk.1.attn_q.weight"].content[3, 3] += 0.1


def spoil_with_a_nan(pairs: dict[str, Any], tensors: dict[str, PackedTensor]) -> None:
    tensors["output_norm.weight"].content[0] = np.nan


def spoil_the_rope(pairs: dict[str, Any], tensors: dict[str, PackedTensor]) -> None:
    pairs["llama.rope.freq_base"] = 400.0


def spoil_the_divisors(pairs: dict[str, Any], tensors: dict[str, PackedTensor]) -> None:
    tensors["rope_freqs.weight"].content[-1] *= 2


def spoil_the_split(pairs: dict[str, Any], tensors: dict[str, PackedTensor]) -> None:
    pairs["tokenizer.ggml.pre"] = "qwen2"


def spoil_the_tokens(pairs: dict[str, Any], tensors: dict[str, PackedTensor]) -> None:
    tokens = pairs["tokenizer.ggml.tokens"]
    first, second = tokens.index("e"), tokens.index("t")
    tokens[first], tokens[second] = "t", "e"


SPOILED = {
    spoil_a_weight: "logits differ by",
    spoil_with_a_nan: "logits differ by nan",
    spoil_the_rope: "logits differ by",
    spoil_the_divisors: "'rope_freqs.weight' is wrong",
    spoil_the_split: "the tokenizer reads",
    spoil_the_tokens: "the tokenizer reads",
}


@pytest.mark.parametrize("spoil", SPOILED)
def test_an_export_that_differs_is_refused_and_removed(spoil, make_model, tmp_path: Path, monkeypatch) -> None:
    def write(path: Path, architecture: str, pairs: Any, tensors: Any) -> None:
        copies = {name: PackedTensor(tensor.kind, tensor.content.clone()) for name, tensor in tensors.items()}
        spoil(pairs, copies)
        write_gguf(path, architecture, pairs, copies)

    monkeypatch.setattr(export_module, "write_gguf", write)
    digits = train_tokenizer("bpe", ["1234567890, a  b\n\n the 3.14 and\n" * 99], vocab_size=300, split="gpt2")
    with pytest.raises(OutputError, match=SPOILED[spoil]):
        export_gguf(make_model("llama 3", digits), tmp_path / "out.gguf")
    assert list(tmp_path.iterdir()) == []


def test_a_tokenizer_with_a_gap_in_its_ids_is_exported(make_model, tokenizers_by_split, tmp_path: Path) -> None:
    content = tokenizers_by_split["qwen2"].to_json()
    vocabulary, removed = content["model"]["vocab"], content["model"]["merges"].pop()
    gap = vocabulary.pop("".join(removed))
    filled = Tokenizer(content)
    assert not filled.has(gap) and filled.has(gap - 1)
    step = next(index for index in range(2, 400) if gap in sampled(filled.vocab_size, index))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(parity, "SPREAD", step)
        report = export_gguf(make_model("qwen3", filled), tmp_path / "out.gguf")
    assert report["tokenizer"]["same"] == report["tokenizer"]["texts"]


def sampled(size: int, count: int) -> list[int]:
    """The ids of which a text is made for the parity check."""
    return [index * (size - 1) // (count - 1) for index in range(count)]


# --- content ---------------------------------------------------------------------------------------------------------


def test_vectors_stay_f32_and_odd_rows_become_f16_with_a_note(make_model, tmp_path: Path) -> None:
    report = export_gguf(make_model("gpt2"), tmp_path / "out.gguf", "q8_0")
    kinds = kinds_in(tmp_path / "out.gguf")
    assert kinds["blk.0.attn_norm.weight"] == kinds["blk.0.attn_qkv.bias"] == kinds["position_embd.weight"] == "f32"
    assert kinds["blk.0.attn_qkv.weight"] == kinds["token_embd.weight"] == "q8_0"
    assert kinds["blk.0.ffn_down.weight"] == "f16"  # 52 inputs
    assert report["notes"] == ["2 of 28 tensors have rows whose length is not a multiple of 32: f16, not q8_0"]


def test_only_an_untied_head_is_written(make_model, tmp_path: Path) -> None:
    for case, has_head in (("gpt2", False), ("gpt2 with a head of its own", True)):
        export_gguf(make_model(case), tmp_path / f"{has_head}.gguf")
        assert ("output.weight" in kinds_in(tmp_path / f"{has_head}.gguf")) == has_head


def test_the_tokenizer_is_in_the_file(make_model, tokenizers_by_split, tmp_path: Path) -> None:
    tokenizer = tokenizers_by_split["qwen2"].with_chat_template("{{ messages }}")
    export_gguf(make_model("qwen3", tokenizer), tmp_path / "out.gguf")
    pairs = pairs_in(tmp_path / "out.gguf")
    assert pairs["tokenizer.ggml.pre"] == "qwen2"
    assert pairs["tokenizer.chat_template"] == "{{ messages }}"
    assert pairs["tokenizer.ggml.eos_token_id"] == pairs["tokenizer.ggml.bos_token_id"] == tokenizer.end_id
    assert pairs["tokenizer.ggml.add_bos_token"] is False
    assert pairs["tokenizer.ggml.token_type"][tokenizer.end_id :] == [3, 5, 5, 5, 5, 5]


def test_the_end_of_a_turn_is_in_the_file(make_model, tokenizers_by_split, tmp_path: Path) -> None:
    document = with_added(tokenizers_by_split["qwen2"], "<|im_end|>", special=True)
    ends = Tokenizer(tokenizer_json.with_ends(document, ["<|im_end|>", "<|endoftext|>"]))
    export_gguf(make_model("qwen3", ends), tmp_path / "out.gguf")
    pairs = pairs_in(tmp_path / "out.gguf")
    assert (pairs["tokenizer.ggml.eos_token_id"], pairs["tokenizer.ggml.eot_token_id"]) == ends.end_ids


def test_a_tokenizer_that_normalizes_to_nfc_is_exported_with_a_note(
    make_model, tokenizers_by_split, tmp_path: Path
) -> None:
    composing = Tokenizer({**tokenizers_by_split["qwen2"].to_json(), "normalizer": {"type": "NFC"}})
    report = export_gguf(make_model("qwen3", composing), tmp_path / "out.gguf")
    assert report["notes"] == [
        "the tokenizer normalizes text to NFC, but llama.cpp does not: normalize texts before using it"
    ]


def test_a_second_report_does_not_replace_the_first(make_model, tmp_path: Path) -> None:
    for precision in ("f32", "q8_0"):
        export_gguf(make_model("llama"), tmp_path / f"{precision}.gguf", precision)
    assert json.loads((tmp_path / EXPORT_REPORT).read_text())["dtype"] == "f32"
    assert json.loads((tmp_path / f"q8_0.{EXPORT_REPORT}").read_text())["dtype"] == "q8_0"


# --- refusals --------------------------------------------------------------------------------------------------------


def with_added(tokenizer: Tokenizer, name: str, **flags: bool) -> dict[str, Any]:
    """The tokenizer's document with one more token."""
    document, plain = tokenizer.to_json(), dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    document["added_tokens"].append({"id": tokenizer.vocab_size, "content": name, "special": False, **plain, **flags})
    return document


def changed(tokenizer: Tokenizer, **changes: Any) -> Tokenizer:
    return Tokenizer({**tokenizer.to_json(), **changes})


@pytest.mark.parametrize("size", SIZES)
def test_the_sizes_of_train_can_be_exported_as_qwen3(size: str) -> None:
    assert choose_architecture(preset_config(size, vocab_size=300)).name == "qwen3"


SHAPES = {
    "gpt2": ({"activation": "gelu_erf"}, "gpt2 cannot express activation = 'gelu_erf' .it has 'gelu_tanh'"),
    "llama": ({"window": 7}, "llama cannot express window = 7"),
    "qwen2": ({"head_width": 12}, "qwen2 cannot express head_width = 12; llama.cpp reads heads of width / num_heads"),
    "qwen3": ({"bias": {"attention": True}}, "qwen3 cannot express bias.attention = True"),
    "qwen3, tied, linear rope": ({"rope_scaling": {"type": "llama3", "factor": 2.0}}, "rope_scaling of type 'llama3'"),
}


@pytest.mark.parametrize("name", SHAPES)
def test_a_configuration_that_gguf_cannot_express_is_refused_by_field(name: str, make_model, tmp_path: Path) -> None:
    changes, message = SHAPES[name]
    with pytest.raises(ConfigError, match=f"^GGUF: .*{message}"):
        export_gguf(make_model(name, **changes), tmp_path / "out.gguf", family_name=name.partition(",")[0])
    assert list(tmp_path.iterdir()) == []


def refused_tokenizers(bpe: Tokenizer) -> dict[str, tuple[Tokenizer, str]]:
    prefixed = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
    document = bpe.to_json()
    del document["model"]["vocab"]["<|endoftext|>"]
    without_end = {**document, "added_tokens": [], "post_processor": None}
    return {
        "characters": (
            train_tokenizer("characters", ["abc"]),
            "of kind characters, but only byte-level tokenizers can be exported: bpe and bytes",
        ),
        "words": (train_tokenizer("words", ["a b"]), "of kind words"),
        "another split": (
            changed(bpe, pre_tokenizer=prefixed),
            "splits text differently from all known pre-tokenizers of llama.cpp",
        ),
        "a normalizer": (changed(bpe, normalizer={"type": "Lowercase"}), "normalizes text .Lowercase."),
        "no end": (Tokenizer(without_end), "no end token, and llama.cpp would use token 11"),
        "a name twice": (
            Tokenizer(with_added(bpe, f"[PAD{bpe.vocab_size + 2}]")),
            "2 of the model's rows have the name",
        ),
        "white space": (
            Tokenizer(with_added(bpe, "[X]", lstrip=True)),
            "the added token '.X.' absorbs or requires white space",
        ),
    }


@pytest.mark.parametrize(
    "name", ["characters", "words", "another split", "a normalizer", "no end", "a name twice", "white space"]
)
def test_a_tokenizer_that_llama_cpp_cannot_reproduce_is_refused(
    name: str, make_model, tokenizers_by_split, tmp_path
) -> None:
    tokenizer, message = refused_tokenizers(tokenizers_by_split["gpt2"])[name]
    with pytest.raises(TokenizerError, match=f"^GGUF: .*{message}"):
        export_gguf(make_model("llama", tokenizer), tmp_path / "out.gguf")
    assert list(tmp_path.iterdir()) == []


def test_a_byte_of_utf8_that_is_not_in_the_vocabulary_is_noted(make_model, tokenizers_by_split, tmp_path: Path) -> None:
    bpe = tokenizers_by_split["qwen2"]
    assert bpe.encode("é", allow_special=False)
    for dropped, is_noted in (("ÿ", False), ("À", False), ("Ã", True)):
        document = bpe.to_json()
        document["model"]["vocab"][f"[{dropped}]"] = document["model"]["vocab"].pop(dropped)
        document["model"]["merges"] = []
        tokenizer = Tokenizer(document)
        report = export_gguf(make_model("qwen3", tokenizer), tmp_path / f"{ord(dropped)}.gguf")
        assert any("1 of the bytes of UTF-8" in note and "0xC3" in note for note in report["notes"]) == is_noted


def test_values_beyond_float16_are_refused_by_name(make_model, tmp_path: Path) -> None:
    model: LanguageModel = make_model("llama")
    with torch.no_grad():
        dict(model.decoder.named_parameters())["trunk.blocks.0.feedforward.up.weight"][0, 0] = 1e5
    with pytest.raises(OutputError, match="blk.0.ffn_up.weight.*float16|blk.0.ffn_up.weight.*f16"):
        export_gguf(model, tmp_path / "out.gguf", "f16")
    assert list(tmp_path.iterdir()) == []


# --- the verb --------------------------------------------------------------------------------------------------------


@pytest.fixture
def saved(make_model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A saved model in the current directory."""
    monkeypatch.chdir(tmp_path)
    model = make_model("llama")
    (tmp_path / "model").mkdir()
    save_model(tmp_path / "model", model.decoder, model.tokenizer)
    return tmp_path


def test_the_verb_prints_the_report(saved: Path, capfd) -> None:
    assert run_command(["convert", "model", "out.gguf", "--to", "gguf", "--dtype", "q8_0", "--json"]) == 0
    captured = capfd.readouterr()
    assert json.loads(captured.out) == {"path": "out.gguf", **json.loads((saved / EXPORT_REPORT).read_text())}
    assert "rows whose length is not a multiple of 32: f16" in captured.err
    assert run_command(["convert", "model", "folder/again.gguf", "--to", "gguf"]) == 0
    lines = capfd.readouterr().out.splitlines()
    assert lines[0].startswith("folder/again.gguf: llama (GGUF), f32, ")
    assert [line.split()[0] for line in lines[3:]] == ["logits", "divergence", "greedy", "tokenizer"]


REFUSED = (
    (["out.gguf", "--to", "gguf", "--dtype", "bfloat16"], 2, "gguf writes f32, f16, q8_0, packed, not bfloat16"),
    (["out", "--to", "huggingface", "--dtype", "q8_0"], 2, "huggingface writes float32, float16, bfloat16, not q8"),
    (["out.gguf", "--to", "gguf", "--family", "mistral"], 2, "unknown family 'mistral'"),
    (["out.gguf", "--to", "gguf", "--family", "gpt2"], 2, "gpt2 cannot express num_kv_heads = 2"),
    (["model", "--to", "gguf"], 1, "model exists; give another name"),
    (["model/config.json/out.gguf", "--to", "gguf"], 1, "could not write model/config.json/out.gguf"),
)


@pytest.mark.parametrize(("arguments", "code", "message"), REFUSED)
def test_bad_input_is_one_line(arguments: list[str], code: int, message: str, saved: Path, capfd) -> None:
    before = sorted(saved.rglob("*"))
    assert run_command(["convert", "model", *arguments]) == code
    assert message in capfd.readouterr().err.splitlines()[-1]
    assert sorted(saved.rglob("*")) == before
