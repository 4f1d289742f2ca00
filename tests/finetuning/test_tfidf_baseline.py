"""The baseline of a report: TF-IDF with a linear model that cross-validation tunes, or a rule without the texts."""

from __future__ import annotations

import importlib.util
import logging
from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_score
from threadpoolctl import threadpool_info, threadpool_limits

from foretell.finetuning import tfidf as fitting
from foretell.finetuning.examples import Example
from foretell.finetuning.kind import Kind, find_kind, kind_of
from foretell.finetuning.settings import Columns, HeadSettings
from foretell.finetuning.tfidf import tuned_baseline

RULES = {"classify": "logistic regression, C", "regress": "ridge regression, alpha"}


def labelled(rows: list[tuple[str, Any]]) -> list[Example]:
    return [Example((text,), (str(label),), f"row {index}") for index, (text, label) in enumerate(rows, 1)]


def kind_for(task: str, examples: list[Example]) -> Kind:
    settings = HeadSettings(task=task, columns=Columns(texts=("text",)))
    return kind_of(find_kind(task).fit(settings, examples))


def reviews(task: str, count: int = 60) -> list[Example]:
    """Texts with a label, or a number, that the order of two words decides: single words know nothing."""
    draw = np.random.default_rng(1)
    rows = []
    for _ in range(count):
        is_good, where = bool(draw.integers(2)), draw.choice(["film", "book", "song"])
        words = "not bad" if is_good else "bad not"
        rows.append((f"the {where} was {words}", 3.5 + is_good if task == "regress" else is_good))
    return labelled(rows)


@pytest.mark.parametrize("task", RULES)
def test_pairs_of_words_count(task: str) -> None:
    examples = reviews(task)
    figures = tuned_baseline(kind_for(task, examples), examples[:40], examples[40:])
    assert RULES[task] in figures["rule"]
    assert figures["accuracy"] == 1 if task == "classify" else figures["r2"] > 0.95


def test_the_fit_has_one_thread_and_leaves_the_others_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    examples, real, seen = reviews("classify"), LogisticRegression.fit, []

    def fit(*arguments: Any) -> Any:
        seen.extend(pool["num_threads"] for pool in threadpool_info())
        return real(*arguments)

    monkeypatch.setattr(LogisticRegression, "fit", fit)
    with threadpool_limits(2):
        before = [pool["num_threads"] for pool in threadpool_info()]
        tuned_baseline(kind_for("classify", examples), examples, examples)
        assert [pool["num_threads"] for pool in threadpool_info()] == before
    assert 2 in before and set(seen) == {1}


@pytest.mark.parametrize("task", RULES)
def test_the_strength_has_the_best_score_on_the_folds(task: str) -> None:
    draw = np.random.default_rng(4)
    texts = [" ".join(draw.choice([*"abcdefghij"], 6)) for _ in range(90)]
    examples = labelled([(text, text.count("a") + draw.integers(2)) for text in texts])
    kind, linear = kind_for(task, examples), fitting.LINEAR_MODELS[find_kind(task).linear_model]
    targets = np.array([kind.target(example)[0] for example in examples])
    order = fitting.permutation(fitting.stream_key("baseline", 0), len(examples)).numpy()
    folds = fitting.usable_folds(kind, [examples[index] for index in order], targets[order])
    features = fitting.make_tfidf(None)[:-1].fit_transform(fitting.texts_of(examples)[order])

    def score(strength: float) -> float:
        estimator = fitting.make_estimator(kind).set_params(**{linear.strength: strength})
        return cross_val_score(estimator, features, targets[order], scoring=linear.scoring, cv=folds).mean()

    _, rule = fitting.fit_tfidf(kind, examples, targets)
    assert rule.endswith(f"{RULES[task]} {max(linear.strengths, key=score):g}")
    assert len({*map(score, linear.strengths)}) > 1


def test_equal_texts_are_in_one_fold_and_folds_without_two_labels_outside_are_omitted() -> None:
    examples = labelled([(f"text {number % 12}", number % 2) for number in range(60)])
    kind, targets = kind_for("classify", examples), np.arange(60) % 2
    folds = fitting.usable_folds(kind, examples, targets)
    assert sorted(index for _, fold in folds for index in fold) == [*range(60)]
    for outside, fold in folds:
        assert {examples[index].texts for index in outside}.isdisjoint(examples[index].texts for index in fold)
    few = [examples[0], examples[1]]
    (pair,) = fitting.usable_folds(kind, few, targets[:2])
    assert [side.tolist() for side in pair] == [[0, 1], [0, 1]]


def test_a_label_that_is_not_learned_from_is_improbable() -> None:
    examples = labelled([("a", "x"), ("b", "y"), ("c", "z")] * 4)
    kind = kind_for("classify", examples)
    learned = [each for each in examples if each.labels != ("y",)]
    model, _ = fitting.fit_tfidf(kind, learned, np.array([kind.target(each)[0] for each in learned]))
    outputs = fitting.outputs_of(model, kind, fitting.texts_of(examples))
    assert (outputs[:, 1] == np.log(fitting.SMALLEST)).all()
    assert outputs.shape == (12, 3) and np.allclose(np.exp(outputs).sum(1), 1)
    alone = [each for each in examples if each.labels == ("x",)]
    assert tuned_baseline(kind, alone, examples)["rule"] == "the most frequent label"


def test_few_rows_and_rare_labels_have_a_baseline() -> None:
    examples = labelled([("a", "x"), ("b", "x"), ("!", "x"), ("?", "y"), ("a", "x")])
    figures = tuned_baseline(kind_for("classify", examples), examples, examples)
    assert 0.8 <= figures["accuracy"] <= 1


def test_large_data_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fitting, "MOST_EXAMPLES", 30)
    examples = reviews("classify")
    figures = tuned_baseline(kind_for("classify", examples), examples, examples)
    assert figures["rule"].endswith(", on 30 of 60 examples")
    monkeypatch.setattr(fitting, "MOST_LABELS", 1)
    assert tuned_baseline(kind_for("classify", examples), examples, examples)["rule"] == "the most frequent label"


def test_without_scikit_learn_the_rule_needs_no_text(monkeypatch: pytest.MonkeyPatch, caplog) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    examples = reviews("classify")
    with caplog.at_level(logging.INFO, "foretell"):
        figures = tuned_baseline(kind_for("classify", examples), examples, examples)
    assert figures["rule"] == "the most frequent label"
    assert "pip install 'foretell[baseline]'" in caplog.text


@pytest.mark.parametrize("task", ["entailment", "similarity", "choice", "tag"])
def test_kinds_of_several_texts_keep_their_rule(task: str) -> None:
    assert not find_kind(task).linear_model


def test_many_labels_give_no_warning(recwarn: pytest.WarningsRecorder) -> None:
    examples = labelled([(f"text {index}", f"L{index % 20}") for index in range(60)])
    tuned_baseline(kind_for("classify", examples), examples[:40], examples[40:])
    assert [str(each.message) for each in recwarn if "unique classes" in str(each.message)] == []
