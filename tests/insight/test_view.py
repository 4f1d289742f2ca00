"""Views of recorded values: numbers, tokens, and what is left out."""

from __future__ import annotations

import pytest
import torch

from foretell.errors import UsageError
from foretell.insight.trace import Trace
from foretell.language_model import LanguageModel
from foretell.text import train_tokenizer

TEXT = "abcafig!"
WEIGHTS = "trunk.blocks.0.attention.core.weights"


@pytest.fixture
def traced(make_decoder):
    tokenizer = train_tokenizer("characters", ["abcdefghij!"])
    model = LanguageModel(make_decoder("llama", vocab_size=tokenizer.vocab_size), tokenizer)
    with torch.no_grad(), Trace(model, "**") as trace:
        model.decoder(torch.tensor([tokenizer.encode(TEXT)]))
    return trace


def test_attention_weights_have_numbers_shades_and_token_labels(traced):
    view = traced.view(f"{WEIGHTS}[0]")
    html = view._repr_html_()
    assert f"{traced[WEIGHTS][0, 0, 3, 1]:.4f}" in str(view)
    assert "background:" in html
    assert "&#x27;f&#x27;" in html
    assert "<script" not in html


def test_a_view_can_show_any_row_of_a_batch(make_decoder):
    decoder = make_decoder("gpt2")
    with torch.no_grad(), Trace(decoder, "trunk.norm.**") as trace:
        decoder(torch.tensor([[1, 2, 3], [4, 5, 6]]))
    for name in ("trunk.norm", "trunk.norm.variance"):
        expected = trace[name][1].squeeze(-1).double().numpy()
        assert (trace.view(name, row=1).values == expected).all()


@pytest.mark.parametrize(
    ("address", "shape", "dimensions"),
    [
        ("embed", (8, 8), ("position", "element")),
        ("embed[2]", (8,), ("element",)),
        (f"{WEIGHTS}[1,2]", (8,), ("key",)),
        (f"{WEIGHTS}[1,2,0]", (), ()),
        ("trunk.norm.mean_square", (8,), ("position",)),
        ("trunk.rotation.sine", (8, 2), ("position", "element")),
    ],
)
def test_a_view_names_its_dimensions(traced, address, shape, dimensions):
    view = traced.view(address)
    assert (view.values.shape, view.dimensions) == (shape, dimensions)
    assert str(view)
    assert view._repr_html_()


def test_of_many_heads_the_first_are_shown_and_the_rest_counted(make_decoder):
    decoder = make_decoder("gpt2", num_heads=8, width=16)
    with torch.no_grad(), Trace(decoder, WEIGHTS) as trace:
        decoder(torch.zeros(1, 3, dtype=torch.long))
    text = str(trace.view(WEIGHTS))
    assert "head 3" in text
    assert "head 4" not in text
    assert "4 more" in text
    assert trace.view(WEIGHTS).tokens == ()  # a decoder without a tokenizer has no token texts


def test_a_large_matrix_says_that_numbers_are_left_out(make_decoder):
    decoder = make_decoder("gpt2", width=64)
    with torch.no_grad(), Trace(decoder, "embed") as trace:
        decoder(torch.zeros(1, 3, dtype=torch.long))
    assert "3 x 64" in str(trace.view("embed"))
    assert "left out" in str(trace.view("embed"))


@pytest.mark.parametrize(
    ("address", "words"),
    [(f"{WEIGHTS}[4]", "head 0 to 3"), (f"{WEIGHTS}[0,0,0,0]", "too many"), ("haed", "head"), ("", "not an address")],
)
def test_an_invalid_address_is_refused(traced, address, words):
    with pytest.raises(UsageError, match=words):
        traced.view(address)


def test_an_unknown_row_is_refused(traced):
    with pytest.raises(UsageError, match="row 1"):
        traced.view("embed", row=1)
