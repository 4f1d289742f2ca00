"""A linear model on TF-IDF features: the baseline of a report and, with --ensemble, a part of the saved model.

The features are words, punctuation marks and bigrams, with sublinear counts. The regularisation is chosen by
cross-validation on the training examples. The mixture with a tuned decoder is geometric: p is proportional to
exp(w log p_decoder + (1 - w) log p_linear).
"""

from __future__ import annotations

import importlib.util
import logging
import re
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from foretell.config.model import Size
from foretell.config.section import Section, make_section
from foretell.errors import CheckpointError, UsageError
from foretell.files import read_json, write_json
from foretell.finetuning.figures import log_softmax
from foretell.finetuning.head import TASK_HEAD, TaskHead, head_of, head_outputs
from foretell.finetuning.inputs import EncodedExample, Target
from foretell.finetuning.kind import Example, Kind
from foretell.finetuning.split import make_folds
from foretell.language_model import LanguageModel
from foretell.randomness import permutation, stream_key
from foretell.saved_model.part import Part, PartSource, register_part

TFIDF = "tfidf"  # the name and the kind of the part
TERMS_FILE = "tfidf_terms.json"
TERMS_BYTES = 2**28  # maximum size of the file of terms
FEATURES = "TF-IDF of words and bigrams"  # the beginning of a fitted baseline's rule
WORD = r"\w+|[^\w\s]"
MOST_CHARACTERS = 2000  # characters of a text that are used
DECODER_SHARES = tuple(tenths / 10 for tenths in range(11))  # candidates for w


class TfidfConfig(Section):
    """The entry of the part in config.json."""

    terms: Size
    rule: str
    decoder_share: float = Field(ge=0, le=1)


@register_part
@dataclass(frozen=True)
class TfidfModel(Part):
    """A linear model on TF-IDF of a text's words, punctuation marks and bigrams, as plain data.

    terms: N words and bigrams. idf: (N,), weight: (C, N), bias: (C,), all float32. rule: a description for reports.
    decoder_share: the decoder's weight w in the ensemble.
    """

    kind: ClassVar[str] = TFIDF
    file_names: ClassVar[tuple[str, ...]] = (TERMS_FILE,)
    not_convertible: ClassVar[str] = "its TF-IDF model; tune it without --ensemble"
    terms: tuple[str, ...]
    idf: np.ndarray
    weight: np.ndarray
    bias: np.ndarray
    rule: str
    decoder_share: float = 1.0

    @cached_property
    def index(self) -> dict[str, int]:
        return {term: index for index, term in enumerate(self.terms)}

    def features(self, text: str) -> tuple[np.ndarray, np.ndarray]:
        """The indices of a text's terms and their values (M,): sublinear counts times idf, normalised to length 1."""
        words = re.findall(WORD, text[:MOST_CHARACTERS].lower())
        terms = (*words, *(" ".join(pair) for pair in pairwise(words)))
        counts = Counter(self.index[term] for term in terms if term in self.index)
        indices = np.array(list(counts), dtype=int)
        values = (1 + np.log(np.array(list(counts.values()), dtype=float))) * self.idf[indices]
        return indices, values / (np.linalg.norm(values) or 1.0)

    def outputs(self, texts: Sequence[str]) -> np.ndarray:
        """The outputs (B, C) for texts in the form of a head's outputs: log-probabilities, or numbers."""
        scores = np.empty((len(texts), len(self.bias)))
        for row, text in enumerate(texts):
            indices, values = self.features(text)
            scores[row] = self.weight[:, indices] @ values + self.bias
        return as_outputs(scores)

    def config(self) -> dict[str, Any]:
        return TfidfConfig(terms=len(self.terms), rule=self.rule, decoder_share=self.decoder_share).model_dump()

    def weights(self) -> Mapping[str, Tensor]:
        return {name: torch.from_numpy(getattr(self, name)) for name in ("idf", "weight", "bias")}

    def save_files(self, directory: Path) -> None:
        write_json(directory / TERMS_FILE, {"terms": list(self.terms)})

    @classmethod
    def load(cls, values: Mapping[str, Any], source: PartSource) -> Self:
        settings, head = make_section(TfidfConfig, values, source.name), source.parts.get(TASK_HEAD)
        if not isinstance(head, TaskHead):
            raise CheckpointError(f"{source.directory}: a TF-IDF model needs a task head before it")
        path = source.directory / TERMS_FILE
        terms = read_json(path, TERMS_BYTES).get("terms")
        if not isinstance(terms, list) or not all(isinstance(term, str) for term in terms):
            raise CheckpointError(f"{path} has no list of terms; it is damaged")
        count, outputs = settings.terms, head.settings.num_outputs
        if len(set(terms)) != count or len(terms) != count:
            raise CheckpointError(f"{path} does not have the {count:,} different terms that config.json states")
        shapes = {"idf": (count,), "weight": (outputs, count), "bias": (outputs,)}
        read = source.read(shapes, dict.fromkeys(shapes, torch.float32))
        arrays = {name: tensor.cpu().numpy() for name, tensor in read.items()}
        return cls(tuple(terms), **arrays, rule=settings.rule, decoder_share=settings.decoder_share)

    def to_json(self) -> dict[str, Any]:
        """The entry of a report."""
        return {"decoder_share": self.decoder_share, "tfidf": self.rule}


