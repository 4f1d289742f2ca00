"""The numbers of a page are those of a trace."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from foretell.errors import ContextLengthError, UsageError
from foretell.inference.query import next_tokens
from foretell.insight.page.sections import all_sections
from foretell.insight.page.write_page import record_all
from foretell.insight.trace import Trace

TEXT = "abcdefghij"


@pytest.fixture
def model(config, make_model):
    return make_model(config)


@pytest.fixture
def traced(model):
    return record_all(model, TEXT)


def recorded(model, name):
    ids = torch.tensor([model.tokenizer.encode(TEXT)])
    with torch.inference_mode(), Trace(model, name) as trace:
        model.decoder(ids)
    return trace[name][0].float()


def test_visible_weights_are_those_of_a_trace(config, model, traced):
    for layer, window in enumerate(config.windows):
        weights = recorded(model, f"trunk.blocks.{layer}.attention.core.weights")
        expected = [
            [round(float(weights[head, query, key]), 4) for query in range(10) for key in visible(query, window)]
            for head in range(config.num_heads)
        ]
        np.testing.assert_allclose(traced.attention(layer) / 10_000, expected, rtol=0, atol=1e-9)


def content(traced, name):
    """What a section packs."""
    family, index = all_sections(traced.page)[name]
    return family.content(traced, index)


def visible(query, window):
    return range(max(0, query - (window or 99) + 1), query + 1)


def test_the_stream_is_that_of_a_trace_and_ends_with_the_heads_input(model, traced):
    for index, point in enumerate(traced.page.points):
        assert (traced.stream(index) == recorded(model, point.name).numpy()).all()
    assert (traced.stream(-1) == recorded(model, "trunk").numpy()).all()


def test_the_last_distribution_is_that_of_next_tokens(model, traced):
    probabilities = torch.from_numpy(traced.logits).double().softmax(-1)
    for token in next_tokens(model, TEXT, top=5)[0].tokens:
        assert abs(float(probabilities[token.id]) - token.probability) < 1e-9


def test_the_lens_after_the_last_layer_is_the_models_prediction(model, traced):
    lens = traced.lens(len(traced.page.lens_points) - 1)
    ids = torch.tensor(model.tokenizer.encode(TEXT))
    with torch.inference_mode():
        probabilities = model.decoder(ids[None])[0].softmax(-1)
    torch.testing.assert_close(torch.from_numpy(lens.probabilities), probabilities.topk(5).values)
    following = probabilities[:-1].gather(1, ids[1:, None])[:, 0]
    torch.testing.assert_close(torch.from_numpy(lens.following[:-1]), following)
    ranks = (probabilities[:-1] > following[:, None]).sum(-1)
    assert lens.ranks.tolist() == [*ranks.tolist(), -1]


def test_the_lens_before_the_last_layer_differs(make_model):
    traced = record_all(make_model("gpt2"), TEXT)
    first, last = traced.lens(0), traced.lens(len(traced.page.lens_points) - 1)
    assert not np.allclose(first.probabilities, last.probabilities)


def test_word_and_position_add_up_to_the_embedding(make_model):
    for name in ("gpt2", "toy that answers"):
        traced = record_all(make_model(name), TEXT)
        np.testing.assert_allclose(
            content(traced, "embed.words") + content(traced, "embed.positions"), traced.stream(0), rtol=0, atol=1e-6
        )


def test_queries_and_keys_are_those_of_each_head(config, model, traced):
    for layer in range(config.num_layers):
        for name, section in (("query", "queries"), ("key", "keys")):
            assert (
                content(traced, f"{section}.{layer}")
                == recorded(model, f"trunk.blocks.{layer}.attention.core.{name}").numpy()
            ).all()


def test_a_logit_is_the_product_of_the_heads_input_and_a_row_plus_bias(config, make_model):
    bias = {**config.bias.model_dump(), "head": True}
    traced = record_all(make_model(config, bias=bias), TEXT)
    assert traced.head_biases().all()
    top_id = int(traced.lens(len(traced.page.lens_points) - 1).ids[-1, 0])
    row = traced.row_ids.index(top_id)
    product = traced.stream(-1)[-1] @ traced.head_rows()[row] + traced.head_biases()[row]
    assert product == pytest.approx(traced.logits[top_id], abs=1e-4)


def test_an_empty_or_too_long_text_is_refused(make_model):
    with pytest.raises(UsageError, match="empty"):
        record_all(make_model("gpt2"), "")
    with pytest.raises(ContextLengthError, match="13 tokens"):
        record_all(make_model("gpt2"), "a" * 13)
