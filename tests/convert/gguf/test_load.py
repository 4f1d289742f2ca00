"""A GGUF file is a MODEL: configuration, tokenizer and weights; what is missing or unknown is one line."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

import foretell
from foretell.cli.main import run as run_command
from foretell.config.model import ModelConfig
from foretell.config.section import make_section
from foretell.convert.family import iter_theirs
from foretell.convert.gguf.export import describe_file, export_gguf, pack_weights
from foretell.convert.gguf.header import read_header
from foretell.convert.gguf.metadata import PHI3_FILE, choose_architecture
from foretell.convert.gguf.write import PackedTensor, write_gguf
from foretell.errors import CheckpointError, ForetellError, TokenizerError
from foretell.language_model import LanguageModel
from foretell.model.init import make_decoder
from tests.convert.gguf.conftest import ROTARY, SHAPE, UNUSED
from tests.convert.gguf.test_header import mutate
from tests.toy import with_noise

IDS = [[5, 9, 2, 250, 31, 8]]
Pairs = dict[str, Any]
Tensors = dict[str, PackedTensor]


@pytest.fixture
def rewritten(make_model, tmp_path: Path) -> Callable[..., Path]:
    """`rewritten("llama", change)`: the file of a case whose pairs and tensors `change` has altered."""

    def write(case: str, change: Callable[[Pairs, Tensors], None] = lambda pairs, tensors: None) -> Path:
        model = make_model(case)
        family = choose_architecture(model.config)
        pairs, tensors = describe_file(model, family, "f32"), pack_weights(model.decoder, family, "f32")
        change(pairs, tensors)
        write_gguf(tmp_path / "model.gguf", pairs.pop("architecture", family.name), pairs, tensors)
        return tmp_path / "model.gguf"

    return write


def same_logits(ours: LanguageModel, theirs: LanguageModel) -> bool:
    return torch.equal(ours(IDS), theirs(IDS))


def test_an_exported_model_returns_with_the_same_bits(case: str, make_model, tmp_path: Path) -> None:
    model = make_model(case)
    export_gguf(model, tmp_path / "out.gguf")
    loaded = foretell.load(tmp_path / "out.gguf", "cpu", "float32")
    assert loaded.config == model.config.replaced(dropout=0.0)
    assert same_logits(loaded, model)
    assert loaded.tokenizer.end_ids == model.tokenizer.end_ids
    assert loaded.tokenizer.vocab_size == model.tokenizer.vocab_size  # without the rows that no token has
    text = "The quick  brown fox,\n\n1234 of them! Ελληνικά"
    assert loaded.encode(text) == model.encode(text)
    assert loaded.notes == (
        f"{tmp_path / 'out.gguf'}: {UNUSED} of the model's {model.config.vocab_size} tokens are not in the tokenizer",
    )


def test_absent_fields_have_the_defaults_of_llama_cpp(rewritten, make_model) -> None:
    absent = (
        "attention.head_count_kv",
        "attention.key_length",
        "attention.value_length",
        "rope.dimension_count",
        "vocab_size",
    )

    def leave_out(pairs: Pairs, tensors: Tensors) -> None:
        for name in (*absent, "rope.freq_base"):
            del pairs[f"llama.{name}"]

    model = make_model("llama with biases")  # as many key and value heads as heads
    assert same_logits(foretell.load(rewritten("llama with biases", leave_out), "cpu", "float32"), model)


def test_the_scaling_of_llama_3_follows_from_its_tensor_alone(rewritten, make_model) -> None:
    def leave_out(pairs: Pairs, tensors: Tensors) -> None:
        for name in [name for name in pairs if name.startswith("foretell.")]:
            del pairs[name]

    loaded = foretell.load(rewritten("llama 3, as released", leave_out), "cpu", "float32")
    assert loaded.config.rope_scaling == make_model("llama 3, as released").config.rope_scaling


def test_phi3_has_its_rows_split(make_model, tokenizers_by_split, tmp_path: Path) -> None:
    tokenizer = tokenizers_by_split["qwen2"]
    sizes = {**SHAPE, **ROTARY, "vocab_size": tokenizer.vocab_size, "rotary_share": 0.5, "window": 9}
    decoder = with_noise(make_decoder(make_section(ModelConfig, sizes), seed=1), 0.2)
    config, plain = decoder.config, make_model("llama", tokenizer)
    pairs = describe_file(plain, choose_architecture(plain.config), "f32")
    pairs = {name.replace("llama.", "phi3."): value for name, value in pairs.items()}
    pairs |= {
        "phi3.rope.dimension_count": config.rotary_width,
        "phi3.attention.sliding_window": 9,
        "phi3.vocab_size": config.vocab_size,
    }
    weights = {path: weight.detach() for path, weight in decoder.named_parameters()}
    tensors = {name: PackedTensor("F32", tensor) for name, tensor in iter_theirs(PHI3_FILE, config, weights)}
    assert tensors["blk.0.ffn_up.weight"].shape == (2 * config.feedforward_width, config.width)
    write_gguf(tmp_path / "phi3.gguf", "phi3", pairs, tensors)
    loaded = foretell.load(tmp_path / "phi3.gguf", "cpu", "float32")
    assert same_logits(loaded, LanguageModel(decoder.eval(), tokenizer)) and loaded.config.window == 9


def test_every_end_of_a_turn_ends_a_text(rewritten) -> None:
    def end_turns(pairs: Pairs, tensors: Tensors) -> None:
        names, kinds = pairs["tokenizer.ggml.tokens"], pairs["tokenizer.ggml.token_type"]
        for index, name in ((270, "<|eom|>"), (271, "<|im_end|>"), (272, "<end_of_turn>")):
            names[index], kinds[index] = name, 3
        kinds[272] = 1  # text, since its type says so
        pairs["tokenizer.ggml.eom_token_id"], pairs["tokenizer.ggml.merges"] = 270, ["Ā Ā"]
        pairs["tokenizer.ggml.add_bos_token"] = True

    tokenizer = foretell.load(rewritten("qwen3", end_turns)).tokenizer
    end = tokenizer.special_tokens["<|endoftext|>"]
    assert tokenizer.end_ids == (end, 270, 271)
    assert tokenizer.start_ids == (end,)
    assert 271 not in tokenizer.encode("<|im_end|>") and tokenizer.encode("<|im_end|>", allow_special=True) == [271]


def change(**pairs: Any) -> Callable[[Pairs, Tensors], None]:
    return lambda ours, tensors: ours.update({name.replace("__", "."): value for name, value in pairs.items()})


def remove(name: str) -> Callable[[Pairs, Tensors], None]:
    def change(pairs: Pairs, tensors: Tensors) -> None:
        del (pairs if name in pairs else tensors)[name]

    return change


def add_tensor(pairs: Pairs, tensors: Tensors) -> None:
    tensors["blk.0.ffn_gate_exps.weight"] = PackedTensor("F32", torch.zeros(2, 4))


def spoil_divisors(pairs: Pairs, tensors: Tensors) -> None:
    tensors["rope_freqs.weight"] = PackedTensor("F32", torch.tensor([1.0, 3.0, 1.0, 2.0]))


def make_not_finite(pairs: Pairs, tensors: Tensors) -> None:
    tensors["output_norm.weight"].content[1] = torch.inf


BAD = {
    "architecture": (
        change(architecture="mamba"),
        "its architecture is 'mamba', which foretell cannot read; known: gpt2",
    ),
    "width": (remove("llama.embedding_length"), "embedding_length is missing"),
    "no number": (change(llama__embedding_length="wide"), "embedding_length"),
    "several numbers": (
        change(llama__feed_forward_length=[3, 4]),
        "feed_forward_length = .3, 4. is not a single value",
    ),
    "layers": (change(llama__block_count=10**4), "too few for the configuration's 10000 layers"),
    "head widths": (change(llama__attention__value_length=4), "key_length and attention.value_length differ"),
    "rotation": (change(llama__rope__dimension_count=4), "rope.dimension_count = 4 is not supported for heads of 8"),
    "scaling": (change(llama__rope__scaling__type="yarn"), "rope_scaling of type 'yarn' is not supported"),
    "divisors": (spoil_divisors, "'rope_freqs.weight' is not the scaling of Llama 3.1"),
    "a tensor missing": (remove("blk.1.attn_k.weight"), "has no weight 'blk.1.attn_k.weight'"),
    "a tensor too many": (add_tensor, "has a tensor 'blk.0.ffn_gate_exps.weight' that a llama of this configuration"),
    "shape": (
        change(llama__feed_forward_length=16),
        "'blk.0.ffn_up.weight' has shape .52, 32., the configuration asks",
    ),
    "values": (make_not_finite, "'trunk.norm.weight' has values that are not finite"),
    "tokenizer": (change(tokenizer__ggml__model="bert"), "tokenizer.ggml.model is 'bert', which foretell cannot read"),
    "split": (
        change(tokenizer__ggml__pre="kimi-k2"),
        "tokenizer.ggml.pre is 'kimi-k2', a split that foretell does not",
    ),
    "no split": (remove("tokenizer.ggml.pre"), "tokenizer.ggml.pre is 'None', a split"),
    "tokens": (change(tokenizer__ggml__tokens=["a"]), "tokens and tokenizer.ggml.token_type are not names and types"),
    "a name twice": (
        lambda pairs, tensors: pairs["tokenizer.ggml.tokens"].__setitem__(60, "!"),
        "2 tokens have the name",
    ),
    "merges": (remove("tokenizer.ggml.merges"), "merges is not a list of merges"),
    "scores": (change(tokenizer__ggml__model="llama"), "scores is not a list with a score for every token"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_file_that_cannot_be_read_is_one_line_about_what_is_missing(name: str, rewritten, capfd) -> None:
    spoil, message = BAD[name]
    path = rewritten("llama", spoil)
    with pytest.raises((CheckpointError, TokenizerError), match=message) as refused:
        foretell.load(path)
    assert str(refused.value).startswith(str(path)) and "\n" not in str(refused.value)
    assert run_command(["next", str(path), "a"]) == 1
    assert capfd.readouterr().err.count("\n") <= 2  # `loading ...`, and the error
    assert run_command(["info", str(path)]) == (0 if name == "values" else 1)  # it reads no weights


def test_unknown_fields_are_noted(rewritten) -> None:
    path = rewritten("llama", change(llama__logit_scale=2.0, llama__rope__scaling__finetuned=False))
    assert foretell.load(path).notes[0] == f"{path}: llama.logit_scale = 2.0 is unknown and was not used"


def test_without_a_tokenizer_a_text_is_ids(rewritten) -> None:
    loaded = foretell.load(rewritten("llama", change(tokenizer__ggml__model="none")))
    assert loaded.encode("5 9") == [5, 9] and "no tokenizer" in loaded.notes[0]


def test_the_verbs_take_a_file(rewritten, tmp_path: Path, capfd, monkeypatch: pytest.MonkeyPatch) -> None:
    path = rewritten("llama")
    monkeypatch.chdir(tmp_path)
    assert run_command(["info", "model.gguf"]) == 0 and "llama" not in capfd.readouterr().err
    assert run_command(["next", "model.gguf", "the", "--top", "2"]) == 0
    assert run_command(["explain", "model.gguf", "the fox"]) == 0
    assert run_command(["convert", "model.gguf", "hf", "--to", "huggingface"]) == 0
    assert same_logits(foretell.load("hf", "cpu", "float32"), foretell.load(path, "cpu", "float32"))
    (tmp_path / "other.gguf").write_text("no", encoding="utf-8")
    assert run_command(["info", "other.gguf"]) == 1
    assert "other.gguf is not a GGUF file: it does not begin with GGUF" in capfd.readouterr().err


def test_a_mutated_file_is_loaded_or_refused_in_one_line(rewritten, tmp_path: Path) -> None:
    content, refused = rewritten("llama").read_bytes(), 0
    header = content[: min(tensor.start for tensor in read_header(tmp_path / "model.gguf").tensors.values())]
    for seed in range(100):
        (tmp_path / "mutated.gguf").write_bytes(mutate(header, seed) + content[len(header) :])
        try:
            foretell.load(tmp_path / "mutated.gguf", "cpu", "float32")
        except ForetellError as error:
            refused += 1
            assert "\n" not in str(error)
    assert refused > 20


# --- SentencePiece ----------------------------------------------------------------------------------------------------

PIECES = {
    "▁": -1.0,
    "a": -2.0,
    "b": -3.0,
    "c": -4.0,
    "ab": -5.5,
    "bc": -5.0,
    "▁a": -6.0,
    "abc": -7.0,
    "▁ab": -6.5,
    "é": -9.0,
}


def spm_pairs(**changes: Any) -> Pairs:
    names = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *PIECES, "<extra>"]
    kinds = [2, 3, 3, *[6] * 256, *[1] * len(PIECES), 4]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": names,
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.scores": [0.0] * 259 + [*PIECES.values(), 0.0],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        **changes,
    }


def merged_by_score(text: str) -> list[str]:
    """llama.cpp's algorithm: merge the neighbours whose piece has the highest score, the leftmost of equals."""
    pieces = list(text)
    while True:
        pairs = [
            (PIECES[first + second], -at)
            for at, (first, second) in enumerate(pairwise(pieces))
            if first + second in PIECES
        ]
        if not pairs:
            return pieces
        at = -max(pairs)[1]
        pieces[at : at + 2] = [pieces[at] + pieces[at + 1]]


