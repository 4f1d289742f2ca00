"""Every verb does what its help says, on a small trained model."""

from __future__ import annotations

import io
import json
import math
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import pytest
import torch

import foretell as foretell_package
from foretell.config.model import ModelConfig
from foretell.config.quantization import Scheme
from foretell.config.sampling import SamplingConfig
from foretell.convert.export import export_huggingface
from foretell.finding import find_model
from foretell.inference.completion import DEFAULT_TOKENS
from foretell.language_model import LanguageModel
from foretell.loading import load
from foretell.model.init import make_decoder
from foretell.model.presets import PRESETS
from foretell.text import train_tokenizer
from foretell.typesetting.numbers import percent


def test_help_of_every_verb_is_printed(foretell):
    from foretell.cli.main import VERBS

    for verb in VERBS:
        outcome = foretell(verb, "--help").succeeds()
        assert f"foretell {verb}" in outcome.out


def test_version_is_the_package_version(foretell):
    from importlib.metadata import version

    assert foretell("--version").out.splitlines()[0] == f"foretell {version('foretell')}"


# --- next, score, embed, tokenize, info ------------------------------------------------------------------------------


def test_next_gives_falling_probabilities_that_match_their_logarithms(foretell, trained):
    found = foretell("next", trained, "The cat", "--top", "4", "--json").json
    probabilities = [token["probability"] for token in found["tokens"]]
    assert found["context"] == "The cat"
    assert len(probabilities) == 4
    assert probabilities == sorted(probabilities, reverse=True)
    for token in found["tokens"]:
        assert math.log(token["probability"]) == pytest.approx(token["logprob"])
        assert token["text"] == bytes([token["id"]]).decode()


def test_next_at_a_position_shows_the_context_that_the_distribution_follows(foretell, trained):
    at = foretell("next", trained, "The cat", "--at", "2", "--json").json
    alone = foretell("next", trained, "The", "--json").json
    assert at["context"] == "The"
    assert [token["id"] for token in at["tokens"]] == [token["id"] for token in alone["tokens"]]
    assert at["tokens"][0]["logprob"] == pytest.approx(alone["tokens"][0]["logprob"], rel=1e-5)


def test_next_every_gives_one_distribution_per_position(foretell, trained):
    found = foretell("next", trained, "cat", "--every", "--json").json
    assert [answer["context"] for answer in found] == ["c", "ca", "cat"]


def test_next_prints_one_bar_per_token(foretell, trained):
    lines = foretell("next", trained, "The cat").out.splitlines()
    assert lines[0] == "after 'The cat'"
    assert len(lines[5:]) == 5
    assert all("%" in line and "█" in line for line in lines[5:])
    assert max(len(line) for line in lines) <= 80


def test_score_adds_up_and_leaves_the_first_token_out(foretell, trained):
    found = foretell("score", trained, "The cat", "--json").json
    logprobs = [token["logprob"] for token in found["tokens"]]
    assert logprobs[0] is None
    assert sum(logprobs[1:]) == pytest.approx(found["logprob"])
    assert found["perplexity"] == pytest.approx(math.exp(-found["logprob"] / 6))


def test_score_agrees_with_next(foretell, trained):
    scored = foretell("score", trained, "The cat", "--json").json["tokens"][3]["logprob"]
    following = foretell("next", trained, "The", "--top", "257", "--json").json["tokens"]
    assert scored == pytest.approx(next(token["logprob"] for token in following if token["text"] == " "), rel=1e-4)


def test_score_of_one_token_has_no_probability(foretell, trained):
    found = foretell("score", trained, "T", "--json").json
    assert found == {"tokens": [{"id": 84, "text": "T", "logprob": None}], "logprob": 0.0, "perplexity": None}


def test_score_prints_one_unit_only(foretell, trained):
    lines = foretell("score", trained, "The cat").out.splitlines()
    total = -foretell("score", trained, "The cat", "--json").json["logprob"] / math.log(2)
    rows = [line.split() for line in lines[3:-2]]
    assert lines[0].split() == ["bits", "token"]
    assert sum(float(row[0]) for row in rows) == pytest.approx(total, abs=0.05)
    bars = [(len(row[-1]), round(float(row[0]))) for row in rows if row[-1].startswith("█")]
    assert bars and all(length == bits for length, bits in bars)
    assert lines[-1].startswith(f"{total:.2f} bits, {total / 6:.3f} bits per token")
    assert "nats" not in "".join(lines)


@pytest.mark.parametrize("probability", [1.0, 0.5, 1e-4, 9e-5, 1e-12])
def test_a_probability_has_digits_that_are_not_zero(probability):
    assert float(percent(probability).rstrip("%")) / 100 == pytest.approx(probability, rel=0.05)


