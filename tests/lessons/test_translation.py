"""The lesson on the decoder that translates: each check fails for its mistake."""

from __future__ import annotations

import copy

import numpy as np

from foretell.lessons import translation
from foretell.lessons.translation import LiveTranslation, TranslationLesson
from foretell.textbook.attention import bidirectional_mask


def test_a_score_that_is_not_a_multiple_of_an_eighth_fails(failures):
    scaled = copy.deepcopy(translation.SCALED_SCORES)
    scaled[1][1] = 12.31
    failed = failures(TranslationLesson(scaled_scores=scaled).checks())
    assert failed == ["scaled scores are whole numbers over √64"]


def test_a_missing_mask_fails(monkeypatch, failures):
    monkeypatch.setattr(translation, "unidirectional_mask", lambda length: bidirectional_mask(length, length))
    failed = failures(TranslationLesson().checks())
    assert failed == ["later words have weight 0", "masked attention: words that change with the last one"]


def test_a_mask_over_the_source_fails(monkeypatch, failures):
    def hide_last(l_z, l_x):
        mask = np.ones((l_z, l_x), dtype=bool)
        mask[-1] = False
        return mask

    monkeypatch.setattr(translation, "bidirectional_mask", hide_last)
    assert failures(TranslationLesson().checks()) == [
        "no mask: every weight is above 0",
        "softmax of M W_Q (R W_K)ᵀ / √2",
    ]


def test_a_layer_without_its_norms_fails(monkeypatch, failures):
    def without_norms(X, Z, layer):
        return [X] * 6

    monkeypatch.setattr(translation, "decoder_layer_states", without_norms)
    failed = failures(TranslationLesson().checks())
    assert failed == ["the whole layer: the textbook's and torch's", "after its last norm each word has mean 0"]


def test_printed_scores_are_shown_with_their_own_digits(lessons):
    assert "12.37 " in str(lessons["translation"])
    assert "12.370" not in str(lessons["translation"])


def test_an_encoder_with_a_mask_fails(monkeypatch, failures):
    def masked(X, layer, activation):
        return [translation.decoder_layer_states(X, X, translation.draw_inputs().layer)[-1]] * 4

    monkeypatch.setattr(translation, "encoder_layer_states", masked)
    assert failures(TranslationLesson().checks()) == ["the encoder's layer: the textbook's and torch's"]


def test_a_trained_model_shows_its_steps_from_the_start_token_on(lessons, altered):
    live = LiveTranslation("en-fr", "I am good", [("<sos>", "Je"), ("<sos> Je", "vais bien")], "Je vais bien")
    text = str(altered(lessons["translation"], live=live))
    assert "en-fr reads 'I am good'" in text
    assert "<sos> Je      vais bien" in text
    assert "8. A trained system" in text and "8. A trained system" not in str(lessons["translation"])


def test_mask_rows_masks_the_first_rows_only():
    masked = translation.mask_rows(np.zeros((3, 3)), 2)
    assert np.isinf(masked).astype(int).tolist() == [[0, 1, 1], [0, 0, 1], [0, 0, 0]]
