"""The formal algorithms: each fact has a mistake that it would notice."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from foretell.lessons.formal_algorithms import attention
from foretell.lessons.formal_algorithms.attention import attention_facts
from foretell.lessons.formal_algorithms.lesson import FormalAlgorithms, check_models
from foretell.model import presets
from foretell.textbook import attention as textbook
from foretell.textbook.attention import bidirectional_mask


@pytest.fixture(scope="module")
def found(lessons):
    return lessons["algorithms"]


def with_decoder(found, **changes):
    return FormalAlgorithms(found.attention, replace(found.decoder, **changes)).checks()


def test_an_open_mask_in_the_textbook_is_noticed(monkeypatch, found, failures):
    monkeypatch.setattr(attention, "unidirectional_mask", lambda length: bidirectional_mask(length, length))
    failed = failures(FormalAlgorithms(attention_facts(), found.decoder).checks())
    assert {"the mask, textbook", "masked softmax: 0 above the diagonal"} <= set(failed)
    assert "masked: positions that move with the last word" in failed


def test_an_unscaled_single_query_is_noticed(monkeypatch, found, failures):
    monkeypatch.setattr(textbook, "math", SimpleNamespace(sqrt=lambda number: 1.0))
    assert failures(FormalAlgorithms(attention_facts(), found.decoder).checks()) == ["single-query attention scales"]


def test_a_model_that_overwrites_its_stream_is_noticed(found, failures):
    assert failures(with_decoder(found, model=found.decoder.overwriting)) == ["the model and GPT-2's residual"]


def test_two_forms_that_are_one_are_noticed(found, failures):
    same_form = with_decoder(found, overwriting=found.decoder.residual)
    assert failures(same_form) == ["the listing and GPT-2's residual differ by"]


def test_a_loss_with_another_logarithm_is_noticed(found, failures):
    failed = failures(with_decoder(found, loss_of_cat=found.decoder.loss_of_cat / np.log(2)))
    assert failed == ["loss at t = 1", "and the cross entropy with a one-hot target"]


def test_a_loss_that_does_not_fall_is_noticed(found, failures):
    assert len(failures(with_decoder(found, losses=[2.0, 1.9]))) == 1


def test_a_temperature_of_generation_that_multiplies_is_noticed(found, failures):
    assert len(failures(with_decoder(found, sampler=found.decoder.sampler[::-1]))) == 2


def test_a_preset_of_another_shape_is_noticed(monkeypatch, failures):
    monkeypatch.setitem(presets.PRESETS, "gpt2-xl", {**presets.PRESETS["gpt2-xl"], "num_layers": 40})
    assert failures(check_models()) == ["gpt2-xl: num_layers", "gpt2-xl: parameters"]
