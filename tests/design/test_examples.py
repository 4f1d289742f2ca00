"""The files in examples/ run: with the library that each is for, if it is installed, and with a fake of it."""

from __future__ import annotations

import json
import math
import re
import runpy
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import foretell
from foretell.paths import translate
from tests.toy import GEMMA3, LLAMA, make_toy, with_large_weights

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
MISSING = "{} is not installed; run make test-oracles"
TEXT = "The return value of the function is a new list."
KEYS: dict[str, Any] = {"num_layers": 2, "num_heads": 4, "num_kv_heads": 2, "width": 16, "context_length": 32}


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_is_short_and_is_in_the_documents(path: Path):
    assert len(path.read_text("utf-8").splitlines()) <= 80
    assert f"examples/{path.name}" in (ROOT / "docs" / "coming-from.md").read_text("utf-8")
    assert f"`{path.name}`" in (ROOT / "docs" / "python.md").read_text("utf-8")


def fake(monkeypatch: pytest.MonkeyPatch, name: str, **content: Any) -> None:
    """Put a module into `sys.modules`, with the packages that it is in."""
    packages = name.split(".")
    for depth in range(1, len(packages) + 1):
        module = ModuleType(".".join(packages[:depth]))
        vars(module).update(content if depth == len(packages) else {"__path__": []})
        monkeypatch.setitem(sys.modules, module.__name__, module)


def example(name: str) -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "examples" / name))


def requests(*arguments: tuple[Any, ...]) -> list[Any]:
    return [SimpleNamespace(args=each) for each in arguments]


# --- lm-evaluation-harness --------------------------------------------------------------------------------------------


