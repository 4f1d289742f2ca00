"""The proof of an export: what was written is read again by other means, and must say what the model says.

The reader shares neither the model's code nor the reader of its files: the library of the layout, the forward pass of
the textbook in NumPy, and the `tokenizers` library.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import tokenizers
import torch

from foretell.config import ModelConfig, SamplingConfig
from foretell.errors import OutputError, TokenizerError
from foretell.generation.engine import generate
from foretell.generation.sampling import Sampler
from foretell.generation.sequence import Sequence as GrowingText
from foretell.language_model import LanguageModel
from foretell.model.decoder import Decoder
from foretell.text import Tokenizer
from foretell.textbook.arrays import Matrix
from foretell.textbook.family.decoder import decoder_forward

TEXTS = (
    "The quick brown fox jumps over the lazy dog.",
    "  if x == 0:\n\treturn None  # done",
    "1234567890, 3.14 and -7e10!",
    "Ελληνικά, 漢字, 🙂 and e\u0301.",
)
PROMPT, CONTINUATION, SPREAD = 16, 8, 24  # tokens
ABSOLUTE, RELATIVE = 1e-4, 1e-5  # float32: of a logit, and of the largest logit where that allows more
DIVERGENCE = 1e-6  # nats


@dataclass(frozen=True)
class Reading:
    """What a reader that shares nothing with the writer found: weights by module path, in float32."""

    config: ModelConfig
    weights: Mapping[str, Matrix]
    tokenizer: tokenizers.Tokenizer
    reader: str  # its name and versions


@dataclass(frozen=True)
class Probe:
    """A prompt and the model's greedy continuation of it; text is None where the ids are none of a text."""

    text: str | None
    prompt: list[int]
    continuation: list[int]

    @property
    def ids(self) -> list[int]:
        return self.prompt + self.continuation


@dataclass(frozen=True)
class Finding:
    """How near the reader came to the model on one probe."""

    text: str | None
    tokens: int
    logit_difference: float  # the largest
    logit_bound: float
    divergence: float  # of the next token's distributions, in nats, the largest
    greedy_tokens: int
    greedy_same: int  # ... of which the reader finds likeliest as well, ties within the bound included

    def problem(self) -> str | None:
        """Which bound is missed, where one is."""
        name = f"on {self.text!r}" if self.text else "on tokens from all over the vocabulary"
        if not self.logit_difference <= self.logit_bound:  # so that a NaN is one too
            return f"logits differ by {self.logit_difference:.2g} {name}, and may by {self.logit_bound:.2g}"
        if not self.divergence <= DIVERGENCE:
            return f"next tokens diverge by {self.divergence:.2g} nats {name}, and may by {DIVERGENCE:.2g}"
        if self.greedy_same < self.greedy_tokens:
            return f"the greedy text differs after {self.greedy_same} of {self.greedy_tokens} tokens {name}"
        return None


def prove(reading: Reading, model: LanguageModel, prepare: Callable[[str], str] = str) -> dict[str, Any]:
    """Compare a reading with the model; the report, or an `OutputError` that says which bound was missed.

    `prepare` is what has to be done to a text before the reader's tokenizer gets it.
    """
    findings = [
        compare(probe, logits_of(model.decoder, probe.ids), decoder_forward(reading.config, reading.weights, probe.ids))
        for probe in make_probes(model)
    ]
    checked = check_tokenizer(reading.tokenizer, model.tokenizer, prepare)
    problem = next((problem for problem in map(Finding.problem, findings) if problem), None)
    if problem or checked["same"] < checked["texts"]:
        found = problem or f"the tokenizer reads {checked['different']!r} differently"
        raise OutputError(f"what was written does not say what the model says: {found}; nothing was kept")
    return {
        "reader": reading.reader,
        "bounds": {"logit": ABSOLUTE, "logit_relative": RELATIVE, "divergence": DIVERGENCE},
        "probes": [asdict(finding) for finding in findings],
        "tokenizer": checked,
    }