def as_outputs(scores: np.ndarray) -> np.ndarray:
    """Linear scores (B, C) in the form of a head's outputs: log-probabilities or, with C = 1, numbers."""
    return log_softmax(scores) if scores.shape[1] > 1 else scores


def tfidf_of(model: LanguageModel) -> TfidfModel | None:
    """The TF-IDF model of an ensemble; None without an ensemble."""
    part = model.parts.get(TFIDF)
    return part if isinstance(part, TfidfModel) else None


def with_tfidf(model: LanguageModel, tfidf: TfidfModel | None) -> LanguageModel:
    """The model with its TF-IDF model replaced; None removes it."""
    others = {name: part for name, part in model.parts.items() if name != TFIDF}
    return replace(model, parts=others if tfidf is None else {**others, TFIDF: tfidf})


def mixed(decoder: Sequence[np.ndarray], linear: np.ndarray, decoder_share: float) -> list[np.ndarray]:
    """The log-probabilities (C,) of the mixture for each of B examples, from the head's outputs and `linear` (B, C)."""
    return list(log_softmax(decoder_share * log_softmax(np.stack(decoder)) + (1 - decoder_share) * linear))


def task_outputs(model: LanguageModel, examples: Sequence[EncodedExample], dtype: torch.dtype) -> list[np.ndarray]:
    """The outputs (C,) of a tuned model for each example: the head's, or the mixture of an ensemble."""
    outputs, tfidf = head_outputs(model.decoder, head_of(model), examples, dtype), tfidf_of(model)
    if tfidf is None or not examples:
        return outputs
    return mixed(outputs, tfidf.outputs([example.texts[0] for example in examples]), tfidf.decoder_share)


MOST_LABELS = 100  # with more, a fit takes minutes
# Limits of the time: 10 s on a slow core for 6 labels, mostly for the choice of the regularisation
MOST_EXAMPLES = 20_000  # examples in the last fit
MOST_FOR_CHOICE = 3000
MOST_FEATURES = 100_000
ITERATIONS, TOLERANCE = 100, 1e-3
FOLDS = 3
UNSEEN = float(np.log(1e-9))  # the score of labels that are not in the training examples
INSTALL = "pip install 'foretell[baseline]'"

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class LinearModel:
    """A linear model of scikit-learn, and candidates for the strength of its regularisation."""

    name: str
    strength: str  # the name of the argument in scikit-learn
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
        if len(seen) > 1:  # a small fold may have only one label
            model = LogisticRegression(C=strength, max_iter=ITERATIONS, tol=TOLERANCE).fit(features, indices)
            rows = seen if len(seen) > 2 else seen[1:]  # two labels have a single score
            weight[rows], bias[rows] = model.coef_, model.intercept_
        return weight, bias


