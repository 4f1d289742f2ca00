"""`foretell plan`: a table of at most 80 columns, JSON, and this machine."""

from __future__ import annotations

import re

import pytest

XL = ["plan", "--size", "gpt2-xl", "--tokens", "30e9", "--gpus", "8", "--gpu", "h100"]


def test_the_table_has_every_part_and_fits_80_columns(foretell):
    outcome = foretell(*XL).succeeds()
    for word in ("1,557,611,200 parameters", "gradients", "device hours", "43% of its peak", "cache per token"):
        assert word in " ".join(outcome.out.split())
    assert max(map(len, outcome.out.splitlines())) <= 80


def test_json_has_the_same_figures(foretell):
    found = foretell(*XL, "--json").json
    assert found["parameters"] == 1_557_611_200
    training = found["training"]
    assert training["memory"]["weights"] == {"low": 4 * 1_557_611_200, "high": 4 * 1_557_611_200}
    assert training["device_hours"]["low"] == pytest.approx(8 * training["seconds"]["low"] / 3600)
    assert training["speed"]["rate"]["low"] == pytest.approx(0.43 / 2 * 989e12)
    assert found["generating"]["cache_per_token"] == 2 * 48 * 1600 * 2


def test_what_the_refusal_says_would_fit_does(foretell):
    refused = ["plan", "--size", "gpt3-13b", "--tokens", "30e9", "--gpus", "8", "--gpu", "h100"]
    foretell(*refused).fails(2, "--gpus 8 --parallel fsdp --checkpoint-activations")
    outcome = foretell(*refused, "--parallel", "fsdp", "--checkpoint-activations", "--training.batch-size", "8")
    assert outcome.code == 0
    assert "may not fit" not in outcome.out


@pytest.mark.parametrize("rows", ["16", "48"])
def test_what_would_fit_is_said_where_a_training_may_not_fit(foretell, rows):
    sized = ["plan", "--size", "gpt2-large", "--gpu", "a100", "--only", "training", "--training.batch-size", rows]
    shown = " ".join(foretell(*sized).succeeds().out.split())
    (way,) = re.findall(r"It may not fit; this would: .*?(--[a-z-]+(?:\.[a-z-]+ \d+)?)", shown)
    assert "may not fit" not in foretell(*sized, *way.split()).succeeds().out


def test_this_machine_is_measured_with_a_probe(foretell, monkeypatch):
    monkeypatch.setattr("foretell.planning.speed.PROBE_SECONDS", 0.0)
    monkeypatch.setattr("foretell.planning.speed.STEP_SECONDS", 0.01)
    monkeypatch.setattr("foretell.planning.speed.READ_BYTES", 2**20)
    outcome = foretell("plan", "--size", "toy", "--tokens", "1e5").succeeds()
    assert "Based on a probe of this machine" in outcome.out
    assert "8,192 is assumed" in outcome.err


def test_a_training_that_is_too_short_to_be_compiled_has_the_bound_of_one_that_is_not(foretell):
    sized = ["plan", "--size", "gpt2", "--gpu", "h100", "--only", "training", "--json", "--training.steps"]
    short, long = (foretell(*sized, steps).json["training"] for steps in ("999", "1000"))
    assert short["steps"] == 999
    assert long["memory"]["activations"]["low"] == short["memory"]["activations"]["low"] / 2


def test_one_of_the_two_can_be_planned_alone(foretell):
    sized = ["plan", "--size", "gpt2-xl", "--gpu", "h100", "--json", "--only"]
    outcome = foretell(*sized, "generating")
    assert outcome.json.keys() & {"training", "generating"} == {"generating"}
    assert "tokens" not in outcome.err
    assert foretell(*sized, "training").json.keys() & {"training", "generating"} == {"training"}


def test_a_model_too_large_to_generate_on_one_gpu_can_be_planned_for_training_alone(foretell):
    large = ["plan", "--size", "gpt3-175b", "--gpus", "1024", "--gpu", "h100", "--parallel", "fsdp"]
    large += ["--checkpoint-activations", "--training.batch-size", "1024"]
    refused = foretell(*large)
    assert refused.code == 2
    assert "generating is planned on one device" in refused.last_line
    assert "--only training" in refused.last_line
    assert foretell(*large, "--only", "training").code == 0
