"""Parity of an export: read the file back with independent code, compare with the model, and report differences.

The reader shares no code with the model or its file formats: it uses the format's own library, the textbook's forward
pass in NumPy, and the `tokenizers` library. export-report.json has the figures.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from typing import Any

import numpy as np
import tokenizers
import torch

from foretell.config.model import ModelConfig
from foretell.config.sampling import SamplingConfig
from foretell.convert.family import Family
from foretell.errors import OutputError, TokenizerError
from foretell.generation.batch_generation import generate
from foretell.generation.sampling import Sampler
from foretell.generation.sequence import Sequence as TokenSequence
from foretell.language_model import LanguageModel
from foretell.model.decoder import Decoder
from foretell.numerics.norms import in_float32
from foretell.text import Tokenizer
from foretell.textbook.attention import Matrix
from foretell.textbook.family import decoder_forward

FORMAT = 1
TEXTS = (
    "The quick brown fox jumps over the lazy dog.",
    "  if x == 0:\n\treturn None  # done",
    "1234567890, 3.14 and -7e10!",
    "Ελληνικά, 漢字, 🙂 and e\u0301.",
)
PROMPT, CONTINUATION, SPREAD = 16, 8, 24  # tokens
ABSOLUTE, RELATIVE = 1e-4, 1e-5  # bounds of a float32 logit difference, absolute and relative to the largest logit
DIVERGENCE = 1e-6  # nats


@dataclass(frozen=True)
class ReadBack:
    """An export read back by independent code, with weights by module path in float32."""

    config: ModelConfig
    weights: Mapping[str, Matrix]
    tokenizer: tokenizers.Tokenizer
    reader: str  # the libraries used, with versions


@dataclass(frozen=True)
class Probe:
    """A prompt and the model's greedy continuation; text is None if the ids do not come from a text."""

    text: str | None
    prompt: list[int]
    continuation: list[int]

    @property
    def ids(self) -> list[int]:
        return self.prompt + self.continuation


@dataclass(frozen=True)
class Comparison:
    """Agreement of the reader with the model on one probe."""

    text: str | None
    tokens: int
    logit_difference: float  # largest difference
    logit_bound: float
    divergence: float  # largest divergence between next-token distributions, in nats
    greedy_tokens: int
    greedy_same: int  # tokens that are also the reader's most likely, or tied with it within the bound

    def problem(self) -> str | None:
        """The first bound that is missed, or None."""
        name = f"on {self.text!r}" if self.text else "on tokens spread over the vocabulary"
        if not self.logit_difference <= self.logit_bound:  # `not <=`, so that NaN is also a problem
            return f"logits differ by {self.logit_difference:.2g} {name}; allowed: {self.logit_bound:.2g}"
        if not self.divergence <= DIVERGENCE:
            return f"next tokens diverge by {self.divergence:.2g} nats {name}; allowed: {DIVERGENCE:.2g}"
        if self.greedy_same < self.greedy_tokens:
            return f"the greedy text differs after {self.greedy_same} of {self.greedy_tokens} tokens {name}"
        return None


def report_head(family: Family, dtype: str) -> dict[str, Any]:
    """The first entries of every export's report."""
    return {
        "format": FORMAT,
        "foretell": version("foretell"),
        "family": family.name,
        "architecture": family.architecture,
        "dtype": dtype,
    }


def check_parity(export: ReadBack, model: LanguageModel, prepare: Callable[[str], str] = str) -> dict[str, Any]:
    """Compare an export with the model; returns the report, or raises an `OutputError` that names the missed bound.

    `prepare` is applied to each text before the reader's tokenizer encodes it.
    """
    probes = make_probes(model)
    comparisons = compare_all(probes, model.decoder, export)
    if any(comparison.problem() for comparison in comparisons):  # rounding to float32 alone may miss a bound: Gemma's
        precise = {path: weight.astype(np.float64) for path, weight in export.weights.items()}
        comparisons = compare_all(probes, deepcopy(model.decoder).double(), replace(export, weights=precise))
    checked = compare_tokenizers(export.tokenizer, model.tokenizer, prepare)
    problem = next((problem for problem in map(Comparison.problem, comparisons) if problem), None)
    if problem or checked["same"] < checked["texts"]:
        reason = problem or f"the tokenizer reads {checked['different']!r} differently"
        raise OutputError(f"the export differs from the model: {reason}; nothing was kept")
    return {
        "reader": export.reader,
        "bounds": {"logit": ABSOLUTE, "logit_relative": RELATIVE, "divergence": DIVERGENCE},
        "probes": [asdict(comparison) for comparison in comparisons],
        "tokenizer": checked,
    }