LINEAR_MODELS = {
    "logistic": LinearModel("logistic regression", "C", (1.0, 10.0, 100.0)),
    "ridge": LinearModel("ridge regression", "alpha", (0.1, 1.0, 10.0)),
}


def check_ensemble(kind: Kind) -> None:
    """Refuse an ensemble with too many labels, or without scikit-learn."""
    if len(kind.settings.labels) > MOST_LABELS:
        raise UsageError(f"--ensemble fits at most {MOST_LABELS} labels, not {len(kind.settings.labels):,}; omit it")
    if not has_scikit_learn():
        raise UsageError(f"--ensemble needs scikit-learn: {INSTALL}")


def has_scikit_learn() -> bool:
    return importlib.util.find_spec("sklearn") is not None


def tuned_baseline(
    kind: Kind, train: Sequence[Example], dev: Sequence[Example], tfidf: TfidfModel | None = None
) -> dict[str, Any]:
    """The figures of `tfidf`, or of a newly fitted TF-IDF model, or else of the kind's rule."""
    tfidf = tfidf or fit_tfidf(kind, train)
    right = [kind.target(example) for example in dev]
    if tfidf is None:
        return kind.baseline([kind.target(example) for example in train], right)
    outputs = tfidf.outputs([example.texts[0] for example in dev])
    return {"rule": tfidf.rule, **kind.figures(list(outputs), right)}


def fit_tfidf(kind: Kind, train: Sequence[Example]) -> TfidfModel | None:
    """A tuned TF-IDF model; None if the kind has no linear model or scikit-learn is not installed."""
    if not kind.linear_model or len(kind.settings.labels) > MOST_LABELS:
        return None
    if not has_scikit_learn():
        logger.info(f"baseline    for TF-IDF with a linear model: {INSTALL}")
        return None
    from sklearn.exceptions import ConvergenceWarning
    from threadpoolctl import threadpool_limits  # installed with scikit-learn

    with threadpool_limits(1), warnings.catch_warnings():  # on two busy cores, two threads take 48 s and one takes 3 s
        warnings.simplefilter("ignore", ConvergenceWarning)  # the limit of iterations is intended
        warnings.filterwarnings("ignore", "The number of unique classes is greater than 50%", UserWarning)  # in a fold
        return tune_tfidf(kind, LINEAR_MODELS[kind.linear_model], train)


def tune_tfidf(kind: Kind, linear: LinearModel, train: Sequence[Example]) -> TfidfModel:
    """Choose the strength by cross-validation, then fit on the training examples."""
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
    rule = f"{FEATURES} with {linear.name}, {linear.strength} {chosen:g}{part}"
    terms = tuple(words.get_feature_names_out().tolist())
    idf, weight, bias = (array.astype(np.float32) for array in (words.idf_, weight, bias))
    return TfidfModel(terms, idf, weight, bias, rule)


def vectorizer() -> Any:
    from sklearn.feature_extraction.text import TfidfVectorizer

    return TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True, token_pattern=WORD, max_features=MOST_FEATURES)


def cross_validated(
    linear: LinearModel, strength: float, num_outputs: int, features: Any, targets: np.ndarray, folds: list[list[int]]
) -> np.ndarray:
    """The outputs (N, C) for each example from a model fitted without its fold; equal texts are in the same fold."""
    outputs = np.zeros((len(targets), num_outputs))
    for fold in folds:
        held_out = np.isin(np.arange(len(targets)), fold)
        weight, bias = linear.fit(strength, num_outputs, features[~held_out], targets[~held_out])
        outputs[held_out] = as_outputs(features[held_out] @ weight.T + bias)
    return outputs


def quality(kind: Kind, outputs: np.ndarray, targets: Sequence[Target], indices: np.ndarray) -> float:
    """The first score of a kind, or else its negated first figure; larger is better."""
    figures = kind.figures(list(outputs), [targets[index] for index in indices])
    return figures[kind.scores[0]] if kind.scores else -next(iter(figures.values()))
