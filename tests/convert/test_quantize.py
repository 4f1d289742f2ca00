"""Quantising the included model: the loss of quality, the report, and the gain of calibration."""

from __future__ import annotations

import json
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

import foretell
from foretell import LanguageModel
from foretell.cli.main import run
from foretell.config.quantization import QuantizationConfig, Scheme
from foretell.convert.gptq import find_stages, quantize_for_inputs
from foretell.convert.quantize import (
    QuantizationReport,
    QuantizationTexts,
    by_kind,
    choose_texts,
    quantize_with_report,
    token_rows,
)
from foretell.data.documents import embedded_corpus
from foretell.errors import ConfigError, DataError
from foretell.model.decoder import Decoder
from foretell.model.init import make_decoder
from foretell.model.presets import preset_config
from foretell.model.quantize_decoder import make_quantization
from foretell.model.quantized_linear import Int4Linear

TOKENS = 2048  # to calibrate on, and as many to measure on
# Rise of the perplexity
BOUNDS = {"int8": 0.001, "int4": 0.01, "int4 calibrated": 0.01, "int4 head": 0.015, "int4 head calibrated": 0.01}


def no_progress(_: str) -> Any:
    return nullcontext(lambda done, total: None)


@dataclass(frozen=True)
class Quantized:
    """primer, quantised; `divergence` is the mean of KL(plain | quantised) on the measured text, in nats per token."""

    report: QuantizationReport
    divergence: float


@torch.no_grad()
def log_probabilities(model: LanguageModel, rows: Tensor) -> Tensor:
    return model.decoder(rows).double().log_softmax(-1)


def quantize_primer(to: Scheme, *, calibrate: bool = False, head: Scheme = "int8") -> Quantized:
    model = foretell.load("primer", dtype="float32")
    ids = [token for document in islice(embedded_corpus(), 6) for token in model.encode(document.text)]
    measured = [model.decode(ids[TOKENS : 2 * TOKENS])]
    rows = token_rows(model, ids[TOKENS : 2 * TOKENS])
    before = log_probabilities(model, rows)
    texts = QuantizationTexts(measured, token_rows(model, ids[:TOKENS]) if calibrate else None)
    settings = make_quantization(model.decoder, to, keep=("trunk.blocks.2.**", "trunk.blocks.3.**"), head=head)
    quantized, report = quantize_with_report(model, settings, texts, no_progress)
    after = log_probabilities(quantized, rows)
    return Quantized(report, float((before.exp() * (before - after)).sum(-1).mean()))


@pytest.fixture(scope="module")
def quantized() -> dict[str, Quantized]:
    return {
        "int8": quantize_primer("int8"),
        "int4": quantize_primer("int4"),
        "int4 calibrated": quantize_primer("int4", calibrate=True),
        "int4 head": quantize_primer("int4", head="int4"),
        "int4 head calibrated": quantize_primer("int4", calibrate=True, head="int4"),
    }


@pytest.mark.parametrize("kind", BOUNDS)
def test_the_perplexity_of_primer_rises_little(quantized: dict[str, Quantized], kind: str) -> None:
    assert abs(quantized[kind].report.perplexity_change) < BOUNDS[kind]


def test_calibration_lowers_the_error_of_every_kind_of_layer(quantized: dict[str, Quantized]) -> None:
    nearest, calibrated = by_kind(quantized["int4"].report.layers), by_kind(quantized["int4 calibrated"].report.layers)
    in_blocks = [pair for pair in zip(nearest, calibrated, strict=True) if "blocks" in pair[0].kind]
    assert len(in_blocks) == 7
    assert all(after.mean < 0.9 * before.mean for before, after in in_blocks)
    assert quantized["int4 calibrated"].divergence < 0.8 * quantized["int4"].divergence
    assert quantized["int4 head calibrated"].divergence < 0.8 * quantized["int4 head"].divergence


def test_the_errors_grow_with_fewer_bits(quantized: dict[str, Quantized]) -> None:
    int8, int4 = ({layer.path: layer.error for layer in quantized[kind].report.layers} for kind in ("int8", "int4"))
    assert all(5 * int8[path] < int4[path] for path in int8 if "blocks" in path)
    assert 0 < max(int8.values()) < 0.01


