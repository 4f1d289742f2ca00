"""The decoder that translates: each fact has a mistake that it would notice."""

from __future__ import annotations

import copy

import numpy as np

from foretell.lessons.encoder_decoder import values
from foretell.lessons.encoder_decoder.lesson import EncoderDecoder
from foretell.lessons.encoder_decoder.printed import SCALED
from foretell.textbook.attention import bidirectional_mask


def test_a_score_that_is_no_whole_number_over_eight_is_noticed(failures):
    scaled = copy.deepcopy(SCALED)
    scaled[1][1] = 12.31
    failed = failures(EncoderDecoder(values.compute(scaled)).checks())
    assert failed == ["scaled scores are whole numbers over √64"]


def test_an_open_mask_is_noticed(monkeypatch, failures):
    monkeypatch.setattr(values, "unidirectional_mask", lambda length: bidirectional_mask(length, length))
    failed = failures(EncoderDecoder(values.compute()).checks())
    assert failed == [
        "nothing is taken from later words",
        "masked attention: words that move with the last one",
    ]


def test_a_mask_over_the_source_is_noticed(monkeypatch, failures):
    def hide_last(l_z, l_x):
        mask = np.ones((l_z, l_x), dtype=bool)
        mask[-1] = False
        return mask

    monkeypatch.setattr(values, "bidirectional_mask", hide_last)
    assert failures(EncoderDecoder(values.compute()).checks()) == ["no mask: every weight is above 0"]


def test_rows_are_hidden_one_after_the_other():
    hidden = values.hide_rows(np.zeros((3, 3)), 2)
    assert np.isinf(hidden).astype(int).tolist() == [[0, 1, 1], [0, 0, 1], [0, 0, 0]]
