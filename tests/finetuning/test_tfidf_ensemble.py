"""The ensemble of a tuned decoder and TF-IDF: `finetune --ensemble`."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file

from foretell.cli.main import run as foretell
from foretell.errors import CheckpointError, UsageError
from foretell.files import read_json, write_json
from foretell.finetuning import tfidf as fitting
from foretell.finetuning.head import head_of, head_outputs, input_format
from foretell.finetuning.kind import Example, find_kind, kind_of
from foretell.finetuning.label_attribution import DECODER_ALONE, attribute_label
from foretell.finetuning.predict import predict
from foretell.finetuning.report import REPORT, FinetuneReport, evaluate_task
from foretell.finetuning.request import FinetuneRequest
from foretell.finetuning.settings import Columns, HeadSettings
from foretell.finetuning.tfidf import TERMS_FILE, TfidfModel, fit_tfidf, mixed, task_outputs, tfidf_of
from foretell.language_model import LanguageModel
from foretell.loading import load
from foretell.session.protocol import load_start
from foretell.session.start import Start
from foretell.typesetting.text import document_text
from tests.toy import StoppedAt

pytest.importorskip("sklearn", reason="scikit-learn is not installed")

TEXTS = ("The film was great, and LONG!", "dull; dull film", "never seen 漢字 ½", "", "a" * 3000 + " great")
ENSEMBLE = {"finetuning": {"ensemble": True}}


@pytest.fixture(scope="module")
def model(ensemble: Path) -> LanguageModel:
    return load(ensemble)


def tfidf(model: LanguageModel) -> TfidfModel:
    part = tfidf_of(model)
    assert part is not None
    return part


# --- the linear model ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("labels", [2, 3])
def test_the_probabilities_are_those_of_scikit_learn(labels: int, monkeypatch: pytest.MonkeyPatch) -> None:
    draw = np.random.default_rng(1)
    words = ["good", "bad", "not", "Ünder", "x", "don't", "$", "3.5", "漢字"]
    rows = [(" ".join(draw.choice(words, 8)), str(draw.integers(labels))) for _ in range(120)]
    examples = [Example((text,), (label,), "row") for text, label in rows]
    kind = kind_of(find_kind("classify").fit(HeadSettings(task="classify", columns=Columns(texts=("t",))), examples))
    fitted = []
    real = fitting.vectorizer
    monkeypatch.setattr(fitting, "vectorizer", lambda: fitted.append(real()) or fitted[-1])
    ours = fit_tfidf(kind, examples)
    assert ours is not None

    from sklearn.linear_model import LogisticRegression

    strength = float(ours.rule.rpartition("C ")[2])
    theirs = LogisticRegression(C=strength, max_iter=fitting.ITERATIONS, tol=fitting.TOLERANCE)
    order = fitting.permutation(fitting.stream_key("baseline", 0), len(rows)).numpy()
    targets = np.array([int(label) for _, label in rows])[order]
    theirs.fit(fitted[-1].transform([rows[index][0] for index in order]), targets)
    texts = [*TEXTS, *(text for text, _ in rows)]
    expected = theirs.predict_proba(fitted[-1].transform([text[:2000] for text in texts]))
    assert np.abs(np.exp(ours.outputs(texts)) - expected).max() < 1e-6


def test_a_saved_model_has_its_terms_as_json_and_its_numbers_as_safetensors(
    model: LanguageModel, tmp_path: Path
) -> None:
    model.save(tmp_path / "saved")
    terms = read_json(tmp_path / "saved" / TERMS_FILE)["terms"]
    weights = load_file(tmp_path / "saved" / "model.safetensors")
    assert "was great" in terms and weights["tfidf.weight"].shape == (2, len(terms))
    again = tfidf(load(tmp_path / "saved", dtype="bfloat16").to(dtype="float16"))
    assert np.array_equal(again.outputs(TEXTS), tfidf(model).outputs(TEXTS))
    (tmp_path / "saved" / "manifest.json").unlink()  # it has a digest of the terms
    write_json(tmp_path / "saved" / TERMS_FILE, {"terms": terms[1:]})
    with pytest.raises(CheckpointError, match="different terms"):
        load(tmp_path / "saved")


# --- the mixture -----------------------------------------------------------------------------------------------------


def test_the_ends_of_the_mixture_are_its_members() -> None:
    decoder, linear = [np.array([1.0, 3.0])], np.log([[0.8, 0.2]])
    assert np.allclose(np.exp(mixed(decoder, linear, 0.0)), [[0.8, 0.2]])
    assert np.allclose(np.exp(mixed(decoder, linear, 1.0)), np.exp(decoder) / np.exp(decoder).sum())
    half = np.exp(np.array(decoder) / 2) * np.sqrt([[0.8, 0.2]])
    assert np.allclose(np.exp(mixed(decoder, linear, 0.5)), half / half.sum())


def test_the_weight_is_the_best_on_the_held_out_examples(ensemble: Path, finetune) -> None:
    session = finetune(FinetuneRequest(out=ensemble), resume=True)
    task, best = session.task, load(ensemble)
    linear, head = tfidf(best), head_of(best)
    outputs = head_outputs(best.decoder, head, task.data.dev, session.dtype)
    texts = linear.outputs([example.texts[0] for example in task.data.dev])
    losses = [task.figures(mixed(outputs, texts, share / 10))["loss"] for share in range(11)]
    assert linear.decoder_share == np.argmin(losses) / 10
    report = read_json(ensemble / REPORT)
    assert report["dev"]["loss"] == pytest.approx(min(losses), abs=1e-6)
    assert report["ensemble"] == {"decoder_share": linear.decoder_share, "tfidf": report["baseline"]["rule"]}
    assert report["dev"]["loss"] <= report["baseline"]["loss"]
    shown = " ".join(document_text(FinetuneReport(report).document()).split())
    assert f"ensemble: weight {linear.decoder_share:.1f} for the decoder" in shown


def test_the_linear_model_is_fitted_once_on_the_training_part(
    review_file: Path, tmp_path: Path, finetune, monkeypatch: pytest.MonkeyPatch
) -> None:
    fits: list[int] = []
    real = fitting.tune_tfidf
    monkeypatch.setattr(fitting, "tune_tfidf", lambda *given: fits.append(len(given[-1])) or real(*given))
    # with a time, the steps are chosen after a first model that is measured
    out, batch = tmp_path / "run", {"training": {"batch_size": 6}}
    request = FinetuneRequest(
        data=review_file, out=out, is_from_scratch=True, minutes=0.01, overrides={**ENSEMBLE, **batch}
    )
    session = finetune(request)
    assert fits == [len(session.task.data.train)]


def test_predict_and_evaluate_use_the_mixture(
    model: LanguageModel, review_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "sklearn", None)  # importing it would fail
    text = "the film was great and dull"
    part, head = tfidf(model), head_of(model)
    (example,) = head.task.encode([(text,)], input_format(model))
    example = replace(example, texts=(text,))
    for share in (0.0, 0.5, 1.0):
        changed = replace(model, parts={**model.parts, "tfidf": replace(part, decoder_share=share)})
        decoder = head_outputs(model.decoder, head, [example], model.dtype)
        (expected,) = mixed(decoder, part.outputs([text]), share)
        assert predict(changed, text)[0].probabilities == pytest.approx(
            dict(zip(head.settings.labels, np.exp(expected), strict=True)), abs=1e-6
        )
        evaluation = evaluate_task(changed, review_file)
        assert evaluation.to_json()["ensemble"]["decoder_share"] == share
    assert task_outputs(model, [], model.dtype) == []


def test_a_model_without_it_has_no_mixture(tuned: Path, review_file: Path) -> None:
    plain = load(tuned)
    assert tfidf_of(plain) is None
    assert "ensemble" not in evaluate_task(plain, review_file).to_json()
    assert "ensemble" not in read_json(tuned / REPORT)


# --- resuming --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", [1, 7])
def test_a_resumed_run_equals_an_uninterrupted_one(
    step: int, ensemble: Path, start: Start, review_file: Path, tmp_path: Path, tiny_request, finetune
) -> None:
    cut = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        finetune(tiny_request(review_file, cut, overrides=ENSEMBLE, start=start), StoppedAt(step))
    finetune(FinetuneRequest(out=cut), resume=True)
    whole, resumed = (load_file(each / "checkpoints/step-000012/model.safetensors") for each in (ensemble, cut))
    assert all(whole[key].equal(resumed[key]) for key in whole | resumed)
    assert read_json(cut / REPORT)["ensemble"] == read_json(ensemble / REPORT)["ensemble"]


def test_tuning_a_tuned_ensemble_again_forgets_its_linear_model(
    ensemble: Path, review_file: Path, tmp_path: Path, tiny_request, finetune
) -> None:
    finetune(tiny_request(review_file, tmp_path / "run", start=load_start(ensemble)))
    assert tfidf_of(load(tmp_path / "run")) is None


# --- other commands --------------------------------------------------------------------------------------------------


def test_explain_covers_the_decoder_alone(model: LanguageModel, tuned: Path) -> None:
    for each, is_ensemble in ((model, True), (load(tuned), False)):
        shown = document_text(attribute_label(each, ["the film was great"]).document())
        assert (DECODER_ALONE in " ".join(shown.split())) == is_ensemble


@pytest.mark.parametrize("target", ["huggingface", "gguf", "peft"])
def test_convert_refuses_it(target: str, ensemble: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert foretell(["convert", str(ensemble), str(tmp_path / "out"), "--to", target]) == 2
    assert "cannot be converted without its TF-IDF model; tune it without --ensemble" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_options_that_contradict_are_refused(
    start: Start, review_file: Path, tmp_path: Path, tiny_request, finetune, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = {"finetuning": {"ensemble": True, "folds": 2}}
    with pytest.raises(UsageError, match="folds leaves none"):
        tiny_request(review_file, tmp_path, overrides=both, start=start).tuning()
    with pytest.raises(UsageError, match="not task entailment"):
        settings = HeadSettings(task="entailment", labels=("a", "b"), columns=Columns(texts=("a", "b")))
        kind_of(settings).check(FinetuneRequest(out=tmp_path, overrides=ENSEMBLE).tuning())
    request = tiny_request(review_file, tmp_path / "run", overrides=ENSEMBLE, start=start)
    monkeypatch.setattr(fitting, "has_scikit_learn", lambda: False)
    with pytest.raises(UsageError, match=r"pip install 'foretell\[baseline\]'"):
        finetune(request)
    assert not (tmp_path / "run").exists()
    monkeypatch.setattr(fitting, "MOST_LABELS", 1)
    with pytest.raises(UsageError, match="at most 1 labels"):
        finetune(request)


def test_the_command_line_has_the_option(review_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(tmp_path / "run")
    assert foretell(["finetune", str(review_file), "--from-scratch", "--ensemble", "--steps", "4", "--out", out]) == 0
    assert "ensemble: weight" in " ".join(capsys.readouterr().out.split())
    assert foretell(["predict", out, "the film was great", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["label"] in ("good", "bad")
