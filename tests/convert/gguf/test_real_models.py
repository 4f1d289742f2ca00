"""Published GGUF files: values, size, tokens and a known answer. `make test-models` downloads them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

import foretell
from foretell.convert.family import AddOne, outputs_in_our_order, pairings
from foretell.convert.gguf import export
from foretell.convert.gguf.files import read_gguf
from foretell.insight.attribution.ablation import ablate
from foretell.insight.attribution.head_patterns import head_patterns
from foretell.insight.attribution.logit_lens import logit_lens
from foretell.insight.attribution.patch_map import patch_map
from foretell.insight.explain.explain_address import explain_value
from foretell.language_model import LanguageModel
from foretell.model.quantized_linear import plain_weights

gguf = pytest.importorskip("gguf", reason="the package `gguf` is not installed")

# file -> its largest memory, relative to its size; the probability of ` Berlin`; the end of a turn
FILES = {
    "SmolLM2-135M-Instruct.Q4_1.gguf": (1.0, 0.962, "<|im_end|>"),
    "gemma-3-270m-q4_k_m.gguf": (1.1, 0.869, "<end_of_turn>"),
}


@pytest.fixture(scope="module", params=FILES)
def path(request: pytest.FixtureRequest) -> Path:
    file = Path(os.environ.get("FORETELL_MODELS", "")) / request.param
    if "FORETELL_MODELS" not in os.environ or not file.is_file():
        pytest.skip(f"FORETELL_MODELS names no folder with {request.param}: make test-models")
    return file


@pytest.fixture(scope="module")
def model(path: Path) -> LanguageModel:
    return foretell.load(path, "cpu", "float32")


def test_the_capital_of_germany_is_berlin(path: Path, model: LanguageModel) -> None:
    with torch.no_grad():
        ids = model.tokenizer.encode_input("The capital of France is Paris, and the capital of Germany is")
        logits = model(ids)[0, -1]
    best = model.top_tokens(model.log_probabilities(logits), 1)[0]
    assert best.text == " Berlin" and best.probability == pytest.approx(FILES[path.name][1], abs=1e-3)


def test_all_weights_equal_the_dequantised_file_in_no_more_memory(path: Path, model: LanguageModel) -> None:
    file, ours = read_gguf(path), plain_weights(model.decoder)
    theirs = {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}
    for pairing in pairings(file.family, file.config):
        tensor = theirs[pairing.theirs]
        values = torch.from_numpy(gguf.dequantize(tensor.data, tensor.tensor_type).copy())
        for name, part in zip(pairing.ours, outputs_in_our_order(pairing, file.config, values), strict=True):
            assert torch.equal(ours[name], part), name
            if AddOne() in pairing.row.transforms:
                assert torch.equal(1 + ours[name], values), name
    used = sum(tensor.nbytes for tensor in (*model.decoder.parameters(), *model.decoder.buffers()))
    assert used < FILES[path.name][0] * path.stat().st_size


def test_the_file_leaves_with_the_same_bytes(
    path: Path, model: LanguageModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export, "check_parity", lambda *_: {})  # with Gemma's vocabulary it takes minutes
    foretell.export(model, tmp_path / "out.gguf", "gguf")
    before, after = (gguf.GGUFReader(file) for file in (path, tmp_path / "out.gguf"))
    written = {tensor.name: tensor.data for tensor in after.tensors}
    assert all((tensor.data == written.pop(tensor.name)).all() for tensor in before.tensors) and not written
    for name in ("model", "tokens", "token_type", "eos_token_id"):
        ours, theirs = (file.fields[f"tokenizer.ggml.{name}"].contents() for file in (after, before))
        assert ours == theirs, name


def test_digits_are_split_and_a_turn_ends(path: Path, model: LanguageModel) -> None:
    assert model.tokenizer.decode(model.tokenizer.encode("  12")) == "  12" and len(model.tokenizer.encode("12")) == 2
    assert FILES[path.name][2] in map(model.tokenizer.piece, model.tokenizer.end_ids)


HARD = (
    "  12 345",
    "don't\n\n\tx  \u00a0é e\u0301",
    "漢字 🙂 Ελληνικά",
    "<bos><h1> <unused3> ▁▁[multimodal]",
    " " * 40 + "\n" * 9,
)


def test_tokens_are_those_of_llama_cpp(path: Path, model: LanguageModel) -> None:
    llama_cpp = pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed; run make test-oracles")
    theirs = llama_cpp.Llama(str(path), vocab_only=True, verbose=False)
    for text in HARD:
        assert model.tokenizer.encode(text) == theirs.tokenize(text.encode(), add_bos=False, special=False), text


def test_a_number_of_a_windowed_and_of_an_open_layer_is_explained(model: LanguageModel) -> None:
    for layer in (0, 5):
        value = f"trunk.blocks.{layer}.attention.core.query[1,3,7]"
        assert explain_value(model, "The capital of Germany", value).agrees


@pytest.mark.parametrize("path", ["SmolLM2-135M-Instruct.Q4_1.gguf"], indirect=True)
def test_the_country_is_at_its_own_token_until_layer_22_and_brought_to_the_last_by_head_4_of_layer_23(
    model: LanguageModel,
) -> None:
    text = "The capital of Spain is Madrid, and the capital of Italy is"
    patches = patch_map(model, text, "The capital of France is Paris, and the capital of Germany is")
    assert patches.token.text == " Rome" and patches.token.probability == pytest.approx(0.645, abs=2e-3)
    at_country, at_last = patches.differences[:, patches.tokens.index(" Italy")], patches.differences[:, -1]
    assert at_country[:24].max() < -9 and abs(at_country[24:]).max() < 0.5  # the embedding is the first row
    assert abs(at_last[:24]).max() < 0.5 and at_last[24:].max() < -9
    heads = ablate(model, text, "trunk.blocks.23.attention.core[*]")
    assert heads.effects[0].name == "trunk.blocks.23.attention.core[4]" and heads.effects[0].probability < 0.1
    lens = logit_lens(model, text, at=-1, fill="mean").positions[0]
    assert lens.readings[24].tokens[0].text == " Italy"
    plain = logit_lens(model, text)
    assert plain.poor_readings()[-1] == "trunk.blocks.22"


@pytest.mark.parametrize("path", ["SmolLM2-135M-Instruct.Q4_1.gguf"], indirect=True)
def test_induction_heads_are_the_most_telling_on_repeated_tokens(model: LanguageModel) -> None:
    ids = torch.randint(49_152, (50,), generator=torch.Generator().manual_seed(1)).tolist()
    text = model.tokenizer.decode(ids)
    roles = {(role.layer, role.head): role.does for role in head_patterns(model, text + text).roles()[:12]}
    assert (roles[18, 6], roles[17, 3], roles[16, 0]) == ("induction", "induction", "previous token")