def test_embed_gives_a_vector_of_the_models_width(foretell, trained):
    last = foretell("embed", trained, "The cat", "--json").json
    mean = foretell("embed", trained, "The cat", "--pool", "mean", "--json").json
    assert len(last["embedding"]) == len(mean["embedding"]) == 16
    assert last["embedding"] != mean["embedding"]


def test_embed_reads_a_file_line_by_line(foretell, trained, tmp_path):
    (tmp_path / "lines.txt").write_text("The cat\n\nThe dog\n")
    lines = foretell("embed", trained, "--file", "lines.txt", "--json").out.splitlines()
    assert [json.loads(line)["text"] for line in lines] == ["The cat", "The dog"]


@pytest.mark.parametrize("verb", ["generate", "next", "score", "embed", "explain", "tokenize"])
def test_an_argument_is_text_also_where_it_names_a_file(foretell, trained, tmp_path, verb):
    (tmp_path / "prompt.txt").write_text("The dog")
    literal, read = foretell(verb, trained, "prompt.txt"), foretell(verb, trained, "--file", "prompt.txt")
    assert "'prompt.txt' is read as text; it is also a file, which --file prompt.txt reads" in literal.err
    assert read.out == foretell(verb, trained, "The dog").out != literal.out
    assert "read as text" not in read.err


def test_tokenize_gives_ids_and_pieces(foretell, trained):
    assert foretell("tokenize", trained, "cat", "--json").json == {"ids": [99, 97, 116], "pieces": ["c", "a", "t"]}


def test_tokenize_makes_special_tokens_only_with_allow_special(foretell, trained):
    plain = foretell("tokenize", trained, "<|endoftext|>", "--json").json
    special = foretell("tokenize", trained, "<|endoftext|>", "--allow-special", "--json").json
    assert len(plain["ids"]) == 13
    assert special["ids"] == [256]


def test_info_lists_every_weight_and_their_sum(foretell, trained):
    found = foretell("info", trained, "--names", "--json").json
    assert sum(weight["parameters"] for weight in found["weights"]) == found["parameters"]
    assert "trunk.blocks.1.attention.query" in found["modules"]
    assert max(len(line) for line in foretell("info", trained).out.splitlines()) <= 80


def test_info_of_a_model_without_a_tokenizer_names_ids(foretell):
    assert foretell("info", "almanac", "--json").json["tokenizer"]["kind"] == "ids"


@pytest.mark.parametrize("model", ["trained", "primer", "int8", "int4", "huggingface", "gpt2"])
def test_info_of_a_file_is_info_of_the_model(foretell, trained, exported, model, tmp_path):
    argument = trained if model == "trained" else "primer"
    if model.startswith("int"):
        argument = tmp_path / model
        load("primer", "cpu", "float32", quantize=cast("Scheme", model)).save(argument)
    if model == "huggingface":
        argument = exported
    if model == "gpt2":  # whose matrices are transposed, and query, key and value one
        config = ModelConfig(num_layers=2, num_heads=2, width=8, context_length=8, vocab_size=257)
        argument = tmp_path / model
        export_huggingface(LanguageModel(make_decoder(config, 0), train_tokenizer("bytes", ["a"])), argument)
    stored = foretell("info", argument, "--json").json
    loaded = foretell("info", argument, "--names", "--json").json
    assert set(loaded) - set(stored) == {"modules", "names"}
    costs = ("training_flops_per_token", "cache_bytes_per_token")
    for key in ("config", "tokenizer", "parameters", "quantization", *costs):
        assert stored[key] == loaded[key], key
    assert shapes_of(stored) == shapes_of(loaded)
    path = find_model(str(argument)) / "model.safetensors"
    assert stored["weight_bytes"] == path.stat().st_size - 8 - int.from_bytes(path.read_bytes()[:8], "little")


@pytest.fixture(scope="module")
def exported(tmp_path_factory) -> Path:
    """`primer` in Hugging Face's layout."""
    folder = tmp_path_factory.mktemp("exported") / "primer"
    export_huggingface(load("primer", "cpu", "float32"), folder)
    return folder


def shapes_of(facts: dict[str, Any]) -> dict[str, tuple[list[int], str]]:
    """The shape of each weight, and the scheme of a quantised one."""
    return {
        weight["path"]: (weight["shape"], weight["type"] if weight["path"].endswith(".integers") else "")
        for weight in facts["weights"]
    }


@pytest.mark.parametrize(
    "entry", [{"kind": []}, {"kind": "nonsense"}, {"kind": "quantization", "to": 3}, {"kind": "decoder"}, {}]
)
def test_info_of_unknown_parts_is_one_line(foretell, tmp_path, entry):
    load("primer", "cpu", "float32", quantize="int8").save(tmp_path / "model")
    path = tmp_path / "model" / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    config["parts"]["quantization"] = entry
    path.write_text(json.dumps(config), encoding="utf-8")
    (tmp_path / "model" / "manifest.json").unlink()
    outcome = foretell("info", tmp_path / "model")
    assert outcome.code == 1
    assert outcome.last_line.startswith("foretell: ")
    assert "Traceback" not in outcome.err


