"""The ensemble of a tuned decoder and a linear model on TF-IDF, which is a part of the saved model called `tfidf`.

The mixture of both distributions is geometric: p is proportional to exp(w log p_decoder + (1 - w) log p_linear).
"""

from __future__ import annotations

import re
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

from foretell.config import Section, Size, make_section
from foretell.errors import CheckpointError
from foretell.files import read_json, write_json
from foretell.finetuning.figures import log_softmax
from foretell.finetuning.head import TASK_HEAD, TaskHead, head_of, head_outputs
from foretell.finetuning.inputs import EncodedExample
from foretell.language_model import LanguageModel
from foretell.saved_model.part import Part, PartSource, register_part

TFIDF = "tfidf"  # the name and the kind of the part
TERMS_FILE = "tfidf_terms.json"
TERMS_BYTES = 2**28  # of the file of terms at most
WORD = r"\w+|[^\w\s]"
MOST_CHARACTERS = 2000  # of a text
DECODER_SHARES = tuple(tenths / 10 for tenths in range(11))  # w, to choose from


class TfidfConfig(Section):
    """The entry of the part in config.json."""

    terms: Size
    rule: str
    decoder_share: float = Field(ge=0, le=1)


@register_part
@dataclass(frozen=True)
class TfidfModel(Part):
    """A linear model on TF-IDF of a text's words, marks of punctuation and pairs of neighbours, as plain data.

    terms: N words and pairs. idf: (N,), weight: (C, N), bias: (C,), all float32. rule: how it was fitted, for reports.
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
        """The indices of a text's terms and their values (M,): sublinear counts times idf, of Euclidean length 1."""
        words = re.findall(WORD, text[:MOST_CHARACTERS].lower())
        terms = (*words, *(" ".join(pair) for pair in pairwise(words)))
        counts = Counter(self.index[term] for term in terms if term in self.index)
        indices = np.array(list(counts), dtype=int)
        values = (1 + np.log(np.array(list(counts.values()), dtype=float))) * self.idf[indices]
        return indices, values / (np.linalg.norm(values) or 1.0)

    def outputs(self, texts: Sequence[str]) -> np.ndarray:
        """The outputs (B, C) for texts, as a head has them: log-probabilities, or numbers."""
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
    """Linear scores (B, C) as the outputs of a head: log-probabilities, or with C = 1 the numbers."""
    return log_softmax(scores) if scores.shape[1] > 1 else scores


def tfidf_of(model: LanguageModel) -> TfidfModel | None:
    """The TF-IDF model of an ensemble; None for a decoder alone."""
    part = model.parts.get(TFIDF)
    return part if isinstance(part, TfidfModel) else None


def with_tfidf(model: LanguageModel, tfidf: TfidfModel | None) -> LanguageModel:
    """The model with this TF-IDF model and no other; None removes it."""
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