@pytest.fixture
def harness(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The example's model for primer, without the harness."""
    fake(monkeypatch, "lm_eval.api.model", LM=object)
    return example("lm_eval_model.py")["ForetellLM"]("primer", device="cpu", dtype="float32")


def test_log_probabilities_of_continuations_are_those_that_score_adds_up(harness: Any):
    pairs = [("The return value", " of the"), ("The return value", " is"), ("A class", " definition")]
    found = harness.loglikelihood(requests(*pairs))
    for (context, answer), (logprob, _) in zip(pairs, found, strict=True):
        tokens = foretell.score(harness.model, context + answer).tokens[len(harness.model.encode(context)) :]
        assert logprob == pytest.approx(sum(token.logprob or 0 for token in tokens), abs=1e-4)


def test_a_continuation_is_greedy_if_generation_writes_it(harness: Any):
    greedy = foretell.generate(harness.model, "The return value", 3, temperature=0).text
    found = harness.loglikelihood(requests(("The return value", greedy), ("The return value", " banana")))
    assert [is_greedy for _, is_greedy in found] == [True, False]


def test_a_text_of_any_length_is_predicted_once(harness: Any):
    limit, tokenizer = harness.model.config.context_length, harness.model.tokenizer
    short, long = TEXT, TEXT * (3 * limit // len(tokenizer.encode(TEXT)))
    windows = list(harness.iter_windows(long))
    assert [token for each in windows for token in each.ids[each.first :]] == tokenizer.encode(long)
    assert {len(each.ids) for each in windows} == {limit + 1}
    ids = [tokenizer.end_id, *tokenizer.encode(short)]
    with torch.no_grad():
        logprobs = harness.model.log_probabilities(harness.model(ids)[0, :-1])
    expected = logprobs.gather(1, torch.tensor(ids[1:])[:, None])
    found = harness.loglikelihood_rolling(requests((short,), (long,)))
    assert found[0] == pytest.approx(float(expected.sum()), abs=1e-4)
    assert found[1] < 2 * found[0]


def test_generations_stop_at_their_strings_and_keep_the_order_of_the_requests(harness: Any):
    short, stopped = {"max_gen_toks": 4}, {"until": "e", "max_gen_toks": 20, "temperature": 0.0}
    sampled = {"until": [], "max_gen_toks": 8, "do_sample": True, "temperature": 0.7}
    prompts = [("The value", short), ("A class", stopped), ("A class", short), ("The", sampled), ("x " * 400, short)]
    first, second, third, fourth, fifth = harness.generate_until(requests(*prompts))
    generate, model = foretell.generate, harness.model
    assert [first, third] == [each.text for each in generate(model, ["The value", "A class"], 4, temperature=0)]
    assert second == generate(model, "A class", 20, temperature=0, stop="e").text
    assert fourth == generate(model, "The", 8, temperature=0.7, top_p=1.0).text
    assert len(model.encode(fifth)) > 0
    with pytest.raises(foretell.ConfigError, match="unknown|num_beams"):
        harness.generate_until(requests(("The", {"do_sample": True, "num_beams": 2})))


@pytest.mark.oracles
@pytest.mark.filterwarnings("ignore")
def test_the_harness_evaluates_the_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HF_DATASETS_OFFLINE", "1")
    lm_eval = pytest.importorskip("lm_eval", reason=MISSING.format("lm-eval"))
    from lm_eval.tasks import TaskManager
    from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

    rows = [{"query": "The return value of", "choices": ["the function", "banana"], "gold": 0}] * 3
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    task = {"task": "choice", "dataset_path": "json", "test_split": "test", "output_type": "multiple_choice"}
    task |= {"dataset_kwargs": {"data_files": {"test": str(tmp_path / "rows.jsonl")}}}
    task |= {"doc_to_text": "{{query}}", "doc_to_choice": "{{choices}}", "doc_to_target": "gold"}
    (tmp_path / "task.yaml").write_text(json.dumps(task), encoding="utf-8")  # JSON is YAML
    model = example("lm_eval_model.py")["ForetellLM"]("primer", device="cpu")
    manager = TaskManager(include_path=str(tmp_path), include_defaults=False)
    results = lm_eval.simple_evaluate(model, tasks=["choice"], task_manager=manager, bootstrap_iters=0)
    assert results["results"]["choice"]["acc,none"] == 1.0
    limit, ids = model.model.config.context_length, model.model.encode(TEXT * 60)
    theirs = get_rolling_token_windows(ids, model.model.tokenizer.end_id, limit, 1)
    ours = [(each.ids[: each.first], each.ids[each.first :]) for each in model.iter_windows(TEXT * 60)]
    assert ours == list(map(make_disjoint_window, theirs))


# --- sktime -----------------------------------------------------------------------------------------------------------


class FakeFrame(dict[str, list[float]]):
    index = ()
    columns = ("y",)

    def __getitem__(self, name: str) -> Any:
        return SimpleNamespace(to_list=lambda: super(FakeFrame, self).__getitem__(name))


class FakeSeries:
    """The part of a pandas series that the example uses; its labels are positions."""

    name = "sales"

    def __init__(self, values: list[float]):
        self.values, self.loc = values, self

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, part: slice) -> FakeSeries:
        return FakeSeries(self.values[: part.stop + 1])  # pandas includes the last label

    def last_valid_index(self) -> int:
        return max(index for index, value in enumerate(self.values) if not math.isnan(value))

    def to_frame(self, name: str) -> FakeFrame:
        return FakeFrame({name: self.values})


class FakeHorizon(list[int]):
    def to_relative(self, cutoff: Any) -> Any:
        return SimpleNamespace(to_numpy=lambda: np.array(self))

    def to_absolute_index(self, cutoff: Any) -> list[int]:
        return list(self)


VALUES = [200 + 2 * step + 30 * math.sin(step * math.pi / 6) for step in range(60)]


@pytest.fixture
def forecaster(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The example's forecaster, without sktime and pandas."""
    fake(
        monkeypatch,
        "pandas",
        Series=lambda values, index, name: (name, list(values), index),
        DataFrame=lambda values, index, columns: (np.array(values), index, columns),
        MultiIndex=SimpleNamespace(from_product=lambda parts: parts),
        PeriodIndex=type("PeriodIndex", (), {}),
    )
    base = type("BaseForecaster", (), {"cutoff": None, "_get_varnames": lambda self: ["sales"]})
    fake(monkeypatch, "sktime.forecasting.base", BaseForecaster=base)
    return example("sktime_forecaster.py")["ForetellForecaster"](samples=10)


def test_a_forecast_has_the_steps_of_the_horizon(forecaster: Any):
    forecaster._fit(FakeSeries(VALUES), None, None)
    (expected,) = foretell.forecast("almanac", FakeFrame(y=VALUES), 5, 10)
    name, values, index = forecaster._predict(FakeHorizon([1, 5]), None)
    assert (name, index) == ("sales", [1, 5])
    assert values == [expected.median[0], expected.median[4]]
    bounds, _, columns = forecaster._predict_interval(FakeHorizon([1, 5]), None, [0.5, 0.9])
    assert columns == [["sales"], [0.5, 0.9], ["lower", "upper"]]
    assert np.array_equal(bounds[:, 2:], np.stack(expected.interval(90), 1)[[0, 4]])
    assert (bounds[:, 2] < bounds[:, 0]).all() and (bounds[:, 0] < bounds[:, 1]).all()


def test_steps_after_missing_last_values_are_counted_from_the_end_of_the_series(forecaster: Any):
    (expected,) = foretell.forecast("almanac", FakeFrame(y=VALUES), 5, 10)
    forecaster._fit(FakeSeries([*VALUES, math.nan, math.nan]), None, None)
    assert forecaster._predict(FakeHorizon([1, 3]), None)[1] == [expected.median[2], expected.median[4]]


@pytest.mark.oracles
@pytest.mark.filterwarnings("ignore")
def test_sktime_forecasts_with_the_model():
    pytest.importorskip("sktime", reason=MISSING.format("sktime"))
    from sktime.datasets import load_airline

    airline = load_airline()
    made = example("sktime_forecaster.py")["ForetellForecaster"](samples=20).fit(airline[:-12])
    points, table = made.predict(range(1, 13)), airline[:-12].to_frame("y")
    table.index = table.index.to_timestamp()
    (expected,) = foretell.forecast("almanac", table, 12, 20)
    assert points.index.equals(airline.index[-12:])
    assert np.array_equal(points.to_numpy(), expected.median)
    bounds = made.predict_interval(range(1, 13), coverage=[0.8])
    assert np.array_equal(bounds.to_numpy(), np.stack(expected.interval(80), 1))
    assert (made.predict_quantiles(range(1, 13), alpha=[0.5]).to_numpy()[:, 0] == expected.median).all()
    later = made.update(airline[-12:]).predict([1])
    assert later.index[0] == airline.index[-1] + 1


# --- TransformerLens --------------------------------------------------------------------------------------------------

SHAPES: dict[str, dict[str, Any]] = {
    "gpt2": KEYS,
    "llama": KEYS | LLAMA,
    "gemma3": KEYS | GEMMA3 | {"query_pre_attn_scalar": None, "scale_embeddings": False},
    "parallel": KEYS | {"residual": "parallel"},
    "bare": KEYS | {"feedforward": "none", "norm": "none"},
}


def cached(kind: str) -> tuple[Any, torch.Tensor, dict[str, torch.Tensor]]:
    model = make_toy(**SHAPES[kind])
    with_large_weights(model.decoder)
    return (model, *example("transformer_lens_names.py")["run_with_cache"](model, "some text"))


@pytest.mark.parametrize("kind", SHAPES)
def test_the_values_of_a_block_follow_from_each_other(kind: str):
    model, logits, cache = cached(kind)
    with torch.no_grad():
        assert torch.equal(logits, model(model.encode("some text")))
        assert torch.equal(model.decoder.head(cache["ln_final.hook_normalized"]), logits)
    T, H, E = logits.shape[1], 4, model.config.head_width
    for layer in (0, 1):
        value = {name.removeprefix(f"blocks.{layer}."): each for name, each in cache.items()}
        query, key, values = (value[f"attn.hook_{name}"] for name in ("rot_q", "rot_k", "v"))
        assert query.shape == value["attn.hook_q"].shape == (1, T, H, E)
        assert key.shape == values.shape == value["attn.hook_k"].shape == (1, T, 2, E)
        key, values = (each.repeat_interleave(2, dim=2) for each in (key, values))
        scores = torch.einsum("bthe,bshe->bhts", query, key) / math.sqrt(E)
        seen = torch.isfinite(value["attn.hook_attn_scores"])
        assert seen.tril().sum() == seen.sum() > 0
        torch.testing.assert_close(value["attn.hook_attn_scores"], scores.masked_fill(~seen, -math.inf))
        pattern = value["attn.hook_pattern"]
        torch.testing.assert_close(pattern, value["attn.hook_attn_scores"].softmax(-1))
        mixed = torch.einsum("bhts,bshe->bthe", pattern, values)
        torch.testing.assert_close(value["attn.hook_z"], mixed, atol=1e-5, rtol=1e-5)
        after = value["hook_resid_pre"] + value["hook_attn_out"]
        torch.testing.assert_close(value["hook_resid_mid"], after)
        torch.testing.assert_close(value["hook_resid_post"], after + value.get("hook_mlp_out", torch.zeros(())))
        if kind in ("gpt2", "llama"):
            down = model.decoder.get_submodule(f"trunk.blocks.{layer}.feedforward.down")
            torch.testing.assert_close(value["hook_mlp_out"], down(value["mlp.hook_post"]))
    assert torch.equal(cache["blocks.0.hook_resid_post"], cache["blocks.1.hook_resid_pre"])
    assert cache["hook_embed"].shape == (1, T, 16)


def test_the_names_are_those_that_an_error_suggests():
    """The error for a name of TransformerLens gives foretell's name."""
    content = example("transformer_lens_names.py")
    names = content["OUTSIDE_BLOCKS"] | {f"blocks.1.{name}": path for name, path in content["IN_BLOCK"].items()}
    suggested = {name: translate(name) for name in names}
    assert {name: path for name, path in suggested.items() if path} == {
        name: f"trunk.blocks.1.{path}" if name.startswith("blocks") else path
        for name, path in names.items()
        if suggested[name]
    }
    unknown = {re.sub(r"^blocks\.1\.", "", name) for name, path in suggested.items() if not path}
    assert unknown == {"mlp.hook_pre"}