def make_probes(model: LanguageModel) -> list[Probe]:
    """The texts that the tokenizer can write, and tokens from all over the model's vocabulary."""
    size = model.decoder.config.vocab_size
    spread = [place * (size - 1) // (SPREAD - 1) for place in range(SPREAD)]
    texts = [(text, encoded(model.tokenizer, text)) for text in probe_texts(model.tokenizer)]
    return [make_probe(model, text, ids) for text, ids in [*texts, (None, spread)]]


def probe_texts(tokenizer: Tokenizer) -> list[str]:
    """Those of TEXTS that the vocabulary can write, and one that is made of its tokens."""
    ids = sorted({place * (tokenizer.vocab_size - 1) // (SPREAD - 1) for place in range(SPREAD)})
    plain = [token for token in ids if token not in tokenizer.special_tokens.values()]
    return [text for text in (*TEXTS, tokenizer.decode(plain)) if encoded(tokenizer, text)]


def encoded(tokenizer: Tokenizer, text: str) -> list[int]:
    """The ids of a text, none where the vocabulary cannot write it."""
    try:
        return tokenizer.encode(text)
    except TokenizerError:
        return []


def make_probe(model: LanguageModel, text: str | None, ids: list[int]) -> Probe:
    """As much of a text as fits, continued by the likeliest tokens."""
    context_length = model.decoder.config.context_length
    prompt = ids[: max(1, min(PROMPT, 2 * context_length // 3))]
    count = min(CONTINUATION, context_length - len(prompt))
    greedy = Sampler(SamplingConfig(temperature=0, top_p=1.0))
    drawn = [token for _, token in generate(model.decoder, [GrowingText(prompt)], greedy, count)]
    return Probe(text, prompt, drawn)


@torch.inference_mode()
def logits_of(decoder: Decoder, ids: Sequence[int]) -> Matrix:
    """The model's own logits (T, V)."""
    return decoder(torch.tensor([ids]))[0].float().numpy()


def compare(probe: Probe, ours: Matrix, theirs: Matrix) -> Finding:
    """Both logits (T, V) of one probe."""
    bound = max(ABSOLUTE, RELATIVE * float(np.abs(ours).max()))
    first = len(probe.prompt) - 1
    predicting = theirs[first : first + len(probe.continuation)]
    gaps = [float(row.max() - row[token]) for row, token in zip(predicting, probe.continuation, strict=True)]
    return Finding(
        text=probe.text,
        tokens=len(probe.ids),
        logit_difference=float(np.abs(ours - theirs).max()),
        logit_bound=bound,
        divergence=divergence(ours, theirs),
        greedy_tokens=len(gaps),
        greedy_same=sum(gap <= 2 * bound for gap in gaps),
    )


def divergence(ours: Matrix, theirs: Matrix) -> float:
    """The largest Kullback-Leibler divergence of two next-token distributions over (T, V) logits, in nats."""
    first, second = (log_softmax(logits.astype(np.float64)) for logits in (ours, theirs))
    return max(0.0, float((np.exp(first) * (first - second)).sum(-1).max()))


def log_softmax(logits: Matrix) -> Matrix:
    """Log-probabilities along the last dimension."""
    shifted = logits - logits.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


def check_tokenizer(theirs: tokenizers.Tokenizer, ours: Tokenizer, prepare: Callable[[str], str]) -> dict[str, Any]:
    """Do both write and read the probe texts alike?"""
    texts = probe_texts(ours)
    different = [
        text
        for text in texts
        if (ids := ours.encode(text)) != theirs.encode(prepare(text), add_special_tokens=False).ids
        or theirs.decode(ids, skip_special_tokens=False) != ours.decode(ids)
    ]
    return {"texts": len(texts), "same": len(texts) - len(different), "different": different}


def rounding(model: LanguageModel, written: LanguageModel) -> dict[str, float]:
    """What the smaller precision alone has changed, on the same probes."""
    pairs = [
        (logits_of(model.decoder, probe.ids), logits_of(written.decoder, probe.ids)) for probe in make_probes(model)
    ]
    return {
        "logit_change": max(float(np.abs(before - after).max()) for before, after in pairs),
        "divergence": max(divergence(before, after) for before, after in pairs),
    }
