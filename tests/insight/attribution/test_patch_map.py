"""The map of patches: each cell is the pass with the stream of the second text at one point and position."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from foretell.errors import UsageError
from foretell.insight.attribution import patch_map as module
from foretell.insight.attribution.patch_map import PatchMap, patch_map
from foretell.insight.trace import Trace
from foretell.language_model import LanguageModel
from tests.insight.attribution.conftest import MakeModel

SECOND = "abdadgbc"  # differs from the text at positions 2 and 5


@torch.no_grad()
def logprob(model: LanguageModel, ids: list[int], token: int, replace: dict) -> float:
    with Trace(model, replace=replace):
        return float(model.decoder(torch.tensor([ids]))[0, -1].double().log_softmax(-1)[token])


def test_a_cell_is_the_change_by_the_pass_with_its_patch(model: LanguageModel, text: str) -> None:
    found = patch_map(model, text, SECOND)
    assert found.positions == [2, 3, 4, 5, 6]
    assert (found.tokens, found.second) == (list(text[2:]), list(SECOND[2:7]))
    ids = model.encode(text)
    with torch.no_grad(), Trace(model, [point.name for point in found.rows]) as second:
        model.decoder(torch.tensor([model.encode(SECOND)]))
    before = logprob(model, ids, found.token.id, {})
    assert found.token.logprob == pytest.approx(before, abs=1e-5)
    for row, point in enumerate(found.rows):
        for column, position in enumerate(found.positions):

            def patch(stream, name=point.name, at=position):
                changed = stream.clone()
                changed[:, at] = second[name][:, at]
                return changed

            after = logprob(model, ids, found.token.id, {point.name: patch})
            assert found.differences[row, column] == pytest.approx(after - before, abs=1e-5)


def test_earlier_tokens_and_layers_are_read_once(make_model: MakeModel, text: str, monkeypatch) -> None:
    model, done, rows = make_model("gpt2", torch.float64), [], []
    for block in model.decoder.trunk.blocks:
        block.register_forward_hook(lambda _, inputs, output: rows.append(len(output)))
    whole = patch_map(model, text, SECOND, "c", progress=lambda *counts: done.append(counts))
    assert done == [(15, 15)] and rows[-2:] == [1 + 5, 1 + 10]
    monkeypatch.setattr(module, "TOKENS_AT_ONCE", 20)
    in_parts = patch_map(model, text, SECOND, "c", progress=lambda *counts: done.append(counts))
    assert len(done) == 5
    np.testing.assert_allclose(in_parts.differences, whole.differences, atol=1e-12)


def test_the_prediction_at_an_earlier_position_is_that_of_the_text_up_to_there(
    make_model: MakeModel, text: str
) -> None:
    model = make_model("llama", torch.float64)
    found, shorter = patch_map(model, text, SECOND, at=4), patch_map(model, text[:5], SECOND)
    assert found.to_json() == shorter.to_json()
    assert found.positions == [2, 3, 4]


def test_a_second_text_without_a_difference_is_refused(make_model: MakeModel, text: str) -> None:
    with pytest.raises(UsageError, match="the second text has the same tokens as the first up to position 6"):
        patch_map(make_model("gpt2"), text, text + "a")


def test_the_printed_map_names_the_layers_where_a_token_matters(make_model: MakeModel, text: str) -> None:
    model = make_model("gpt2", num_layers=30)
    found = patch_map(model, text, SECOND)
    lines = str(found).splitlines()
    assert max(map(len, lines)) <= 80
    assert sum(line.endswith("▕") for line in lines) == 31
    assert lines[-1].split()[0] == "6" and lines[-1].endswith("layer 29")
    assert len(found.to_json()["rows"]) == 31


def test_long_texts_show_the_positions_with_the_largest_changes(make_model: MakeModel) -> None:
    model = make_model("gpt2", context_length=64)
    found = patch_map(model, "ab" * 30, "cb" * 30)
    assert isinstance(found, PatchMap) and len(found.positions) == 60
    shown = [int(line.split()[0]) for line in str(found).splitlines() if line.strip()[:1].isdigit()]
    assert len(shown) == 24 and shown == sorted(shown)
    assert "The 36 positions with the smallest changes are left out." in " ".join(str(found).split())
