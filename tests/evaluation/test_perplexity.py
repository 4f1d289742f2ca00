"""Loss, perplexity and bits per byte of texts: each token is predicted once, from the text before it."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from foretell.errors import DataError, UsageError
from foretell.evaluation.perplexity import TextEvaluation, Window, evaluate_texts, iter_windows, window_batches
from foretell.inference.query import evaluate
from foretell.language_model import LanguageModel
from foretell.training.objective import Objective

TEXT = "The größte cat sat on the mat, and looked at the other 🐈 cats there."


def losses_by_hand(model: LanguageModel, ids: list[int], context: int, stride: int, first: int) -> list[float]:
    """The loss of each token, from a pass of its own over the tokens that it is predicted from."""
    losses = []
    for index in range(first, len(ids)):
        # The first window reaches token `context`; each further window reaches one stride more
        start = max(0, math.ceil((index - context) / stride)) * stride
        with torch.no_grad():
            logits = model.decoder(torch.tensor([ids[start:index]]))[0, -1].double()
        losses.append(-float(logits.log_softmax(-1)[ids[index]]))
    return losses


@pytest.mark.parametrize("stride", [1, 3, 8, 16, None])
def test_the_loss_is_the_mean_over_all_tokens_given_their_windows(model, stride):
    found = evaluate_texts(model, Objective(model.decoder), [TEXT], stride)
    ids = model.tokenizer.encode(TEXT)
    losses = losses_by_hand(model, ids, 16, stride or 8, first=1)
    assert found.loss == pytest.approx(sum(losses) / len(losses), rel=1e-5)
    assert (found.tokens, found.text_bytes, found.stride) == (len(ids) - 1, len(TEXT.encode()) - 1, stride or 8)
    assert found.perplexity == pytest.approx(math.exp(found.loss))
    assert found.bits_per_byte == pytest.approx(sum(losses) / math.log(2) / found.text_bytes, rel=1e-5)


def test_with_a_start_token_every_token_and_every_byte_counts(starting):
    found = evaluate_texts(starting, Objective(starting.decoder), [TEXT], 8)
    losses = losses_by_hand(starting, starting.tokenizer.encode_input(TEXT), 16, 8, first=1)
    assert found.loss == pytest.approx(sum(losses) / len(losses), rel=1e-5)
    assert (found.tokens, found.text_bytes) == (len(TEXT.encode()), len(TEXT.encode()))


def test_words_have_no_bits_per_byte(words):
    found = evaluate_texts(words, Objective(words.decoder), ["the cat sat on the unheard-of mat"])
    assert found.bits_per_byte is found.to_json()["bits_per_byte"] is None
    assert "bits per byte  -" in str(found)


def test_texts_do_not_see_each_other(model):
    objective = Objective(model.decoder)
    apart = [evaluate_texts(model, objective, [text], 5) for text in (TEXT, "short", "x" * 40)]
    together = evaluate_texts(model, objective, [TEXT, "short", "x" * 40], 5)
    assert together.loss == pytest.approx(sum(alone.loss * alone.tokens for alone in apart) / together.tokens, rel=1e-5)
    assert together.tokens == sum(alone.tokens for alone in apart)


@pytest.mark.parametrize("name", ["model", "starting"])
def test_rows_are_predicted_as_training_reads_them(name, request, tmp_path):
    model, path = request.getfixturevalue(name), tmp_path / "rows.jsonl"
    path.write_text('{"q": "1 + 2 =", "a": " 3"}\n{"q": "x", "a": "y"}\n')
    tokenizer = model.tokenizer
    rows = [[*tokenizer.start_ids, *tokenizer.encode(text), *tokenizer.end_ids[:1]] for text in ("1 + 2 = 3", "xy")]
    losses = [
        loss
        for row, prompt in zip(rows, (7, 1), strict=True)
        for loss in losses_by_hand(model, row, 16, 8, first=len(tokenizer.start_ids) + prompt)
    ]
    found = evaluate(model, path, prompt_field="q", answer_field="a")
    whole = evaluate(model, path, rows=True, text_field="q")
    assert isinstance(found, TextEvaluation) and isinstance(whole, TextEvaluation)
    assert (found.loss, found.tokens) == (pytest.approx(sum(losses) / len(losses), rel=1e-5), len(losses))
    assert found.text_bytes == 3  # of the answers
    assert whole.tokens == 8 + len(tokenizer.start_ids) * 2 + 2 * len(tokenizer.end_ids[:1]) - 2


@given(length=st.integers(0, 60), context=st.integers(1, 20), stride=st.integers(1, 20), first=st.integers(1, 3))
def test_each_token_is_a_target_once_with_the_promised_context(length, context, stride, first):
    stride = min(stride, context)
    seen = []
    for window in iter_windows(np.arange(length), context, stride, first):
        assert len(window.ids) <= context + 1
        for index in range(window.first, len(window.ids)):
            token = int(window.ids[index])
            assert index >= min(token, context - stride)
            seen.append(token)
    assert seen == list(range(first, length))


def test_batches_of_windows_weight_only_targets_that_count():
    windows = list(iter_windows(np.arange(1, 30), 8, 4))
    (batch,) = window_batches(windows)
    assert batch.count == 28
    assert sorted(batch.targets[batch.loss_weights > 0].tolist()) == list(range(2, 30))


def test_short_rows_are_read_together_whatever_the_context():
    windows = [Window(np.arange(length), 1) for length in (9, 3, 5) * 100]
    batches = list(window_batches(windows))
    assert len(batches) == 1
    assert [batch.count for batch in batches] == [sum(len(window.ids) - 1 for window in windows)]


def test_progress_reaches_the_number_of_tokens(model):
    seen = []
    evaluate_texts(model, Objective(model.decoder), [TEXT * 300], 16, lambda done, total: seen.append((done, total)))
    assert len(seen) > 1
    assert seen[-1][0] == seen[-1][1] == len(TEXT.encode()) * 300 - 1


@pytest.mark.parametrize("stride", [0, -1, 17])
def test_a_stride_that_leaves_tokens_out_is_refused(model, stride):
    with pytest.raises(UsageError, match="stride must be 1 to 16"):
        evaluate_texts(model, Objective(model.decoder), [TEXT], stride)


def test_a_text_of_one_token_has_nothing_to_predict_without_a_start_token(model, starting):
    with pytest.raises(DataError, match="no text has a token to predict"):
        evaluate_texts(model, Objective(model.decoder), ["x"])
    assert evaluate_texts(starting, Objective(starting.decoder), ["x"]).tokens == 1


@pytest.mark.parametrize("text", ["é", "日 x", "🐈"])
def test_a_first_token_that_is_a_part_of_a_character_is_one_byte(model, text):
    assert evaluate_texts(model, Objective(model.decoder), [text]).text_bytes == len(text.encode()) - 1


@pytest.mark.parametrize("text", [" the cat", "<|endoftext|> the cat"])
def test_a_start_token_in_a_text_is_read_once_and_is_no_byte_of_it(starting, text):
    reading = starting.reading_special()
    start = reading.tokenizer.piece(reading.tokenizer.start_id)
    found = evaluate_texts(reading, Objective(reading.decoder), [text.replace("<|endoftext|>", start)])
    assert found == evaluate_texts(starting, Objective(starting.decoder), [" the cat"])
