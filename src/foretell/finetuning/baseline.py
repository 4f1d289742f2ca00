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

from foretell.errors import UsageError
from foretell.finetuning.ensemble import MOST_CHARACTERS, WORD, TfidfModel, as_outputs
from foretell.finetuning.inputs import Target
from foretell.finetuning.kind import Example, Kind
from foretell.finetuning.split import make_folds
from foretell.randomness import permutation, stream_key

MOST_LABELS = 100  # with more, a fit takes minutes
# The bounds of time: 10 s on a slow core for 6 labels, most of it for the choice
MOST_EXAMPLES = 20_000  # that the last fit reads
MOST_FOR_CHOICE = 3000
MOST_FEATURES = 100_000
ITERATIONS, TOLERANCE = 100, 1e-3
FOLDS = 3
UNSEEN = float(np.log(1e-9))  # the score of labels that are not in the training examples
INSTALL = "pip install 'foretell[baseline]'"

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class LinearModel:
    """A linear model of scikit-learn and the strengths of its regularisation to choose from."""

    name: str
    strength: str  # its argument in scikit-learn
    strengths: tuple[float, ...]

    def fit(
        self, strength: float, num_outputs: int, features: Any, targets: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """The weight (C, N) and the bias (C,) for features (B, N)."""
        if num_outputs == 1:
            from sklearn.linear_model import Ridge

            ridge = Ridge(alpha=strength).fit(features, targets)
            return ridge.coef_[None], np.atleast_1d(ridge.intercept_)
        from sklearn.linear_model import LogisticRegression

        indices = targets.astype(int)
        seen = np.unique(indices)
        weight, bias = np.zeros((num_outputs, features.shape[1])), np.full(num_outputs, UNSEEN)
        bias[seen] = 0
        if len(seen) > 1:  # small folds may have one label
            model = LogisticRegression(C=strength, max_iter=ITERATIONS, tol=TOLERANCE).fit(features, indices)
            rows = seen if len(seen) > 2 else seen[1:]  # two labels have one score
            weight[rows], bias[rows] = model.coef_, model.intercept_
        return weight, bias


LINEAR_MODELS = {
    "logistic": LinearModel("logistic regression", "C", (1.0, 10.0, 100.0)),
    "ridge": LinearModel("ridge regression", "alpha", (0.1, 1.0, 10.0)),
}


def check_ensemble(kind: Kind) -> None:
    """Refuse labels, or an installation, that a linear model cannot be fitted for."""
    if len(kind.settings.labels) > MOST_LABELS:
        raise UsageError(f"--ensemble fits at most {MOST_LABELS} labels, not {len(kind.settings.labels):,}; omit it")
    if not has_scikit_learn():
        raise UsageError(f"--ensemble needs scikit-learn: {INSTALL}")


def has_scikit_learn() -> bool:
    return importlib.util.find_spec("sklearn") is not None


def tuned_baseline(
    kind: Kind, train: Sequence[Example], dev: Sequence[Example], tfidf: TfidfModel | None = None
) -> dict[str, Any]:
    """The figures of `tfidf`, or of a TF-IDF model that is fitted now; where none can be, of the kind's rule."""
    tfidf = tfidf or fit_tfidf(kind, train)
    right = [kind.target(example) for example in dev]
    if tfidf is None:
        return kind.baseline([kind.target(example) for example in train], right)
    outputs = tfidf.outputs([example.texts[0] for example in dev])
    return {"rule": tfidf.rule, **kind.figures(list(outputs), right)}


def fit_tfidf(kind: Kind, train: Sequence[Example]) -> TfidfModel | None:
    """A tuned TF-IDF model, where the kind names a linear model and scikit-learn is installed; else None."""
    if not kind.linear_model or len(kind.settings.labels) > MOST_LABELS:
        return None
    if not has_scikit_learn():
        logger.info(f"baseline    for TF-IDF with a linear model: {INSTALL}")
        return None
    from sklearn.exceptions import ConvergenceWarning

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # the bound of the iterations is meant
        return tune_tfidf(kind, LINEAR_MODELS[kind.linear_model], train)


def tune_tfidf(kind: Kind, linear: LinearModel, train: Sequence[Example]) -> TfidfModel:
    """Choose the strength in a cross-validation, then fit on the training examples."""
    targets = [kind.target(example) for example in train]
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
    weight, bias = linear.fit(chosen, count, features, values[order])
    part = "" if len(order) == len(train) else f", on {len(order):,} of {len(train):,} examples"
    rule = f"TF-IDF of words and bigrams with {linear.name}, {linear.strength} {chosen:g}{part}"
    terms = tuple(words.get_feature_names_out().tolist())
    idf, weight, bias = (array.astype(np.float32) for array in (words.idf_, weight, bias))
    return TfidfModel(terms, idf, weight, bias, rule)


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
        weight, bias = linear.fit(strength, num_outputs, features[~held_out], targets[~held_out])
        outputs[held_out] = as_outputs(features[held_out] @ weight.T + bias)
    return outputs


def quality(kind: Kind, outputs: np.ndarray, targets: Sequence[Target], indices: np.ndarray) -> float:
    """The first score of a kind, else its first figure, negative; larger is better."""
    figures = kind.figures(list(outputs), [targets[index] for index in indices])
    return figures[kind.scores[0]] if kind.scores else -next(iter(figures.values()))