def test_layers_that_read_the_same_tensor_are_calibrated_together() -> None:
    decoder = small_decoder()
    block = decoder.trunk.blocks[0]
    layers = {path: module for path, module in block.named_modules() if isinstance(module, torch.nn.Linear)}
    calls: list[Any] = []
    with block.register_forward_pre_hook(lambda _, given: calls.append(given)), torch.no_grad():
        decoder(torch.arange(8)[None])
    stages = find_stages(block, layers, calls[0])
    assert [[path.rpartition(".")[2] for path in stage] for stage in stages] == [
        ["query", "key", "value"],
        ["output"],
        ["gate", "up"],
        ["down"],
    ]


def small_decoder() -> Decoder:
    return make_decoder(
        preset_config("tiny", vocab_size=64, num_layers=2, width=64, feedforward_width=96), seed=1
    ).eval()


def test_kept_layers_are_not_calibrated() -> None:
    decoder = small_decoder()
    settings = QuantizationConfig(to="int4", group=16, keep=("**.blocks.1.**",))
    quantize_for_inputs(decoder, settings, torch.arange(64).view(2, 32), lambda done, total: None)
    kinds = [{type(module) for module in block.modules()} for block in decoder.trunk.blocks]
    assert [Int4Linear in kind for kind in kinds] == [True, False]


def test_calibration_uses_the_first_half_and_the_measurement_the_second() -> None:
    model = foretell.load("primer", dtype="float32")
    text = "The first half is for the calibration, the second half to measure on."
    chosen = choose_texts(model, None, [text])
    assert chosen.calibration is not None
    ids = model.encode(text)
    assert chosen.calibration.flatten().tolist() == ids[: len(ids) // 2]
    assert chosen.measured == [model.decode(ids[len(ids) // 2 :])]
    with pytest.raises(DataError, match="too few"):
        choose_texts(model, None, ["a"])


def test_a_wrong_group_is_refused_before_anything_is_computed() -> None:
    model = foretell.load("primer", dtype="float32")
    with pytest.raises(ConfigError, match="groups of 7"):
        quantize_with_report(model, QuantizationConfig(to="int8", group=7), QuantizationTexts([]), no_progress)


# --- the verb --------------------------------------------------------------------------------------------------------


@pytest.fixture
def text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "my.txt"
    path.write_text("The value of the expression is a list.\n" * 40, encoding="utf-8")
    return path


def test_the_verb_writes_the_model_that_load_makes_on_the_fly(text: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["convert", "primer", "out", "--to", "int4", "--text", str(text), "--keep", "**.down", "--json"]) == 0
    facts = json.loads(capfd.readouterr().out)
    model = foretell.load("primer", dtype="float32").quantize("int4", keep=["**.down"])
    model.save("again", dtype="bfloat16")
    again, written = (load_file(Path(name) / "model.safetensors") for name in ("again", "out"))
    assert again.keys() == written.keys() and all(torch.equal(again[key], written[key]) for key in again)
    settings = {"to": "int4", "group": 32, "head": "int8", "keep": ["**.down"], "calibrated": False}
    assert facts["quantization"] == settings
    assert facts["bytes"]["after"] < facts["bytes"]["before"] / 2
    assert {layer["path"] for layer in facts["layers"]} >= {"head", "embed.token", "trunk.blocks.3.attention.query"}
    assert facts["perplexity"]["after"] == pytest.approx(
        facts["perplexity"]["before"] * (1 + facts["perplexity"]["change"])
    )
    assert facts["calibration_tokens"] == 0 and facts["tokens"] > 100


def test_the_report_fits_80_columns(text: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["convert", "primer", "out", "--to", "int4", "--calibrate", "my.txt", "--group", "16"]) == 0
    lines = capfd.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[0] == "out: int4 in groups of 16, calibrated"
    assert any(line.startswith("trunk.blocks.*.attention.query ") for line in lines)
    capfd.readouterr()
    assert run(["info", "out"]) == 0
    shown = capfd.readouterr().out
    assert "int4 in groups of 16, calibrated; " in shown
    assert "trunk.blocks.0.attention.query.integers" in shown and "1,968,320 in 4 layers" in shown
    assert max(map(len, shown.splitlines())) <= 80


@pytest.mark.parametrize(
    "arguments",
    [
        ["next", "primer", "The value"],
        ["generate", "primer", "The value", "--max-tokens", "8"],
        ["score", "primer", "The value of the list"],
        ["embed", "primer", "The value"],
        ["explain", "primer", "The value"],
        ["trace", "primer", "The value", "--out", "values.safetensors"],
    ],
    ids=lambda arguments: arguments[0],
)
def test_verbs_quantise_on_the_fly(text: Path, arguments: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    assert run([*arguments, "--quantize", "int8"]) == 0
    assert "weights in int8 in groups of 64" in capfd.readouterr().err
