"""An export passes the parity check or is removed; what a family cannot express is refused by name."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

import foretell
from foretell.cli.main import run as run_command
from foretell.config.model import ModelConfig
from foretell.config.section import make_section
from foretell.convert import export
from foretell.convert.export import export_huggingface, write_huggingface
from foretell.convert.families import FAMILIES, QWEN3, choose_family, find_family
from foretell.convert.family import check_weights
from foretell.convert.gguf.export import export_gguf
from foretell.convert.huggingface import load_huggingface, stored_dtype
from foretell.errors import ConfigError, OutputError
from foretell.language_model import LanguageModel
from foretell.model.init import make_decoder
from foretell.model.presets import PRESETS, SIZES, preset_config
from foretell.storage.manifest import EXPORT_REPORT
from foretell.text import Tokenizer
from foretell.text.tokenizer_json import special_token, with_ends, with_start
from tests import toy

SHAPE: dict[str, Any] = {"num_layers": 2, "num_heads": 2, "width": 16, "context_length": 9, "vocab_size": 31}
LLAMA: dict[str, Any] = {**toy.LLAMA, "tie_embeddings": False}


def shape(**changes: Any) -> ModelConfig:
    return make_section(ModelConfig, {**SHAPE, **changes})


@pytest.fixture
def model(tokenizer) -> LanguageModel:
    """A model shaped like Qwen3, with strong weights."""
    decoder = make_decoder(shape(**LLAMA, qk_norm=True, num_kv_heads=1), seed=1)
    return LanguageModel(toy.with_noise(decoder, 0.3), tokenizer)


# --- parity ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_an_export_is_the_same_model_and_its_report_gives_the_differences(
    model: LanguageModel, dtype, tmp_path: Path
) -> None:
    report = export_huggingface(model, tmp_path / "out", dtype)
    assert json.loads((tmp_path / "out" / EXPORT_REPORT).read_text()) == report
    assert report["family"] == "qwen3"
    assert all(probe["logit_difference"] <= 1e-4 for probe in report["probes"])
    assert all(probe["greedy_same"] == probe["greedy_tokens"] > 0 for probe in report["probes"])
    assert report["tokenizer"]["same"] == report["tokenizer"]["texts"] > 0
    assert (report["rounding"] is None) == (dtype == torch.float32)
    assert stored_dtype(tmp_path / "out") == dtype


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_transformers_reads_a_16_bit_export_the_same(model: LanguageModel, dtype, tmp_path: Path) -> None:
    export_huggingface(model, tmp_path / "out", dtype)
    ids = torch.arange(9)[None]
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32).eval()
    torch.testing.assert_close(load_huggingface(tmp_path / "out").decoder(ids), theirs(ids).logits, rtol=0, atol=1e-4)
    assert load_huggingface(tmp_path / "out", dtype=dtype).dtype == dtype


def test_a_large_model_is_written_as_shards(model: LanguageModel, tmp_path: Path) -> None:
    single, several = tmp_path / "single", tmp_path / "several"
    for directory, shard_bytes in ((single, 10**9), (several, 5000)):
        directory.mkdir()
        write_huggingface(directory, model, find_family("qwen3"), torch.float32, shard_bytes)
    files = {path.name: load_file(path).values() for path in several.glob("*.safetensors")}
    assert len(files) > 2
    assert sorted(files) == [f"model-{n:05}-of-{len(files):05}.safetensors" for n in range(1, len(files) + 1)]
    assert all(len(tensors) == 1 or sum(tensor.nbytes for tensor in tensors) <= 5000 for tensors in files.values())
    assert not (several / "model.safetensors").exists()
    ids = torch.arange(9)[None]
    expected = load_huggingface(single).decoder(ids)
    assert torch.equal(load_huggingface(several).decoder(ids), expected)
    theirs = AutoModelForCausalLM.from_pretrained(several).eval()
    torch.testing.assert_close(theirs(ids).logits, expected, rtol=0, atol=1e-4)


def test_all_start_and_end_tokens_are_exported(tokenizer: Tokenizer, tmp_path: Path) -> None:
    document, size = tokenizer.to_json(), tokenizer.vocab_size
    document["added_tokens"] += [special_token("<s>", size), special_token("<|eot|>", size + 1)]
    chatty = Tokenizer(with_ends(with_start(document, "<s>"), ["<|endoftext|>", "<|eot|>"]))
    decoder = make_decoder(shape(**LLAMA, vocab_size=size + 2), seed=1).eval()
    export_huggingface(LanguageModel(decoder, chatty), tmp_path / "out")
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "out").generation_config
    assert tuple(theirs.eos_token_id) == chatty.end_ids == (chatty.end_id, size + 1)
    assert (theirs.bos_token_id,) == chatty.start_ids == (size,)
    back = load_huggingface(tmp_path / "out").tokenizer
    assert (back.end_ids, back.start_ids) == (chatty.end_ids, chatty.start_ids)


def spoil_weights(directory: Path) -> None:
    weights = load_file(directory / "model.safetensors")
    weights["model.layers.1.self_attn.q_proj.weight"][3, 3] += 0.1
    save_file(weights, directory / "model.safetensors")


def spoil_with_a_nan(directory: Path) -> None:
    weights = load_file(directory / "model.safetensors")
    weights["model.norm.weight"][0] = torch.nan
    save_file(weights, directory / "model.safetensors")


def spoil_config(directory: Path) -> None:
    values = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(values | {"rope_theta": 9000.0}))


def spoil_tokenizer(directory: Path) -> None:
    text = (directory / "tokenizer.json").read_text()
    document = json.loads(text)
    vocabulary = document["model"]["vocab"]
    vocabulary["e"], vocabulary["t"] = vocabulary["t"], vocabulary["e"]
    (directory / "tokenizer.json").write_text(json.dumps(document))


SPOILED: dict[str, tuple[Callable[[Path], None], str]] = {
    "a weight": (spoil_weights, "logits differ by"),
    "not a number": (spoil_with_a_nan, "logits differ by nan"),
    "the configuration": (spoil_config, "logits differ by"),
    "the tokenizer": (spoil_tokenizer, "the tokenizer reads"),
}


@pytest.mark.parametrize("what", SPOILED)
def test_an_export_that_differs_is_refused_and_removed(
    what: str, model: LanguageModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spoil, message = SPOILED[what]

    def write(directory: Path, *rest: Any) -> None:
        write_huggingface(directory, *rest)
        spoil(directory)

    monkeypatch.setattr(export, "write_huggingface", write)
    with pytest.raises(OutputError, match=message):
        export_huggingface(model, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_values_beyond_float16_are_refused_by_name(model: LanguageModel, tmp_path: Path) -> None:
    with torch.no_grad():
        dict(model.decoder.named_parameters())["trunk.blocks.0.feedforward.up.weight"][0, 0] = 1e5
    with pytest.raises(OutputError, match="trunk.blocks.0.feedforward.up.weight.*float16"):
        export_huggingface(model, tmp_path / "out", torch.float16)
    export_huggingface(model, tmp_path / "bfloat16", torch.bfloat16)
    assert [path.name for path in tmp_path.iterdir()] == ["bfloat16"]


class ScaledNorm(nn.Module):
    """A norm with a parameter that no family has."""

    def __init__(self, width: int):
        super().__init__()
        self.weight, self.scale = nn.Parameter(torch.ones(width)), nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * nn.functional.rms_norm(x, x.shape[-1:], self.weight)


def test_a_weight_that_no_row_covers_is_refused_by_its_path(model: LanguageModel, tmp_path: Path) -> None:
    model.decoder.trunk.blocks[1].feedforward_norm = ScaledNorm(model.decoder.config.width)
    for export_model in (export_huggingface, export_gguf):
        with pytest.raises(ConfigError, match="has a weight 'trunk.blocks.1.feedforward_norm.scale' that qwen3 cannot"):
            export_model(model, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_a_replaced_weight_that_lacks_a_row_or_has_another_shape_is_refused_by_its_path(model: LanguageModel) -> None:
    config, family = model.decoder.config, find_family("qwen3")
    weights = model.decoder.state_dict()
    with pytest.raises(ConfigError, match="lacks the weight 'trunk.norm.weight' that qwen3 needs"):
        check_weights(family, config, {path: weights[path] for path in weights if path != "trunk.norm.weight"})
    with pytest.raises(ConfigError, match=r"'trunk.norm.weight' has shape \(1,\), and qwen3 expresses \(16,\)"):
        check_weights(family, config, weights | {"trunk.norm.weight": torch.ones(1)})
    check_weights(family, config, weights)


def test_a_new_family_is_one_declaration(model: LanguageModel, monkeypatch, tmp_path: Path) -> None:
    """A family with a parallel residual and its own names: it is chosen, exported, checked for parity and loaded."""
    rows = tuple(replace(row, theirs=row.theirs.replace("self_attn.q_proj", "attn.wq")) for row in QWEN3.rows)
    shared = {**QWEN3.shared, "residual": "parallel"}
    family = replace(QWEN3, name="parallel", architecture="ParallelForCausalLM", rows=rows, shared=shared)
    monkeypatch.setitem(cast(dict[str, Any], FAMILIES), family.name, family)
    weights = model.decoder.state_dict()
    decoder = make_decoder(model.config.replaced(residual="parallel"), seed=1)
    decoder.load_state_dict(weights)
    assert export_huggingface(LanguageModel(decoder.eval(), model.tokenizer), tmp_path / "out")["family"] == "parallel"
    assert "model.layers.1.attn.wq.weight" in load_file(tmp_path / "out" / "model.safetensors")
    back = load_huggingface(tmp_path / "out")
    assert back.config.residual == "parallel"
    assert all(torch.equal(weight, weights[path]) for path, weight in back.decoder.state_dict().items())


def test_loading_does_not_import_the_textbook() -> None:
    code = "import sys, foretell.loading; sys.exit(any(name.startswith('foretell.textbook') for name in sys.modules))"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_nothing_is_overwritten(model: LanguageModel, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    with pytest.raises(OutputError, match="out exists; give another name"):
        export_huggingface(model, tmp_path / "out")


def test_the_primer_survives_a_round_trip(their_tokenizer, tmp_path: Path) -> None:
    primer, text = foretell.load("primer", "cpu"), "def f(x):\n\treturn x**2  # Ελληνικά, 漢字, 🙂"
    export_huggingface(primer, tmp_path / "out", torch.bfloat16)
    back = foretell.load(tmp_path / "out", "cpu")
    for weight, other in zip(primer.decoder.parameters(), back.decoder.parameters(), strict=True):
        assert torch.equal(weight, other)
    theirs = their_tokenizer(tmp_path / "out")
    ids = primer.tokenizer.encode(text)
    assert theirs(text)["input_ids"] == back.tokenizer.encode(text) == ids
    assert theirs.decode(ids) == text


def test_weights_have_the_same_permissions_as_the_other_files(model: LanguageModel, tmp_path: Path) -> None:
    export_huggingface(model, tmp_path / "out")
    assert len({path.stat().st_mode for path in (tmp_path / "out").iterdir()}) == 1


def test_the_verb_prints_the_report(directory_of, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd) -> None:
    monkeypatch.chdir(tmp_path)
    source = ["convert", str(directory_of("qwen2"))]
    assert run_command([*source, "out", "--to", "huggingface", "--dtype", "bfloat16", "--json"]) == 0
    captured = capfd.readouterr()
    assert json.loads(captured.out) == {"path": "out", **json.loads((tmp_path / "out" / EXPORT_REPORT).read_text())}
    assert "7 of the model's 37 tokens are not in the tokenizer" in captured.err
    assert "transformers 5 builds its own Qwen2Tokenizer" in captured.err
    assert run_command([*source, "again", "--to", "huggingface"]) == 0
    lines = capfd.readouterr().out.splitlines()
    assert lines[0].startswith("again: qwen2 (Qwen2ForCausalLM), float32, ")
    assert [line.split()[0] for line in lines[3:]] == ["logits", "divergence", "greedy", "tokenizer"]


# --- which family ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", SIZES)
def test_the_sizes_of_train_can_be_exported_as_qwen3(size: str) -> None:
    assert choose_family(preset_config(size, vocab_size=300)).name == "qwen3"


@pytest.mark.parametrize("size", [name for name in PRESETS if name.startswith("gpt2")])
def test_gpt2_sizes_can_be_exported_as_gpt2(size: str) -> None:
    assert choose_family(preset_config(size)).name == "gpt2"


FITTING = {
    "openai-gpt": {"norm_placement": "post"},
    "llama": LLAMA,
    "mistral": {**LLAMA, "window": 4},
    "gpt_neox": {"position": "rotary", "rotary_share": 0.5, "residual": "parallel"},
    "stablelm": {
        **LLAMA,
        "norm": "layernorm",
        "bias": {"attention": False, "attention_output": False, "feedforward": False},
    },
    "phi": {"position": "rotary", "residual": "parallel_shared_norm", "bias": {"head": True}},
    "qwen2": {**LLAMA, "bias": {"attention": True, "attention_output": False, "feedforward": False}},
}


@pytest.mark.parametrize("family", FITTING)
def test_the_first_family_that_fits_is_chosen(family: str) -> None:
    assert choose_family(shape(**FITTING[family])).name == family


def test_dropout_and_initialisation_do_not_affect_the_family() -> None:
    assert choose_family(shape(dropout=0.3, init="torch")).name == "gpt2"


# a configuration that a family cannot express, and the message
REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "rotary": ("gpt2", {"position": "rotary"}, "position = 'rotary' (it has 'learned')"),
    "grouped heads": ("gpt2", {"num_kv_heads": 1}, "num_kv_heads = 1 (it has 2)"),
    "no biases": ("gpt2", {"bias": False}, "bias.attention = False (it has True)"),
    "a bias of the head": ("gpt2", {"bias": {"head": True}}, "bias.head = True"),
    "a scaling": (
        "phi3",
        {**LLAMA, "rope_scaling": {"type": "linear", "factor": 2}},
        "rope_scaling = {'type': 'linear'",
    ),
    "a window": ("llama", {**LLAMA, "window": 3}, "window = 3 (it has None); mistral and phi3 can"),
    "windows by layer": ("mistral", {**LLAMA, "window": (None, 3)}, "window = (None, 3)"),
    "norms of queries": ("llama", {**LLAMA, "qk_norm": True}, "qk_norm = True (it has False); qwen3 can"),
    "another norm": ("qwen3", {**LLAMA, "qk_norm": True, "norm": "layernorm"}, "norm = 'layernorm'"),
    "no output": ("gpt2", {"attention_output": False}, "attention_output = False"),
    "no residual": ("gpt2", {"attention_residual": False}, "attention_residual = False"),
    "a parallel residual": ("gpt2", {"residual": "parallel"}, "residual = 'parallel' (it has 'sequential')"),
    "no feed-forward": ("gpt2", {"feedforward": "none"}, "feedforward = 'none'"),
    "sinusoids": ("gpt2", {"position": "sinusoidal"}, "position = 'sinusoidal'"),
    "a word that is missing": ("openai-gpt", {"norm_placement": "post", "activation": "relu2"}, "activation = 'relu2'"),
    "its own width": ("openai-gpt", {"norm_placement": "post", "feedforward_width": 9}, "feedforward_width = 9"),
    "head width": ("gpt2", {"head_width": 6}, "head_width = 6 (it has 8)"),
    "heads that do not divide": ("gpt2", {"num_heads": 3, "head_width": 4}, "head_width = 4"),
    "a width that transformers refuses": (
        "llama",
        {**LLAMA, "num_heads": 3, "head_width": 4},
        "width = 16 (it has 'multiples of num_heads 3')",
    ),
    "partial biases": ("qwen3", {**LLAMA, "qk_norm": True, "bias": {"attention": True}}, "bias.feedforward = True"),
}


@pytest.mark.parametrize("why", REFUSED)
def test_a_configuration_that_a_family_cannot_express_is_refused_by_field(why: str) -> None:
    family, changes, words = REFUSED[why]
    with pytest.raises(ConfigError) as raised:
        choose_family(shape(**changes), family)
    assert f"{family} cannot express" in str(raised.value)
    assert words in str(raised.value)


def test_a_model_that_no_family_can_express_is_refused_with_the_nearest_family() -> None:
    with pytest.raises(ConfigError, match="no family can express this model; gpt2 cannot express window = "):
        choose_family(shape(window=(None, 4)))


def test_an_unknown_family_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(ConfigError, match="unknown family 'lama', did you mean 'llama'"):
        choose_family(shape(), "lama")
