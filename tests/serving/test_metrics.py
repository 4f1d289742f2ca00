"""The numbers for Prometheus: the type of each, and what is counted."""

from __future__ import annotations

import pytest

parser = pytest.importorskip("prometheus_client.parser")


def numbers(served):
    """The types of all numbers, and their values by name and labels."""
    families = list(parser.text_string_to_metric_families(served.client.get("/metrics").text))
    samples = [sample for family in families for sample in family.samples]
    types = {family.name.removeprefix("foretell_"): family.type for family in families}
    return types, {(sample.name.removeprefix("foretell_"), *sample.labels.values()): sample.value for sample in samples}


def test_requests_and_tokens_are_counted_without_the_warm_up(start_server, toy_model):
    served = start_server(str(toy_model), "--memory", "0.05")
    types, before = numbers(served)
    assert {types[name] for name in ("steps", "tokens", "prompt_tokens", "http_requests")} == {"counter"}
    assert types["http_request_seconds"] == "histogram" and types["requests"] == "gauge"
    assert {before[name,] for name in ("steps_total", "tokens_total", "prompt_tokens_total")} == {0}
    served.ask("/v1/completions", prompt="abc", max_tokens=2, n=2, ignore_eos=True)
    served.post("/v1/completions", prompt="abc", n=0)
    served.client.get("/nowhere")
    _, after = numbers(served)
    assert after["tokens_total",] == 4 and after["prompt_tokens_total",] == 3
    assert after["steps_total",] >= 2
    assert after["http_requests_total", "/v1/completions", "200"] == 1
    assert after["http_requests_total", "/v1/completions", "400"] == 1
    assert after["http_requests_total", "other", "404"] == 1
    assert after["http_request_seconds_count", "/v1/completions"] == 2
    assert after["http_request_seconds_sum", "/v1/completions"] > 0
