"""llama.cpp computes the same ids, logits and text from the exported files.

These tests are skipped unless llama-cpp-python is installed (`make test-oracles`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import foretell
from foretell.config.sampling import SamplingConfig
from foretell.convert.gguf.export import export_gguf
from foretell.convert.gguf.vocabulary import PRE_TOKENIZERS
from foretell.generation.batch_generation import generate
from foretell.generation.sampling import Sampler
from foretell.generation.sequence import Sequence
from foretell.language_model import LanguageModel
from foretell.text import Tokenizer, tokenizer_json

pytestmark = pytest.mark.oracles
llama_cpp = pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed; run make test-oracles")
pytest.importorskip("gguf", reason="the extra `gguf` is not installed")

TEXTS = (
    "The quick brown fox doesn't jump; it's 'S 'LL WE'VE.",
    "  if x == 0:\n\treturn None  # done\r\n\r\n   ",
    "1234567890, 3.14 and -7e10! ١٢٣ ½²",
    "Ελληνικά, 漢字, 🙂 and e\u0301, a\u00a0b\u2028c.",
    "<|endoftext|> is no <|im_start|>, </s> and [PAD1]",
    "e" * 300 + " " * 70 + "x",
)
# Relative to the largest logit. llama.cpp looks GELU up in a float16 table; with f16 weights it rounds the inputs of
# a matmul to float16 too, with q8_0 to 8 bits.
BOUNDS = {"f32": 1e-5, "f16": 1e-2, "q8_0": 0.15}
GELU_BOUND = 1e-3
PROMPT, CONTINUATION = "The quick", 8  # tokens

Open = Callable[..., Any]


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Open]:
    """`opened(model, "f32")` is llama.cpp with the exported model, its cache in float32."""
    open_now = []

    def open_model(model: LanguageModel, precision: str = "f32") -> Any:
        export_gguf(model, tmp_path / f"{precision}.gguf", precision)
        full = {"type_k": 0, "type_v": 0}
        path = str(tmp_path / f"{precision}.gguf")
        reader = llama_cpp.Llama(path, n_ctx=256, n_threads=1, logits_all=True, verbose=False, **full)
        open_now.append(reader)
        return reader

    yield open_model
    for reader in open_now:
        reader.close()


def ids_of(theirs: Any, text: str, special: bool = False, start: bool = False) -> list[int]:
    return theirs.tokenize(text.encode(), add_bos=start, special=special)


def logits_of(theirs: Any, ids: list[int]) -> np.ndarray:
    theirs.reset()
    theirs.eval(ids)
    return np.array(theirs.scores[: len(ids)])


@torch.inference_mode()
def difference(theirs: Any, model: LanguageModel) -> float:
    """The largest difference in a logit, relative to the largest logit."""
    config = model.decoder.config
    ids = [index * 13 % config.vocab_size for index in range(config.context_length)]
    ours = model.decoder(torch.tensor([ids]))[0].numpy()
    return float(np.abs(logits_of(theirs, ids) - ours).max() / np.abs(ours).max())


@pytest.mark.parametrize("precision", BOUNDS)
def test_logits_equal_ours(case: str, precision: str, make_model, opened: Open) -> None:
    model = make_model(case)
    bound = max(BOUNDS[precision], GELU_BOUND if case.startswith("gpt2") else 0)
    assert difference(opened(model, precision), model) <= bound


def test_queries_in_the_wrong_order_fail_the_bound(make_model, opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    model = make_model("llama")
    monkeypatch.setattr("foretell.convert.gguf.metadata.INTERLEAVED", ())
    assert difference(opened(model), model) > 10 * BOUNDS["f32"]


def test_greedy_text_equals_ours(case: str, make_model, opened: Open) -> None:
    model = make_model(case)
    theirs, prompt = opened(model), model.tokenizer.encode(PROMPT)
    greedy = Sampler(SamplingConfig(temperature=0))
    ours = [event.token for event in generate(model.decoder, [Sequence(prompt)], greedy, CONTINUATION)]
    drawn = theirs.generate(prompt, top_k=1, temp=0.0, repeat_penalty=1.0)
    assert [token for token, _ in zip(drawn, ours, strict=False)] == ours


# --- text to ids -----------------------------------------------------------------------------------------------------


def with_split(tokenizer: Tokenizer, name: str) -> Tokenizer:
    """The same vocabulary under another split, with a start token, an added token and a chat template."""
    document, split = tokenizer.to_json(), PRE_TOKENIZERS[name]
    document["model"]["ignore_merges"] = split.takes_words
    added = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    size = tokenizer.vocab_size
    tokens = [{"id": size, "content": "<s>", "special": True}, {"id": size + 1, "content": "[NAME]", "special": False}]
    listed = [*document["added_tokens"], *(added | token for token in tokens)]
    document |= {"pre_tokenizer": split.document, "added_tokens": listed}
    return Tokenizer(tokenizer_json.with_start(document, "<s>")).with_chat_template("{{ messages[0].content }}")


@pytest.mark.parametrize("name", PRE_TOKENIZERS)
def test_ids_equal_ours_with_every_split(name: str, tokenizers_by_split, make_model, opened: Open) -> None:
    tokenizer = with_split(tokenizers_by_split["qwen2"], name)
    theirs = opened(make_model("llama", tokenizer))
    for text in (*TEXTS, "call [NAME]!"):
        assert ids_of(theirs, text) == tokenizer.encode(text)
        assert ids_of(theirs, text, start=True) == tokenizer.encode_input(text)
        assert ids_of(theirs, text, special=True) == tokenizer.encode(text, allow_special=True)
    assert (theirs.token_bos(), theirs.token_eos()) == (tokenizer.start_id, tokenizer.end_id)
    assert theirs.metadata["tokenizer.chat_template"] == tokenizer.chat_template


@pytest.fixture(scope="module")
def readers(
    tokenizers_by_split, make_model, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, tuple[Any, Tokenizer]]:
    """llama.cpp with a tokenizer of ours, by the name of its split."""
    folder, made = tmp_path_factory.mktemp("readers"), {}
    for name in ("gpt2", "qwen2", "bytes"):
        path = folder / f"{name}.gguf"
        export_gguf(make_model("llama", tokenizers_by_split[name]), path)
        made[name] = (llama_cpp.Llama(str(path), n_ctx=8, vocab_only=True, verbose=False), tokenizers_by_split[name])
    return made


FRAGMENTS = ("The", " quick", "1234", "doesn't", " ", "\n", "\t", " it'LL", ".", "<|endoftext|>", "lazy")


@given(st.lists(st.sampled_from(FRAGMENTS) | st.text(max_size=4), max_size=12).map("".join))
def test_ids_equal_ours_for_any_text(readers, text: str) -> None:
    for name, (theirs, tokenizer) in readers.items():
        assert ids_of(theirs, text) == tokenizer.encode(text), name


def test_the_wrong_name_of_a_split_gives_other_ids(tokenizers_by_split, make_model, opened: Open, monkeypatch) -> None:
    monkeypatch.setattr("foretell.convert.gguf.vocabulary.find_split", lambda document: "qwen2")
    monkeypatch.setattr("foretell.convert.gguf.export.check_parity", lambda *rest: {})
    tokenizer = tokenizers_by_split["gpt2"]
    theirs = opened(make_model("llama", tokenizer))
    assert any(ids_of(theirs, text) != tokenizer.encode(text) for text in TEXTS)


# --- a trained model -------------------------------------------------------------------------------------------------


def test_the_exported_primer_generates_the_same_text(opened: Open) -> None:
    primer = foretell.load("primer", "cpu", "float32")
    theirs, prompt = opened(primer), primer.tokenizer.encode("The return value of the")
    greedy = Sampler(SamplingConfig(temperature=0))
    ours = [event.token for event in generate(primer.decoder, [Sequence(prompt)], greedy, 24)]
    answer = theirs.create_completion("The return value of the", max_tokens=24, temperature=0.0, repeat_penalty=1.0)
    assert answer["choices"][0]["text"] == primer.tokenizer.decode(ours)
