"""Answers about text agree with the model's own logits and with each other."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import pytest
import torch

from foretell.config.sampling import SamplingConfig
from foretell.errors import UsageError
from foretell.inference import query
from foretell.inference.completion import Completer, generate
from foretell.inference.query import embed, next_tokens, score
from foretell.insight.page.write_page import write_page
from foretell.insight.trace import Trace
from foretell.language_model import LanguageModel
from tests.toy import make_toy


@pytest.fixture(scope="module")
def model() -> LanguageModel:
    return make_toy()


def logprobs_of(model: LanguageModel, text: str) -> torch.Tensor:
    with torch.no_grad():
        return model.decoder(torch.tensor([model.tokenizer.encode(text)]))[0].double().log_softmax(-1)


def test_the_distribution_follows_the_shown_context(model):
    text = "some words"
    answers = next_tokens(model, text, top=3, at=[0, 4, -1])
    assert [answer.context for answer in answers] == ["s", "some ", "some words"]
    for answer in answers:
        expected = logprobs_of(model, answer.context)[-1]
        for token in answer.tokens:
            assert token.logprob == pytest.approx(float(expected[token.id]), rel=1e-5)
            assert math.log(token.probability) == pytest.approx(token.logprob)


def test_all_probabilities_sum_to_one(model):
    tokens = next_tokens(model, "x", top=1000)[0].tokens
    assert len(tokens) == 257
    assert sum(token.probability for token in tokens) == pytest.approx(1)


def test_a_score_is_the_sum_of_the_targets_log_probabilities(model):
    text = "scored"
    ids = model.tokenizer.encode(text)
    expected = sum(float(logprobs_of(model, text)[index, token]) for index, token in enumerate(ids[1:]))
    result = score(model, text)
    assert result.logprob == pytest.approx(expected, rel=1e-6)
    assert result.perplexity == pytest.approx(math.exp(-expected / (len(ids) - 1)))
    assert "".join(token.text for token in result.tokens) == text


def test_the_mean_vector_is_the_mean_of_the_hidden_vectors(model):
    with torch.no_grad():
        hidden = model.decoder.hidden(torch.tensor([model.tokenizer.encode("some")]))[0]
    assert embed(model, "some", "mean") == pytest.approx(hidden.mean(0).tolist(), abs=1e-6)
    assert embed(model, "some", "last") == pytest.approx(hidden[-1].tolist(), abs=1e-6)


@pytest.mark.parametrize("pool", ["last", "mean"])
def test_texts_that_are_embedded_together_have_their_own_vectors_in_order(model, pool, monkeypatch):
    monkeypatch.setattr(query, "SORTED_AT_ONCE", 4)
    monkeypatch.setattr(query, "TOKENS_AT_ONCE", 12)
    texts = ["some", "s", "a longer one", "me", "so", "scored", "the"]
    together = list(query.embed_each(model, [model.encode_fitting(text) for text in texts], pool))
    for text, vector in zip(texts, together, strict=True):
        assert vector == pytest.approx(embed(model, text, pool), abs=1e-6)


def test_short_texts_are_not_padded_to_the_length_of_a_long_one(model):
    texts, sizes = [[1], [2], [3], [4] * 12, [5]], []
    hook = model.decoder.embed.register_forward_pre_hook(lambda _, given: sizes.append(given[0].shape))
    passes = list(query.embed_in_passes(model, texts, "last", 16))
    hook.remove()
    assert [[index for index, _ in each] for each in passes] == [[0, 1, 2, 4], [3]]
    assert sizes == [(4, 1), (1, 12)]


def test_copies_of_a_prompt_are_continued_in_different_ways(model):
    first, other, second = generate(model, ["a", "some words", "a"], 20, seed=5, temperature=20)
    assert first.text != second.text
    assert first == generate(model, "a", 20, seed=5, temperature=20)
    assert other == generate(model, "some words", 20, seed=5, temperature=20)
    assert generate(model, ["a", "a"], 20, seed=5, temperature=20)[1].text == second.text


def test_streamed_pieces_are_the_text(model):
    completer = Completer(model, ["a"], SamplingConfig(seed=2), [])
    pieces = "".join(piece for _, piece in completer.stream(40))
    completion = completer.completions()[0]
    assert pieces == completion.text == model.tokenizer.decode(completion.token_ids)


def test_an_empty_prompt_is_the_end_token(model):
    completer = Completer(model, [""], SamplingConfig(), [])
    assert completer.sequences[0].prompt == [256]


@pytest.mark.parametrize("ask", [score, next_tokens, embed])
def test_an_empty_text_is_refused(model, ask):
    with pytest.raises(UsageError, match="empty"):
        ask(model, "")


def test_with_receipts_the_completions_are_the_same_and_each_token_has_one(model):
    asked = {"temperature": 0.7, "top_k": 40, "top_p": 0.9, "repetition_penalty": 1.2, "seed": 4}
    plain = generate(model, ["some", "words"], 20, **asked)
    full = generate(model, ["some", "words"], 20, receipts=True, **asked)
    assert all(completion.receipts is None for completion in plain)
    assert [item.to_json() for item in plain] == [replace(item, receipts=None).to_json() for item in full]
    for completion in full:
        assert [receipt.replay() for receipt in completion.receipts or []] == completion.token_ids


def test_the_end_token_has_a_receipt_although_it_is_not_part_of_the_text(model):
    end = model.tokenizer.end_id

    def certain(logits: torch.Tensor) -> torch.Tensor:
        return torch.zeros_like(logits).index_fill(-1, torch.tensor([end]), 50.0)

    with Trace(model, replace={"head": certain}):
        completion = generate(model, "words", 5, receipts=True)
    assert (completion.finish_reason, completion.token_ids) == ("end", [])
    assert [receipt.token for receipt in completion.receipts or []] == [end]
    (completion.receipts or [])[0].check()


def test_tokens_removed_by_a_stop_string_have_receipts(model):
    letters = [chr(code) for code in range(ord("A"), ord("z"))]
    completion = generate(model, "words", 40, stop=letters, receipts=True, seed=2)
    assert completion.finish_reason == "stop"
    assert len(completion.receipts or []) > len(completion.token_ids)


def test_results_show_themselves_as_text_and_as_html(model, tmp_path):
    completions = generate(model, ["some", "words"], 4, receipts=True)
    answers, scored = next_tokens(model, "some", top=2, at=[0, -1]), score(model, "some <b>")
    page = write_page(model, "some", tmp_path / "a page.html")
    receipts = completions[0].receipts
    assert receipts is not None
    for result in (answers, answers[0], scored, page, completions, receipts):
        for shown in (repr(result), str(result), result._repr_html_()):
            assert not re.search(r"\b[A-Z]\w+\([a-z]+=", shown), shown  # a raw dataclass
    assert "after 's'" in repr(answers)
    assert "after 'some'" in repr(answers)
    assert "█" in answers[0]._repr_html_()
    assert "&lt;" in scored._repr_html_()
    assert f"{-scored.logprob / math.log(2):.2f} bits" in repr(scored)
    assert str(completions[0]) in repr(completions)
    assert "draw" in repr(receipts)
    assert 'a%20page.html"' in page._repr_html_()


def test_a_long_score_shows_its_beginning_and_its_end(model):
    text = repr(score(model, "abcdefgh" * 7))
    assert "16 more" in text
    assert len(text.splitlines()) < 50
