"""The baseline of a report: a linear model on TF-IDF features, or a rule that does not read the texts.

The features are words, punctuation marks and bigrams, with sublinear counts. The regularisation is chosen by
cross-validation on the training examples.
"""

from __future__ import annotations

import importlib.util
import logging
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from foretell.finetuning.examples import Example
from foretell.finetuning.kind import Kind
from foretell.finetuning.split import make_folds
from foretell.numerics.randomness import permutation, stream_key

WORD = r"\w+|[^\w\s]"
MOST_CHARACTERS = 2000  # characters of a text that are used
MOST_LABELS = 100  # with more, a fit takes minutes
# Limits of the time: 10 s on a slow core for 6 labels, mostly for the choice of the regularisation
MOST_EXAMPLES = 20_000  # examples in the last fit
MOST_FOR_CHOICE = 3000
MOST_FEATURES = 100_000
ITERATIONS, TOLERANCE = 100, 1e-3
FOLDS = 3
SMALLEST = 1e-9  # probability, also of labels that are not in the training examples
INSTALL = "pip install 'foretell[baseline]'"

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class LinearModel:
    """A linear model of scikit-learn, candidates for the strength of its regularisation, and their score."""

    name: str
    strength: str  # the name of the argument in scikit-learn
    strengths: tuple[float, ...]
    scoring: str


LINEAR_MODELS = {
    "logistic": LinearModel("logistic regression", "C", (1.0, 10.0, 100.0), "accuracy"),
    "ridge": LinearModel("ridge regression", "alpha", (0.1, 1.0, 10.0), "neg_root_mean_squared_error"),
}


def tuned_baseline(kind: Kind, train: Sequence[Example], dev: Sequence[Example]) -> dict[str, Any]:
    """The figures of a linear model on TF-IDF for held-out examples, or else of the kind's rule.

    A linear model needs examples of one text, two to MOST_LABELS labels, or different numbers, and scikit-learn.
    """
    targets, right = ([kind.target(example) for example in part] for part in (train, dev))
    if not kind.linear_model or len(kind.settings.labels) > MOST_LABELS or len({*targets}) < 2:
        return kind.baseline(targets, right)
    if importlib.util.find_spec("sklearn") is None:
        logger.info(f"baseline    for TF-IDF with a linear model: {INSTALL}")
        return kind.baseline(targets, right)
    from sklearn.exceptions import ConvergenceWarning
    from threadpoolctl import threadpool_limits  # installed with scikit-learn

    with threadpool_limits(1), warnings.catch_warnings():  # on two busy cores, two threads take 48 s and one takes 3 s
        warnings.simplefilter("ignore", ConvergenceWarning)  # the limit of iterations is intended
        warnings.filterwarnings("ignore", "The number of unique classes is greater than 50%", UserWarning)  # in a fold
        model, rule = fit_tfidf(kind, train, np.array([value for (value,) in targets]))
        return {"rule": rule, **kind.figures(list(outputs_of(model, kind, texts_of(dev))), right)}


def fit_tfidf(kind: Kind, train: Sequence[Example], targets: np.ndarray) -> tuple[Any, str]:
    """A fitted pipeline of scikit-learn, and its description."""
    from sklearn.model_selection import GridSearchCV

    linear, texts = LINEAR_MODELS[kind.linear_model], texts_of(train)
    order = permutation(stream_key("baseline", 0), len(train)).numpy()[:MOST_EXAMPLES]
    few = order[:MOST_FOR_CHOICE]
    folds = usable_folds(kind, [train[index] for index in few], targets[few])
    grid = {linear.strength: linear.strengths}
    search = GridSearchCV(make_estimator(kind), grid, scoring=linear.scoring, cv=folds, refit=False)
    chosen = make_tfidf(search).fit(texts[few], targets[few])[-1].best_params_
    part = "" if len(order) == len(train) else f", on {len(order):,} of {len(train):,} examples"
    rule = f"TF-IDF of words and bigrams with {linear.name}, {linear.strength} {chosen[linear.strength]:g}{part}"
    return make_tfidf(make_estimator(kind).set_params(**chosen)).fit(texts[order], targets[order]), rule


def usable_folds(kind: Kind, examples: Sequence[Example], targets: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
    """The indices outside and inside of each fold; equal texts and groups are in one fold.

    Folds without which fewer than two labels are left are omitted. If none remains, all examples are on both sides.
    """
    everything = np.arange(len(examples))
    folds = make_folds(examples, FOLDS, 0, kind.splits_by_label)
    pairs = [(np.setdiff1d(everything, fold), np.array(fold, dtype=int)) for fold in folds if fold]
    return [pair for pair in pairs if len(np.unique(targets[pair[0]])) > 1] or [(everything, everything)]


def make_tfidf(last: Any) -> Any:
    """A pipeline of TF-IDF and a last step."""
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.pipeline import make_pipeline

    words = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True, token_pattern=WORD, max_features=MOST_FEATURES)
    return make_pipeline(words, last)


def make_estimator(kind: Kind) -> Any:
    from sklearn.linear_model import LogisticRegression, Ridge

    return Ridge() if kind.linear_model == "ridge" else LogisticRegression(max_iter=ITERATIONS, tol=TOLERANCE)


def texts_of(examples: Sequence[Example]) -> np.ndarray:
    return np.array([example.texts[0][:MOST_CHARACTERS] for example in examples], dtype=object)


def outputs_of(model: Any, kind: Kind, texts: np.ndarray) -> np.ndarray:
    """Outputs (B, C) in the form of a head's: log-probabilities, or numbers."""
    if kind.linear_model == "ridge":
        return model.predict(texts)[:, None]
    probabilities = np.zeros((len(texts), kind.settings.num_outputs))
    probabilities[:, model.classes_.astype(int)] = model.predict_proba(texts)
    return np.log(np.maximum(probabilities, SMALLEST))
