"""The baseline of a report: a linear model on TF-IDF, tuned by cross-validation, or else a rule without the texts.

TF-IDF counts words, marks of punctuation and pairs of neighbours, with sublinear counts. The regularisation is the one
with the best figure in a cross-validation on the training examples.
"""

from __future__ import annotations

import importlib.util
import logging
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from foretell.finetuning.inputs import Target
from foretell.finetuning.kind import Example, Kind
from foretell.finetuning.split import make_folds
from foretell.randomness import permutation, stream_key

WORD = r"\w+|[^\w\s]"
MOST_LABELS = 100  # with more, a fit takes minutes
# The bounds of time: 10 s on a slow core for 6 labels, most of it for the choice
MOST_EXAMPLES = 20_000  # that the last fit reads
MOST_FOR_CHOICE = 3000
MOST_CHARACTERS = 2000  # of a text
MOST_FEATURES = 100_000
ITERATIONS, TOLERANCE = 100, 1e-3
FOLDS = 3

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class LinearModel:
    """A linear model of scikit-learn and the strengths of its regularisation to choose from."""

    name: str
    strength: str  # its argument in scikit-learn
    strengths: tuple[float, ...]

    def outputs(self, strength: float, num_outputs: int, train: Any, targets: np.ndarray, dev: Any) -> np.ndarray:
        """The outputs (N, C) for features `dev`, as a head has them: log-probabilities, or numbers."""
        if num_outputs > 1:
            from sklearn.dummy import DummyClassifier
            from sklearn.linear_model import LogisticRegression

            indices = targets.astype(int)
            seen = np.unique(indices)
            model = LogisticRegression(C=strength, max_iter=ITERATIONS, tol=TOLERANCE)
            model = model if len(seen) > 1 else DummyClassifier()  # small folds may have one label
            outputs = np.full((dev.shape[0], num_outputs), np.log(1e-9))  # of labels that the fold lacks
            outputs[:, seen] = model.fit(train, indices).predict_log_proba(dev)
            return outputs
        from sklearn.linear_model import Ridge

        return Ridge(alpha=strength).fit(train, targets).predict(dev)[:, None]


LINEAR_MODELS = {
    "logistic": LinearModel("logistic regression", "C", (1.0, 10.0, 100.0)),
    "ridge": LinearModel("ridge regression", "alpha", (0.1, 1.0, 10.0)),
}


def tuned_baseline(kind: Kind, train: Sequence[Example], dev: Sequence[Example]) -> dict[str, Any]:
    """The figures of TF-IDF where the kind names a linear model and scikit-learn is installed, else of its rule."""
    targets, right = ([kind.target(example) for example in part] for part in (train, dev))
    if not kind.linear_model or len(kind.settings.labels) > MOST_LABELS:
        return kind.baseline(targets, right)
    if importlib.util.find_spec("sklearn") is None:
        logger.info("baseline    for TF-IDF with a linear model: pip install 'foretell[baseline]'")
        return kind.baseline(targets, right)
    from sklearn.exceptions import ConvergenceWarning

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # the bound of the iterations is meant
        return tfidf_baseline(kind, LINEAR_MODELS[kind.linear_model], train, targets, dev, right)


def tfidf_baseline(
    kind: Kind,
    linear: LinearModel,
    train: Sequence[Example],
    targets: Sequence[Target],
    dev: Sequence[Example],
    right: Sequence[Target],
) -> dict[str, Any]:
    """Choose the strength in a cross-validation, then fit on the training examples and compute the figures."""
    order = permutation(stream_key("baseline", 0), len(train)).numpy()[:MOST_EXAMPLES]
    few, count = order[:MOST_FOR_CHOICE], kind.settings.num_outputs
    values = np.array([value for (value,) in targets])
    texts = np.array([example.texts[0][:MOST_CHARACTERS] for example in train], dtype=object)
    features = vectorizer().fit_transform(texts[few])
    folds = make_folds([train[index] for index in few], FOLDS, 0, kind.splits_by_label)
    folds = [fold for fold in folds if 0 < len(fold) < len(few)]
    chosen = max(
        linear.strengths,
        key=lambda strength: quality(
            kind, cross_validated(linear, strength, count, features, values[few], folds), targets, few
        ),
    )
    words = vectorizer()
    features = words.fit_transform(texts[order])
    unseen = words.transform([example.texts[0][:MOST_CHARACTERS] for example in dev])
    outputs = linear.outputs(chosen, count, features, values[order], unseen)
    part = "" if len(order) == len(train) else f", on {len(order):,} of {len(train):,} examples"
    rule = f"TF-IDF of words and bigrams with {linear.name}, {linear.strength} {chosen:g}{part}"
    return {"rule": rule, **kind.figures(list(outputs), right)}


def vectorizer() -> Any:
    from sklearn.feature_extraction.text import TfidfVectorizer

    return TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True, token_pattern=WORD, max_features=MOST_FEATURES)


def cross_validated(
    linear: LinearModel, strength: float, num_outputs: int, features: Any, targets: np.ndarray, folds: list[list[int]]
) -> np.ndarray:
    """The outputs (N, C) for each example by a model that was fitted without its fold, which has all equal texts."""
    outputs = np.zeros((len(targets), num_outputs))
    for fold in folds:
        held_out = np.isin(np.arange(len(targets)), fold)
        outputs[held_out] = linear.outputs(
            strength, num_outputs, features[~held_out], targets[~held_out], features[held_out]
        )
    return outputs


def quality(kind: Kind, outputs: np.ndarray, targets: Sequence[Target], indices: np.ndarray) -> float:
    """The first score of a kind, else its first figure, negative; larger is better."""
    figures = kind.figures(list(outputs), [targets[index] for index in indices])
    return figures[kind.scores[0]] if kind.scores else -next(iter(figures.values()))
