"""The translation task: it learns its pairs, resumes exactly, and its model loads."""

from __future__ import annotations

import importlib.util
import json
import logging
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from foretell.errors import CheckpointError, ConfigError, UsageError
from foretell.model.quantized_linear import quantized_layers
from foretell.planning.estimate import device_memory
from foretell.runs.summary import settings_of, summarize
from foretell.session.budget import FEWEST_STEPS, in_minutes
from foretell.session.declaration import Machine
from foretell.session.protocol import run_training
from foretell.session.reporter import Reporter
from foretell.session.session import Session
from foretell.translation.pairs import Pair
from foretell.translation.task import BEAM_COST, PairData
from foretell.translation.train import PairRequest, PairText, TranslationTraining
from foretell.translation.translate import (
    LENGTH_PENALTIES,
    NEEDS,
    Decoding,
    PairEvaluation,
    choose_bleu_tokenizer,
    choose_length_penalty,
    compare,
    evaluate_pairs,
    translate,
)
from foretell.translation.translator import load_saved, load_translator, save_translator

COLOURS = {"red": "rouge", "blue": "bleu", "green": "vert", "black": "noir"}
THINGS = {"cat": "chat", "dog": "chien", "bird": "oiseau", "car": "train"}
PAIRS = [Pair(f"a {c} {t}.", f"un {THINGS[t]} {COLOURS[c]} !") for c in COLOURS for t in THINGS]
OVERRIDES = {
    "tokenizer": {"kind": "words"},
    "model": {"context_length": 32},
    "pairs": {"batch_tokens": 256},
    "training": {"steps": 60, "evaluate_every": 30, "checkpoint_every": 30, "sample_every": 60, "warmup_steps": 5},
}


def request(out: Path, **changes) -> PairRequest:
    data = PairData(PAIRS[:-2], PAIRS[-2:])
    values: dict[str, Any] = {
        "size": "toy",
        "overrides": OVERRIDES,
        "device": "cpu",
        "dtype": "float32",
        "pairs": data,
        **changes,
    }
    return PairRequest(out=out, **values)


@pytest.fixture(scope="module")
def session(tmp_path_factory) -> Session:
    return run_training(TranslationTraining(request(tmp_path_factory.mktemp("runs") / "colours")), Reporter())


def test_it_learns_to_translate_pairs_that_it_has_not_seen(session):
    translator = load_translator(session.run.directory, "cpu")
    for pair in (PAIRS[0], PAIRS[-2]):
        assert translate(translator, [pair.source])[0].translation == pair.target


@pytest.mark.parametrize("to", ["int8", "int4"])
def test_a_quantised_model_translates(session, to, tmp_path):
    translator, plain = (load_translator(session.run.directory, "cpu", "float32", quantize=q) for q in (to, None))
    layers = quantized_layers(translator.model)
    assert {path.partition(".")[0] for path in layers} == {"trunk", "encoder"}
    with pytest.raises(UsageError, match="quantised already"):
        translator.quantize(to, torch.float32)
    with pytest.raises(UsageError, match="cannot be saved"):
        save_translator(tmp_path, translator)
    texts = [pair.source for pair in PAIRS[:-2]]
    for decoding in (Decoding(beam_size=1), Decoding(beam_size=2)):
        quantised, exact = (translate(each, texts, decoding) for each in (translator, plain))
        same = [one.translation == other.translation for one, other in zip(quantised, exact, strict=True)]
        assert sum(same) > 0.7 * len(texts)  # the model is tiny, and has seen 14 sentences
        assert [each.score for each in quantised] != [each.score for each in exact]


@pytest.mark.parametrize("are_similar", [True, False])
def test_a_new_model_has_similar_vectors_unless_the_settings_say_no(session, tmp_path, are_similar):
    overrides = {**OVERRIDES, "training": {**OVERRIDES["training"], "similar_vectors": are_similar}}
    training = TranslationTraining(request(tmp_path / "run", overrides=overrides))
    data = session.task.text
    config = training.config(session.task.config.model, {}, {"residual": 0.0}, 60)
    weight = training.first_model(config, data, None).embed.token.weight
    red, rouge = (weight[session.task.vocabulary.source.encode(word)[0]] for word in ("red", "rouge"))
    assert (torch.cosine_similarity(red, rouge, dim=0) > 0.9) == are_similar


def test_the_run_has_a_loss_a_bleu_and_samples(session):
    last = session.run.metrics.records()[-1]
    assert last["validation_loss"] < 0.5
    assert last["bleu"] > 50
    assert "a black bird. → un oiseau noir" in next((session.run.directory / "samples").glob("*60.txt")).read_text()


