"""What a page shows is what a trace records."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from foretell.errors import ContextLengthError, UsageError
from foretell.inference.query import next_tokens
from foretell.insight.page.collect import collect
from foretell.insight.trace import Trace

TEXT = "abcdefghij"


def traced(model, name):
    ids = torch.tensor([model.tokenizer.encode(TEXT)])
    with torch.inference_mode(), Trace(model, name) as trace:
        model.decoder(ids)
    return trace[name][0].float()


def test_weights_are_those_of_a_trace_where_a_key_may_be_seen(config, make_model):
    model = make_model(config)
    seen = collect(model, TEXT)
    for layer, window in enumerate(config.windows):
        weights = traced(model, f"trunk.blocks.{layer}.attention.core.weights")
        expected = [
            [round(float(weights[head, query, key]), 4) for query in range(10) for key in visible(query, window)]
            for head in range(config.num_heads)
        ]
        np.testing.assert_allclose(seen.attention[layer] / 10_000, expected, rtol=0, atol=1e-9)


def visible(query, window):
    return range(max(0, query - (window or 99) + 1), query + 1)


def test_the_stream_is_the_model_s_and_ends_with_what_the_head_reads(config, make_model):
    model = make_model(config)
    seen = collect(model, TEXT)
    for place, stream in zip(seen.places, seen.streams, strict=True):
        assert (stream == traced(model, place.name).numpy()).all()
    assert (seen.streams[-1] == traced(model, "trunk").numpy()).all()


def test_the_last_distribution_is_the_one_that_next_tells(config, make_model):
    model = make_model(config)
    seen = collect(model, TEXT)
    probabilities = torch.from_numpy(seen.logits).double().softmax(-1)
    for token in next_tokens(model, TEXT, top=5)[0].tokens:
        assert abs(float(probabilities[token.id]) - token.probability) < 1e-9


def test_the_lens_after_the_last_layer_is_the_model_itself(config, make_model):
    model = make_model(config)
    lens = collect(model, TEXT).lens
    ids = torch.tensor(model.tokenizer.encode(TEXT))
    with torch.inference_mode():
        probabilities = model.decoder(ids[None])[0].softmax(-1)
    torch.testing.assert_close(torch.from_numpy(lens.probabilities[-1]), probabilities.topk(5).values)
    following = probabilities[:-1].gather(1, ids[1:, None])[:, 0]
    torch.testing.assert_close(torch.from_numpy(lens.following[-1, :-1]), following)
    ranks = (probabilities[:-1] > following[:, None]).sum(-1)
    assert lens.ranks[-1].tolist() == [*ranks.tolist(), -1]


def test_the_lens_before_the_last_layer_says_something_else(make_model):
    lens = collect(make_model("gpt2"), TEXT).lens
    assert not np.allclose(lens.probabilities[0], lens.probabilities[-1])


def test_word_and_position_add_up_to_the_embedding(make_model):
    for name in ("gpt2", "toy that answers"):
        seen = collect(make_model(name), TEXT)
        np.testing.assert_allclose(seen.words + seen.positions, seen.streams[0], rtol=0, atol=1e-6)


def test_queries_and_keys_are_those_of_each_head(config, make_model):
    model = make_model(config)
    seen = collect(model, TEXT)
    for layer in range(config.num_layers):
        for name, found in (("query", seen.queries), ("key", seen.keys)):
            assert (found[layer] == traced(model, f"trunk.blocks.{layer}.attention.core.{name}").numpy()).all()


def test_a_logit_is_the_product_of_what_the_head_reads_and_a_row_and_a_bias(config, make_model):
    bias = {**config.bias.model_dump(), "head": True}
    seen = collect(make_model(config, bias=bias), TEXT)
    assert seen.row_biases.all()
    likeliest = int(seen.lens.ids[-1, -1, 0])
    place = seen.row_ids.index(likeliest)
    product = seen.streams[-1][-1] @ seen.rows[place] + seen.row_biases[place]
    assert product == pytest.approx(seen.logits[likeliest], abs=1e-4)


def test_an_empty_text_and_one_that_is_too_long_are_refused(make_model):
    with pytest.raises(UsageError, match="empty"):
        collect(make_model("gpt2"), "")
    with pytest.raises(ContextLengthError, match="13 tokens"):
        collect(make_model("gpt2"), "a" * 13)
