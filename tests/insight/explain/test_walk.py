"""The walk has the same predictions, losses and weights as the model itself."""

from __future__ import annotations

import json
import pickle

import numpy as np
import pytest
import torch

import foretell
from foretell.errors import UsageError
from foretell.inference.query import next_tokens, score
from foretell.insight.explain.walk import head_matrices, walk
from foretell.insight.trace import Trace
from foretell.lessons.smallest import draw_weights, make_smallest

TEXT = "abcafig!"


def test_the_prediction_after_the_last_layer_is_the_models_own(config, make_model):
    model = make_model(config)
    walked = walk(model, TEXT)
    expected = next_tokens(model, TEXT, top=5)[0].tokens
    assert [(answer.id, answer.text) for answer in walked.answers] == [(answer.id, answer.text) for answer in expected]
    assert [answer.probability for answer in walked.answers] == pytest.approx(
        [answer.probability for answer in expected], rel=1e-4
    )
    last = walked.layers[-1].answers
    assert [answer.probability for answer in last] == pytest.approx(
        [answer.probability for answer in walked.answers[:2]], rel=1e-4
    )


def test_the_losses_are_those_of_score(config, make_model):
    model = make_model(config)
    walked, expected = walk(model, TEXT), score(model, TEXT)
    logprobs = [token.logprob for token in expected.tokens if token.logprob is not None]
    assert [-loss for loss in walked.losses] == pytest.approx(logprobs, rel=1e-4)
    assert walked.loss == pytest.approx(-expected.logprob / 7)


def test_sizes_are_the_norms_of_the_last_vectors(config, make_model):
    model = make_model(config)
    with torch.no_grad(), Trace(model, "**") as trace:
        model.decoder(torch.tensor([model.tokenizer.encode(TEXT)]))

    def length(name):
        return pytest.approx(float(trace[name][0, -1].norm()), rel=1e-5)

    walked = walk(model, TEXT)
    for layer, before in zip(walked.layers, ("embed", "trunk.blocks.0"), strict=True):
        block = f"trunk.blocks.{layer.layer}"
        assert layer.stream == length(before)
        update = "_update_norm" if config.norm_placement in ("update", "sandwich") else ""
        assert layer.attention == length(f"{block}.attention{update}")
        assert layer.feedforward is None or layer.feedforward == length(f"{block}.feedforward{update}")
    assert walked.stream == length("trunk.blocks.1")


def matrix_of(part):
    """The matrix at the end of a formula."""
    return part.expression.items[-1].values


def test_the_matrices_of_a_head_are_those_of_the_trace(config, make_model):
    recording = walk(make_model(config), TEXT).recording
    core, shared = "trunk.blocks.1.attention.core", config.num_heads // config.num_kv_heads
    for head in range(config.num_heads):
        shown = [matrix_of(part) for part in head_matrices(recording, core, head)]
        heads = {"query": head, "key": head // shared, "value": head // shared, "masked": head, "weights": head}
        expected = [recording.array(f"{core}.{name}")[index] for name, index in heads.items()]
        for ours, theirs in zip(shown, [*expected, recording.array(core)[head]], strict=True):
            np.testing.assert_array_equal(ours, theirs)


def test_each_heads_strongest_key_has_the_largest_weight(make_model):
    model = make_model("llama")
    name = "trunk.blocks.1.attention.core.weights"
    with torch.no_grad(), Trace(model, name) as trace:
        model.decoder(torch.tensor([model.tokenizer.encode(TEXT)]))
    weights = trace[name][0, :, -1]  # (H, S)
    sights = walk(model, TEXT).layers[1].sights
    assert [sight.key for sight in sights] == weights.argmax(-1).tolist()
    assert [sight.weight for sight in sights] == pytest.approx(weights.max(-1).values.tolist())


def test_a_walk_fits_80_columns_and_json(config, make_model):
    walked = walk(make_model(config), TEXT)
    assert max(map(len, str(walked).splitlines())) <= 80
    values = json.loads(json.dumps(walked.to_json(), allow_nan=False))
    assert [token["text"] for token in values["tokens"]] == list(TEXT)
    assert len(values["layers"]) == 2


def test_a_walk_can_be_pickled(config, make_model):
    walked = walk(make_model(config), TEXT)
    assert str(pickle.loads(pickle.dumps(walked))) == str(walked)


def test_twelve_layers_of_twelve_heads_take_few_lines(make_model):
    lines = str(walk(make_model("gpt2", num_layers=12, num_heads=12, width=48), TEXT)).splitlines()
    assert len(lines) < 30 + 12 * 6
    assert max(map(len, lines)) <= 80


def test_only_small_models_are_shown_completely(make_model):
    small = walk(make_model("smallest", vocab_size=12), TEXT)
    weights = small.recording.array("trunk.blocks.0.attention.core.weights")[0]
    assert f"{weights[3, 1]:.3f}" in str(small)
    assert "trunk.blocks.0.attention.core" in small.to_json()["values"]
    large = walk(make_model("gpt2", width=16), TEXT)
    assert "values" not in large.to_json()
    assert "softmax" not in str(large)


def test_later_streams_have_primes_and_a_post_norm_reads_the_sum(make_model):
    assert "X″ = 'a'" in "".join(str(walk(make_model("gpt2"), TEXT)).split("\n"))
    after = str(walk(make_model("gpt1"), TEXT))
    assert "norm(X′) = " in after
    assert "norm(X″) = " in after
    assert "^(" not in after


def test_a_text_of_one_token_has_no_loss(make_model):
    walked = walk(make_model("gpt2"), "a")
    assert walked.loss is None
    assert walked.to_json()["loss"] is None


def test_explain_without_an_address_is_the_walk(make_model):
    model = make_model("gpt2")
    assert str(foretell.explain(model, TEXT)) == str(walk(model, TEXT))
    assert foretell.explain(model, TEXT, "loss[0]").to_json()["name"] == "loss"
    with pytest.raises(UsageError, match="empty"):
        foretell.explain(model, "")


def test_the_smallest_decoder_is_shown_completely_with_the_published_numbers():
    text = str(walk(make_smallest(draw_weights()), "financial data analytics is awesome"))
    for line in (
        "1.5049   0.1550  -0.8613",
        "0.1608  0.1539  0.2520  0.2364  0.1969",
        "-0.3068   0.1780  -0.5976",
        "0.1413  0.1611  0.1175  0.1957  0.1069  0.2775",
    ):
        assert line in text