def test_the_time_for_the_closing_beam_search_follows_the_time_of_the_translations(session, monkeypatch):
    seconds = iter([0.0, 9.0, 10.0, 20.0, 20.0, 30.0])  # when an evaluation begins, translates and ends; twice
    monkeypatch.setattr("foretell.translation.task.time", SimpleNamespace(perf_counter=lambda: next(seconds)))
    session.task.evaluate(torch.float32)
    assert session.task.closing_evaluations == pytest.approx(BEAM_COST * 0.1)
    session.task.evaluate(torch.float32)
    assert session.task.closing_evaluations == pytest.approx(BEAM_COST)


def test_runs_can_be_listed_and_compared(session):
    summary = summarize(session.run)
    assert (summary.size, summary.step, summary.state) == ("toy", 60, "done")
    assert settings_of(session.run)["pairs.batch_tokens"] == 256


def test_a_saved_model_is_the_same_when_loaded(session, tmp_path):
    translator = load_translator(session.run.directory, "cpu")
    save_translator(tmp_path, translator)
    config = json.loads((tmp_path / "config.json").read_text())
    assert {name: part["kind"] for name, part in config["parts"].items()} == {
        "encoder_decoder": "encoder_decoder",
        "tokenizer": "tokenizer",
        "decoding": "decoding",
    }
    again = load_saved(tmp_path)
    weights = dict(again.model.named_parameters())
    assert all(torch.equal(weights[path], weight) for path, weight in translator.model.named_parameters())
    assert again.vocabulary.is_shared


def test_the_length_penalty_is_chosen_on_held_out_pairs_and_kept_in_an_intact_checkpoint(session):
    best = session.run.best()
    best.verify()
    translator = load_saved(best.directory)
    qualities = choose_length_penalty(translator, PAIRS[-2:])
    assert set(qualities) == set(LENGTH_PENALTIES)
    assert translator.length_penalty == next(iter(qualities))
    assert Decoding().alpha_for(translator) == translator.length_penalty
    assert Decoding(alpha=0.3).alpha_for(translator) == 0.3
    for alpha, quality in qualities.items():
        again = evaluate_pairs(translator, PAIRS[-2:], Decoding(alpha=alpha)).quality
        assert (again.bleu, again.brevity_penalty) == (quality.bleu, quality.brevity_penalty)


def test_two_vocabularies_are_saved_in_two_files(tmp_path):
    overrides = OVERRIDES | {"training": {"steps": 1}}
    run = run_training(
        TranslationTraining(request(tmp_path / "run", overrides=overrides, separate_vocabularies=True)), Reporter()
    ).run
    translator = load_translator(run.directory, "cpu")
    assert (run.best().directory / "source_tokenizer.json").is_file()
    assert translator.vocabulary.source.fingerprint != translator.vocabulary.target.fingerprint
    assert not translator.vocabulary.is_shared
    (run.best().directory / "source_tokenizer.json").unlink()
    with pytest.raises(CheckpointError, match="source_tokenizer.json"):
        load_translator(run.directory, "cpu")


def test_quality_is_that_of_sacrebleu(session):
    translator = load_translator(session.run.directory, "cpu")
    result = evaluate_pairs(translator, [*PAIRS[:3], Pair(PAIRS[0].source, "un chien vert !")], Decoding())
    assert (result.quality.pairs, result.quality.sentences) == (4, 3)
    assert result.quality.bleu < result.quality.bleu_all_references == pytest.approx(100)
    assert result.loss > 0
    assert "nrefs" in result.quality.signature
    assert "shorter sentences" not in str(result)


TARGETS = {
    "13a": "The dog runs over the hill.",
    "zh": "那只狗跑过了小山，小猫也跟着它跑。Python 是一种语言。",
    "ja-mecab": "犬は丘を越えて走る。東京都渋谷区",
    "ko-mecab": "개가 언덕을 넘어 달린다.",
    "char": "สุนัขวิ่งข้ามเนินเขา",
}


@pytest.mark.parametrize(("tokenizer", "target"), TARGETS.items())
def test_a_perfect_translation_in_any_script_has_a_bleu_of_100(tokenizer, target):
    pytest.importorskip("sacrebleu")
    needed = NEEDS.get(tokenizer)
    expected = "char" if needed and not importlib.util.find_spec(needed) else tokenizer
    assert choose_bleu_tokenizer([target]) == expected
    quality = compare([Pair("un chien", target)], {"un chien": target})
    assert (quality.bleu, quality.chrf) == pytest.approx((100, 100))
    assert f"tok:{expected}" in quality.signature