@pytest.mark.parametrize("text", ["abc", "aabbcc abc", "  ab  cab", "abab", "bcabcab", "a b c", ""])
def test_sentencepiece_merges_by_score(text: str) -> None:
    from foretell.convert.gguf.vocabulary import read_vocabulary

    tokenizer = read_vocabulary(spm_pairs())
    assert tokenizer is not None
    prefixed = f"▁{text.replace(' ', '▁')}" if text else ""
    assert [tokenizer.piece(index) for index in tokenizer.encode(text)] == merged_by_score(prefixed)
    assert tokenizer.decode(tokenizer.encode(text)) == text
    bare = read_vocabulary(spm_pairs(**{"tokenizer.ggml.add_space_prefix": False}))
    assert bare is not None
    assert [bare.piece(index) for index in bare.encode(text)] == merged_by_score(text.replace(" ", "▁"))


def test_sentencepiece_writes_unknown_characters_as_bytes_and_adds_the_start() -> None:
    from foretell.convert.gguf.vocabulary import read_vocabulary

    tokenizer = read_vocabulary(spm_pairs())
    assert tokenizer is not None
    pieces = [tokenizer.piece(index) for index in tokenizer.encode_input("é漢<extra>b</s>")]
    assert pieces[:6] == ["<s>", "▁", "é", "<0xE6>", "<0xBC>", "<0xA2>"]
    assert pieces[6] == "<extra>" and 2 not in tokenizer.encode("</s>")
    assert tokenizer.end_ids == (2,)
