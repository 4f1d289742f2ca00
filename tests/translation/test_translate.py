"""Translating: the same in a batch and alone, greedy as one beam, with the scores that a whole pass gives."""

from __future__ import annotations

import pytest
import torch

from foretell.config.sampling import SamplingConfig
from foretell.errors import ContextLengthError, UsageError
from foretell.generation.batch_generation import result_of
from foretell.generation.beam import CachedSteps, beam_search, length_penalty
from foretell.translation import translate as module
from foretell.translation.batches import make_source
from foretell.translation.translate import Decoding, search, translate

SENTENCES = ["the cat sat", "a dog", "", "dog dog the cat ran far", "far"]
GREEDY = Decoding(sampling=SamplingConfig(temperature=0))
DECODINGS = {
    "greedy": Decoding(beam_size=1),
    "beam": Decoding(beam_size=3),
    "sampled": Decoding(sampling=SamplingConfig(temperature=1.0, top_p=1.0, seed=3)),
}


@pytest.mark.parametrize("decoding", DECODINGS.values(), ids=DECODINGS)
def test_sentences_together_are_each_alone(translator, decoding, monkeypatch):
    together = translate(translator, SENTENCES, decoding)
    monkeypatch.setattr(module, "ROWS_AT_ONCE", 1)
    alone = translate(translator, SENTENCES, decoding)
    assert [each.ids for each in together] == [each.ids for each in alone]
    assert [each.score for each in together] == pytest.approx([each.score for each in alone])


@pytest.mark.parametrize("decoding", DECODINGS.values(), ids=DECODINGS)
def test_the_score_is_the_log_probability_over_the_length_penalty(translator, decoding):
    for each in translate(translator, ["the cat sat", "a dog"], decoding):
        ended = [translator.vocabulary.target_end_id] * (each.finish_reason == "end")
        ids = torch.tensor([[translator.vocabulary.start_id, *each.ids, *ended]])
        source = make_source([translator.vocabulary.encode_source(each.source)])
        logprobs = translator.model.given(source)(ids[:, :-1]).log_softmax(-1)
        total = float(logprobs.gather(-1, ids[:, 1:, None]).sum())
        assert each.score == pytest.approx(total / length_penalty(ids.shape[1] - 1, decoding.alpha_for(translator)))


def test_one_beam_is_greedy_decoding(translator):
    sources = [translator.vocabulary.encode_source(sentence) for sentence in ("the cat sat", "a dog", "far")]
    steps = CachedSteps(translator.model.given(make_source(sources)), [[translator.vocabulary.start_id]] * 3, 20)
    limits = [module.LONGER * len(source) + module.MORE for source in sources]
    limits, end_id = [min(limit, 20) for limit in limits], translator.vocabulary.target_end_id
    found = result_of(beam_search(steps, limits, end_id, 1))
    greedy = translate(translator, ["the cat sat", "a dog", "far"], GREEDY)
    assert [best.ids for best, *_ in found] == [each.ids[:20] for each in greedy]


def test_a_beam_finds_at_least_the_greedy_score(translator):
    source = translator.vocabulary.encode_source("the cat")
    wide, greedy = (result_of(search(translator, [source], size, alpha=1.0))[0][0] for size in (30, 1))
    assert wide.score >= greedy.score - 1e-9


def test_samples_depend_on_the_seed(translator):
    def sampled(seed: int) -> list[int]:
        return translate(translator, ["the cat"], Decoding(sampling=SamplingConfig(temperature=1.0, seed=seed)))[0].ids

    assert sampled(1) == sampled(1)
    assert len({tuple(sampled(seed)) for seed in range(1, 6)}) > 1


def test_blank_sentences_stay_blank_and_an_endless_translation_is_cut(translator):
    results = translate(translator, ["", "the", "  "], Decoding(beam_size=1))
    assert [each.translation for each in results[::2]] == ["", ""]
    assert len(results[1].ids) <= module.LONGER * 2 + module.MORE
    assert results[1].to_json() == {"source": "the", "translation": results[1].translation, "score": results[1].score}


def test_a_string_is_one_sentence(translator):
    assert translate(translator, "the cat sat", GREEDY) == translate(translator, ["the cat sat"], GREEDY)


def test_a_column_of_a_frame_is_translated_in_order_and_a_frame_is_refused(translator):
    pandas = pytest.importorskip("pandas")
    column = pandas.Series(["the cat sat", "the dog"], index=[1, 0])
    assert [each.source for each in translate(translator, column)] == ["the cat sat", "the dog"]
    with pytest.raises(UsageError, match="not DataFrame; give a column"):
        translate(translator, pandas.DataFrame({"text": column}))
    with pytest.raises(UsageError, match=r"texts\[1\] must be a string, not float"):
        translate(translator, pandas.Series(["the cat sat", None]).fillna(float("nan")))


def test_a_sentence_beyond_the_context_is_refused_by_its_line(translator):
    with pytest.raises(ContextLengthError, match="line 2 has 31 tokens, but the model's context is 24.*'the the"):
        translate(translator, ["the", "the " * 30])