def test_info_lists_layers_by_number_and_the_head_last(foretell, tmp_path):
    config = ModelConfig(num_layers=11, num_heads=1, width=4, context_length=8, vocab_size=257, tie_embeddings=False)
    LanguageModel(make_decoder(config, 0), train_tokenizer("bytes", ["a"])).save(tmp_path / "deep")
    paths = [weight["path"] for weight in foretell("info", tmp_path / "deep", "--json").json["weights"]]
    layers = [int(path.split(".")[2]) for path in paths if path.startswith("trunk.blocks.")]
    assert layers == sorted(layers)
    assert paths[0].startswith("embed.")
    assert paths[-1] == "head.weight"


@pytest.mark.parametrize(
    "arguments",
    [
        ["info", "primer"],
        ["info", "RUN"],
        ["info", "HUGGINGFACE"],
        ["info", "gpt2-xl"],
        ["info", "tiny", "--json"],
        ["info", "--machine"],
        ["tokenize", "RUN", "The"],
    ],
)
def test_verbs_that_run_no_model_import_neither_torch_nor_numpy(arguments, trained, exported):
    words = [{"RUN": str(trained), "HUGGINGFACE": str(exported)}.get(word, word) for word in arguments]
    code = (
        f"import sys\nfrom foretell.cli.main import run\nassert run({words!r}) == 0\n"
        "sys.exit(', '.join({'torch', 'numpy'} & set(sys.modules)) or None)"
    )
    outcome = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert outcome.returncode == 0, outcome.stderr


def test_info_lists_the_kernels_that_generate(foretell, trained):
    outcome = foretell("info", trained, "--kernels", "--names", "--json").json
    assert "kernels" not in foretell("info", trained, "--json").json
    chosen = {entry["path"]: entry for entry in outcome["kernels"]}
    assert set(chosen) <= set(outcome["modules"])
    assert chosen["head"]["precision"] == "float32"
    assert chosen["head"]["kernel"] in ("FastTiedHead", "PackedTiedHead", "FastLinear", "PackedLinear")
    lines = foretell("info", trained, "--kernels").out.splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[-1].split()[:2] == ["head", chosen["head"]["kernel"]]
    assert outcome["program"] == {"ends_at": None}
    assert any(line.split() == ["compiled", "pass", "from", "ids", "to", "logits"] for line in lines)


def test_info_lists_every_name_that_can_be_traced_and_marks_the_derived_ones(foretell, trained):
    derived = {
        entry["name"]: entry["derived"] for entry in foretell("info", trained, "--names", "--json").json["names"]
    }
    assert derived["trunk.blocks.1.attention.core.weights"]
    assert not derived["trunk.blocks.1.attention.core"]
    lines = [line.split() for line in foretell("info", trained, "--names").out.splitlines()]
    assert ["trunk.blocks.*.attention.core.weights", "derived"] in lines
    assert ["trunk.blocks.*.attention.core"] in lines


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_info_shows_every_preset_without_weights(foretell, name):
    outcome = foretell("info", name).succeeds()
    assert "no weights and no tokenizer; a vocabulary" in outcome.out
    assert f"{name} is a preset: a shape without weights" in outcome.err
    assert max(len(line) for line in outcome.out.splitlines()) <= 80


def test_info_of_a_preset_counts_the_parameters_of_its_shape(foretell):
    facts = foretell("info", "gpt3-175b", "--json").json
    assert facts["parameters"] == sum(weight["parameters"] for weight in facts["weights"]) == 174_604_259_328
    assert facts["tokenizer"] is None
    assert facts["config"]["num_layers"] == 96


def test_info_prefers_a_run_or_a_path_to_a_preset_of_that_name(foretell, trained, tmp_path):
    shutil.copytree(trained, tmp_path / "runs" / "gpt2")
    assert foretell("info", "gpt2", "--json").json["config"]["width"] == 16
    (tmp_path / "tiny").mkdir()
    assert "neither a run" in foretell("info", "tiny").last_line


# --- generate --------------------------------------------------------------------------------------------------------


def test_generate_shows_the_prompt_and_its_continuation(foretell, trained):
    found = foretell("generate", trained, "The", "--max-tokens", "10", "--json").json
    shown = foretell("generate", trained, "The", "--max-tokens", "10").out
    assert shown == "The" + found["text"] + "\n"
    assert found["prompt"] == "The"
    assert found["finish_reason"] == "length"
    assert len(found["token_ids"]) == 10