def compare_all(probes: Sequence[Probe], decoder: Decoder, export: ReadBack) -> list[Comparison]:
    """Compare all logits, in the precision of the weights."""
    return [
        compare(probe, logits_of(decoder, probe.ids), decoder_forward(export.config, export.weights, probe.ids))
        for probe in probes
    ]


def make_probes(model: LanguageModel) -> list[Probe]:
    """The probe texts, and tokens spread over the model's vocabulary."""
    size = model.decoder.config.vocab_size
    spread = [index * (size - 1) // (SPREAD - 1) for index in range(SPREAD)]
    texts = [(text, encoded(model.tokenizer, text)) for text in probe_texts(model.tokenizer)]
    return [make_probe(model, text, ids) for text, ids in [*texts, (None, spread)]]


def probe_texts(tokenizer: Tokenizer) -> list[str]:
    """The TEXTS that the vocabulary can encode, and a text made of its tokens."""
    ids = sorted({index * (tokenizer.vocab_size - 1) // (SPREAD - 1) for index in range(SPREAD)})
    plain = [token for token in ids if tokenizer.has(token) and token not in tokenizer.special_tokens.values()]
    return [text for text in (*TEXTS, tokenizer.decode(plain)) if encoded(tokenizer, text)]


def encoded(tokenizer: Tokenizer, text: str) -> list[int]:
    """The ids of a text; empty if the vocabulary cannot encode it."""
    try:
        return tokenizer.encode(text)
    except TokenizerError:
        return []


def make_probe(model: LanguageModel, text: str | None, ids: list[int]) -> Probe:
    """The beginning of the text that fits, and its greedy continuation."""
    context_length = model.decoder.config.context_length
    prompt = ids[: max(1, min(PROMPT, 2 * context_length // 3))]
    count = min(CONTINUATION, context_length - len(prompt))
    greedy = Sampler(SamplingConfig(temperature=0, top_p=1.0))
    drawn = [event.token for event in generate(model.decoder, [TokenSequence(prompt)], greedy, count)]
    return Probe(text, prompt, drawn)


@torch.inference_mode()
def logits_of(decoder: Decoder, ids: Sequence[int]) -> Matrix:
    """The model's own logits (T, V)."""
    return in_float32(decoder(torch.tensor([ids]))[0]).numpy()


def compare(probe: Probe, ours: Matrix, theirs: Matrix) -> Comparison:
    """Compare the logits (T, V) of the model and of the reader on one probe."""
    bound = max(ABSOLUTE, RELATIVE * float(np.abs(ours).max()))
    first = len(probe.prompt) - 1
    predicting = theirs[first : first + len(probe.continuation)]
    gaps = [float(row.max() - row[token]) for row, token in zip(predicting, probe.continuation, strict=True)]
    return Comparison(
        text=probe.text,
        tokens=len(probe.ids),
        logit_difference=float(np.abs(ours - theirs).max()),
        logit_bound=bound,
        divergence=divergence(ours, theirs),
        greedy_tokens=len(gaps),
        greedy_same=sum(gap <= 2 * bound for gap in gaps),
    )


def divergence(ours: Matrix, theirs: Matrix) -> float:
    """The largest Kullback-Leibler divergence between next-token distributions, from logits (T, V), in nats."""
    first, second = (torch.from_numpy(logits).double().log_softmax(-1) for logits in (ours, theirs))
    return max(0.0, float((first.exp() * (first - second)).sum(-1).max()))


def compare_tokenizers(theirs: tokenizers.Tokenizer, ours: Tokenizer, prepare: Callable[[str], str]) -> dict[str, Any]:
    """Encode and decode the probe texts with both tokenizers; returns the number that agree, and those that do not."""
    texts = probe_texts(ours)
    different = [
        text
        for text in texts
        if (ids := ours.encode(text)) != theirs.encode(prepare(text), add_special_tokens=False).ids
        or theirs.decode(ids, skip_special_tokens=False) != ours.decode(ids)
    ]
    return {"texts": len(texts), "same": len(texts) - len(different), "different": different}


def rounding(model: LanguageModel, written: LanguageModel) -> dict[str, float]:
    """The differences caused only by rounding to a smaller precision, on the same probes."""
    pairs = [
        (logits_of(model.decoder, probe.ids), logits_of(written.decoder, probe.ids)) for probe in make_probes(model)
    ]
    return {
        "logit_change": max(float(np.abs(before - after).max()) for before, after in pairs),
        "divergence": max(divergence(before, after) for before, after in pairs),
    }
