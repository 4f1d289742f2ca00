"""The strongest neurons, and the tokens whose logits they raise and lower."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from foretell.insight.attribution.direct_logit_attribution import direct_logit_attribution
from foretell.insight.page.contributions import neuron_writes, positions_of, strongest_neurons
from foretell.insight.page.write_page import record_all

TEXT = "abcdefghij"
FORMS = ["gpt1", "gpt2", "llama", "parallel, shared norm"]


@pytest.fixture(params=FORMS)
def traced(request, make_model):
    return record_all(make_model(request.param), TEXT)


def test_the_listed_neurons_add_the_longest_vectors(traced):
    neurons = traced.page.neurons[1]
    block = traced.page.model.decoder.trunk.blocks[1].feedforward
    hidden = torch.stack([traced.recorded.trace[name][0] for name in neurons.factors]).prod(0)  # (T, F)
    lengths = (hidden[:, :, None] * block.down.weight.T).norm(dim=-1)
    strongest = strongest_neurons(traced, 1)
    torch.testing.assert_close(strongest.values[..., -1], lengths.topk(10).values)
    assert (strongest.ids == lengths.topk(10).indices).all()


def test_the_writes_of_all_neurons_add_up_to_the_contribution_of_the_layer(traced, monkeypatch):
    """With all neurons and tokens listed, and without the bias of the layer."""
    for name in ("NEURONS_SHOWN", "TOKENS_WRITTEN"):
        monkeypatch.setattr(f"foretell.insight.page.contributions.{name}", 999)
    page = traced.page
    bias = page.model.decoder.trunk.blocks[1].feedforward.down.bias
    if bias is not None:
        bias.data.zero_()
        traced = record_all(page.model, TEXT)
    neurons = page.neurons[1]
    writes = neuron_writes(traced, 1, 1)[:, :, : len(traced.page.vocabulary)]  # (P, F, V, 2)
    at = positions_of(traced, 1, 4)
    for token in range(len(traced.page.vocabulary)):
        found = np.where(writes[..., 0] == token, writes[..., 1], 0).sum((1, 2))
        for position, value in zip(range(at.start, at.stop), found, strict=True):
            parts = direct_logit_attribution(page.model, TEXT, token, position).parts
            own = next(part.value for part in parts if part.name == neurons.update)
            assert value == pytest.approx(own, abs=1e-4)


def test_the_page_lists_the_neurons_of_the_chosen_layer(primer, primer_page):
    traced = record_all(*primer)
    strongest, writes = strongest_neurons(traced, 2), neuron_writes(traced, 2, 0)
    primer_page.page.locator("#layer-select").select_option("2")
    primer_page.page.locator("#token-select").select_option("3")
    rows = primer_page.page.locator("#neurons tbody tr")
    assert rows.count() == 10
    cells = [text.replace("−", "-") for text in rows.nth(4).locator("th, td.number").all_inner_texts()]
    assert cells[0] == str(int(strongest.ids[3, 4]))
    assert cells[1:] == [f"{float(value):.4f}" for value in strongest.values[3, 4]]
    written = [text.replace("−", "-") for text in rows.nth(4).locator("small").all_inner_texts()]
    expected = writes[3, 4, :, 1]
    assert written == [
        f"{value:.2f}"
        for value in [*(value for value in expected[:5] if value > 0), *(value for value in expected[5:] if value < 0)]
    ]