def test_the_same_seed_writes_the_same_text_and_another_seed_another(foretell, trained):
    texts = [foretell("generate", trained, "The", "--max-tokens", "20", "--seed", seed).out for seed in (1, 1, 2)]
    assert texts[0] == texts[1] != texts[2]


def test_several_prompts_are_samples_of_one_seed(foretell, trained):
    together = foretell("generate", trained, "The", "Who sat", "--max-tokens", "10", "--json").out.splitlines()
    first = foretell("generate", trained, "The", "--max-tokens", "10", "--json").json
    assert json.loads(together[0]) == first
    assert json.loads(together[1])["prompt"] == "Who sat"


def test_python_and_the_command_line_generate_the_same_text(foretell, trained):
    completion = foretell_package.generate(foretell_package.load(trained, device="cpu"), "The")
    assert foretell("generate", trained, "The", "--json", "--device", "cpu").json == completion.to_json()


def test_the_help_of_generate_names_the_defaults_of_sampling(foretell):
    text = " ".join(foretell("generate", "--help").out.split())
    defaults = SamplingConfig()
    for value in (defaults.temperature, defaults.top_p, defaults.min_p, defaults.repetition_penalty, defaults.seed):
        assert f"(default: {value:g})." in text
    assert f"(default: {DEFAULT_TOKENS}, or what still fits)." in text


def test_a_stop_string_ends_the_text_before_it(foretell, trained):
    whole = foretell("generate", trained, "The", "--max-tokens", "28", "--temperature", "0", "--json").json["text"]
    stop = whole[5:7]
    found = foretell("generate", trained, "The", "--temperature", "0", "--stop", stop, "--json").json
    assert found["finish_reason"] == "stop"
    assert found["text"] == whole[: whole.index(stop)]
    assert bytes(found["token_ids"]).decode() == found["text"]


def test_slide_continues_beyond_the_context_with_a_note(foretell, trained):
    outcome = foretell("generate", trained, "The", "--max-tokens", "80", "--slide", "--temperature", "0", "--json")
    assert len(outcome.json["token_ids"]) == 80
    assert "sees only the tail" in outcome.err


def test_a_prompt_comes_from_standard_input(foretell, trained, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"The cat"), encoding="utf-8"))
    assert foretell("next", trained, "-", "--json").json["context"] == "The cat"


def test_text_after_two_hyphens_may_begin_with_one(foretell, trained):
    assert foretell("next", trained, "--json", "--", "-x").json["context"] == "-x"


# --- models ----------------------------------------------------------------------------------------------------------


def test_a_run_is_found_by_path_by_name_and_by_checkpoint(foretell, trained, tmp_path):
    shutil.copytree(trained, tmp_path / "runs" / "cats")
    texts = [
        foretell("next", model, "The", "--json").out
        for model in ("cats", "runs/cats", "runs/cats@best", "cats@best", tmp_path / "runs" / "cats")
    ]
    assert len(set(texts)) == 1
    assert foretell("next", "cats@step-000008", "The").code == 0


def test_primer_answers_at_once(foretell):
    found = foretell("next", "primer", "The return value of the function", "--json").json
    assert found["context"] == "The return value of the function"
    assert found["tokens"][0]["probability"] > 0.02


def test_a_made_tokenizer_can_be_trained_with(foretell, corpus):
    made = foretell("tokenizer", "train", corpus, "--vocab-size", "280", "--out", "tok", "--json").json
    assert made == {"path": "tok/tokenizer.json", "kind": "bpe", "vocab_size": 280}
    options = ["--size", "toy", "--model.context-length", "32", "--steps", "2", "--training.batch-size", "2"]
    assert foretell("train", corpus, "--tokenizer", "tok", "--out", "x", *options).code == 0
    ours = foretell("tokenize", "x", "The cat", "--json").out
    assert ours == foretell("tokenize", "tok", "The cat", "--json").out


@pytest.mark.parametrize("dtype", [None, "bfloat16"])
def test_convert_without_a_target_writes_a_saved_model(foretell, trained, tmp_path, dtype):
    export_huggingface(load(trained, device="cpu", dtype="float32"), tmp_path / "other")
    words = [] if dtype is None else ["--dtype", dtype]
    facts = foretell("convert", "other", "own", *words, "--json").json
    expected = getattr(torch, dtype or "float32")
    model, source = load("own", device="cpu", dtype=expected), load("other", device="cpu", dtype=expected)
    assert facts == {
        "path": "own",
        "dtype": dtype or "float32",
        "bytes": (tmp_path / "own/model.safetensors").stat().st_size,
    }
    weights = source.decoder.state_dict()
    assert all(torch.equal(value, weights[name]) for name, value in model.decoder.state_dict().items())
    assert model.encode("The cat") == source.encode("The cat")