def test_the_tokenizer_of_bleu_is_chosen_from_the_training_targets_and_kept_in_the_model(tmp_path):
    pairs = [Pair(pair.source, "那只狗跑过了" + "山水" * (index % 3)) for index, pair in enumerate(PAIRS)]
    overrides = OVERRIDES | {"training": {"steps": 1}, "tokenizer": {"kind": "bytes"}, "model": {"context_length": 256}}
    small = request(tmp_path / "run", overrides=overrides)
    training = TranslationTraining(replace(small, pairs=PairData(pairs[:-2], pairs[-2:])))
    run = run_training(training, Reporter()).run
    assert run.record().section("pairs")["bleu_tokenizer"] == "zh"
    translator = load_translator(run.directory, "cpu")
    assert translator.bleu_tokenizer == "zh"
    assert "tok:zh" in str(evaluate_pairs(translator, PAIRS[:2], Decoding()))


def test_a_missing_tokenizer_of_bleu_is_named_with_its_package():
    if importlib.util.find_spec("MeCab"):
        pytest.skip("the tokenizer is installed")
    with pytest.raises(UsageError, match=r"pip install 'sacrebleu\[ja\]'"):
        compare(PAIRS[:1], {PAIRS[0].source: "a"}, "ja-mecab")


def test_bleu_of_sentences_without_four_words_is_explained(session):
    pairs = [Pair("un chien", "a dog")]
    quality = compare(pairs, {"un chien": "a dog"})
    assert (quality.bleu, quality.chrf) == (0, 100)
    assert "is 0 for shorter sentences" in " ".join(str(PairEvaluation(quality, 1.0, 3, 0)).split())


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"training": {"batch_size": 4}}, "batches are counted in tokens here"),
        ({"model": {"windth": 4}}, "unknown key 'model.windth', did you mean 'width'"),
        ({"text": {}}, "unknown configuration section 'text'"),
    ],
)
def test_wrong_settings_are_refused(tmp_path, overrides, message):
    with pytest.raises(ConfigError, match=message):
        request(tmp_path, overrides=overrides)


@pytest.mark.parametrize(
    ("minutes", "seconds", "steps"), [(2.0, 0.6, 200), (0.5, 0.25, 200), (0.5, 0.6, 150), (None, 0.001, None)]
)
def test_the_number_of_steps_follows_from_time_and_pairs(session, tmp_path, monkeypatch, minutes, seconds, steps):
    monkeypatch.setattr("foretell.session.declaration.seconds_per_step", lambda *_: seconds)
    training = TranslationTraining(PairRequest(out=tmp_path, size="toy", minutes=minutes))
    machine = Machine(torch.device("cpu"), torch.float32, device_memory(torch.device("cpu")))
    choice = training.choose(session.task.text, machine)
    per_epoch = training.loader(session.task.text, choice.config).batches_per_epoch
    assert choice.config.training.steps == (steps or max(FEWEST_STEPS, 30 * per_epoch))
    assert choice.most_steps == max(FEWEST_STEPS, 30 * per_epoch)
    assert (f"{in_minutes(minutes)} at {seconds:.2f} s per step" if minutes else "memorise") in choice.reasons[0]


@pytest.mark.parametrize(
    ("size", "pairs", "batch_tokens"),
    [("toy", {}, 2048), ("mini", {}, 4096), ("small", {}, 4096), ("small", {"batch_tokens": 1024}, 1024)],
)
def test_wide_models_have_larger_batches(size, pairs, batch_tokens, session, tmp_path):
    overrides = {"pairs": pairs, "training": {"steps": 1}}
    training = TranslationTraining(PairRequest(out=tmp_path, size=size, overrides=overrides))
    machine = Machine(torch.device("cpu"), torch.float32, device_memory(torch.device("cpu")))
    choice = training.choose(session.task.text, machine)
    assert choice.config.pairs.batch_tokens == batch_tokens


@pytest.mark.parametrize(("seconds", "size"), [(1.0, "toy"), pytest.param(0.02, "tiny", marks=pytest.mark.long)])
def test_an_open_size_follows_from_the_measured_time(seconds, size, session, tmp_path, monkeypatch):
    monkeypatch.setattr("foretell.session.declaration.seconds_per_step", lambda *_: seconds)
    training = TranslationTraining(PairRequest(out=tmp_path, minutes=1.0))
    machine = Machine(torch.device("cpu"), torch.float32, device_memory(torch.device("cpu")))
    data = PairData(session.task.data.train * 5000, session.task.data.validation)
    choice = training.choose(PairText(data, session.task.vocabulary), machine)
    assert choice.size == size
    assert f"size        {size}, " in choice.reasons[0]


def test_long_sentences_are_left_out_and_the_log_says_so(tmp_path, caplog):
    caplog.set_level(logging.INFO, logger="foretell")
    overrides = OVERRIDES | {"training": {"steps": 1}, "pairs": {"longest": 8}}
    data = PairData([*PAIRS, Pair("a " * 20, "un " * 20)], [])
    run_training(TranslationTraining(request(tmp_path / "run", overrides=overrides, pairs=data)), Reporter())
    assert any("left out    1 pair with more than 8 tokens" in message for message in caplog.messages)
