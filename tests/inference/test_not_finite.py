"""Weights and logits that are not finite, or not numbers of a model, are errors of one line, never an answer."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import foretell
from foretell.cli.main import run
from foretell.config.sampling import SamplingConfig
from foretell.errors import CheckpointError
from foretell.evaluation.multiple_choice import ContinuationRow, score_rows
from foretell.evaluation.perplexity import evaluate_texts
from foretell.generation.filters import Prefix
from foretell.generation.sampling import Sampler
from foretell.inference.query import next_tokens, score
from foretell.language_model import LanguageModel, load_model
from foretell.training.objective import Objective
from tests.toy import make_toy

QUERY = "trunk.blocks.0.attention.query.weight"


@pytest.fixture
def model() -> LanguageModel:
    return make_toy(seed=1, context_length=32)


def save_with(model: LanguageModel, directory: Path, value: float, dtype: torch.dtype = torch.float32) -> Path:
    """The model on disk with one value of a matrix changed."""
    model.save(directory)
    weights = load_file(directory / "model.safetensors")
    weights[QUERY][0, 0] = value
    save_file({**weights, QUERY: weights[QUERY].to(dtype)}, directory / "model.safetensors")
    (directory / "manifest.json").unlink()
    return directory


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_weights_that_are_not_finite_are_refused(model, tmp_path, value) -> None:
    directory = save_with(model, tmp_path / "bad", value)
    with pytest.raises(CheckpointError, match=f"'{QUERY}' has values that are not finite"):
        foretell.load(directory)


def test_integer_weights_are_refused(model, tmp_path) -> None:
    directory = save_with(model, tmp_path / "bad", 1.0, torch.int32)
    with pytest.raises(CheckpointError, match="holds I32, which is not a floating-point type"):
        foretell.load(directory)


def test_every_row_is_checked_before_training(model, tmp_path) -> None:
    model.save(tmp_path / "bad")
    weights = load_file(tmp_path / "bad" / "model.safetensors")
    weights["embed.token.weight"][-1, 0] = math.nan
    save_file(weights, tmp_path / "bad" / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"embed\.token\.weight"):
        load_model(tmp_path / "bad", for_training=True)


def test_finite_weights_whose_sum_overflows_are_accepted(model, tmp_path) -> None:
    with torch.no_grad():
        model.decoder.embed.token.weight.fill_(3e38)
    model.save(tmp_path / "large")
    assert foretell.load(tmp_path / "large").decoder.embed.token.weight.max() == torch.tensor(3e38)


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize(
    "ask",
    [
        lambda model: foretell.generate(model, "some", 3),
        lambda model: next_tokens(model, "some"),
        lambda model: score(model, "some"),
        lambda model: score_rows(model, [ContinuationRow([1, 2, 3], 1)]),
        lambda model: evaluate_texts(model, Objective(model.decoder), ["some text"]),
    ],
    ids=["generate", "next", "score", "choice", "evaluate"],
)
def test_no_answer_is_made_from_logits_that_are_not_finite(model, ask, value) -> None:
    with torch.no_grad():
        model.decoder.trunk.blocks[0].attention.value.weight.fill_(value)
    with pytest.raises(CheckpointError, match=r"not finite|is nan|is inf"):
        ask(model)


def test_a_ruled_out_token_may_have_a_logit_of_minus_infinity() -> None:
    sampler = Sampler(SamplingConfig(temperature=0))
    assert sampler(torch.tensor([[0.0, -torch.inf, 1.0]]), [Prefix([0])], [0]) == [2]
    with pytest.raises(CheckpointError, match="not finite"):
        sampler(torch.full((1, 3), -torch.inf), [Prefix([0])], [0])


def test_huge_finite_logits_have_an_infinite_perplexity_which_json_writes_as_null(model) -> None:
    model.decoder.head.register_forward_hook(lambda _, __, logits: logits * 1e30)
    result = score(model, "some")
    assert result.perplexity == math.inf
    assert math.isfinite(result.logprob)
    values = result.to_json()
    assert values["perplexity"] is None
    json.dumps(values, allow_nan=False)
    evaluation = evaluate_texts(model, Objective(model.decoder), ["some"])
    json.dumps(evaluation.to_json(), allow_nan=False)


@pytest.mark.parametrize(
    "arguments", [["generate", "bad", "a"], ["next", "bad", "a", "--json"], ["score", "bad", "ab"]]
)
def test_the_command_line_reports_a_damaged_model(model, tmp_path, monkeypatch, capsys, arguments) -> None:
    save_with(model, tmp_path / "bad", math.nan)
    monkeypatch.chdir(tmp_path)
    assert run(arguments) == 1
    output = capsys.readouterr()
    assert output.out == ""
    assert "not finite" in output.err
