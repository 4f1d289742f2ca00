"""BLEU and chrF of translations, computed by sacrebleu (Post 2018)."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from foretell.errors import ContextLengthError, UsageError
from foretell.evaluation.perplexity import evaluate
from foretell.translation.batches import PairObjective, evaluation_batches
from foretell.translation.pairs import Pair
from foretell.translation.translate import Decoding, translate
from foretell.translation.translator import Translator
from foretell.typesetting.document import DocumentSection, Paragraph, Table
from foretell.typesetting.notebook import Shown

BATCH_TOKENS = 4096


@dataclass(frozen=True)
class Quality:
    """BLEU (Papineni et al. 2002) and chrF (Popović 2015), from 0 to 100, with sacrebleu's default settings.

    bleu, chrf: one reference per pair. bleu_all_references: one translation per sentence, against all its references.
    """

    bleu: float
    chrf: float
    bleu_all_references: float
    pairs: int
    sentences: int
    signature: str

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def load_sacrebleu() -> Any:
    """The package; a `UsageError` with the install command if it is missing."""
    try:
        return importlib.import_module("sacrebleu")
    except ModuleNotFoundError:
        raise UsageError("BLEU and chrF need the package sacrebleu: pip install 'foretell[translate]'") from None


def has_sacrebleu() -> bool:
    """True if the package is installed."""
    return importlib.util.find_spec("sacrebleu") is not None


def measure_quality(translator: Translator, pairs: Sequence[Pair], decoding: Decoding = Decoding()) -> Quality:  # noqa: B008
    """Translate the source of every pair, each sentence once, and compare with the targets."""
    sources = list(dict.fromkeys(pair.source for pair in pairs))
    translations = translate(translator, sources, decoding)
    return compare(pairs, {translation.source: translation.translation for translation in translations})


def compare(pairs: Sequence[Pair], translations: dict[str, str]) -> Quality:
    """The quality of translations by source sentence."""
    sacrebleu = load_sacrebleu()
    references: dict[str, list[str]] = {}
    for pair in pairs:
        references.setdefault(pair.source, []).append(pair.target)
    written, expected = [translations[pair.source] for pair in pairs], [pair.target for pair in pairs]
    bleu = sacrebleu.BLEU()
    single = bleu.corpus_score(written, [expected]).score
    signature = str(bleu.get_signature())
    most = max(map(len, references.values()))
    columns = [[(own + [None] * most)[index] for own in references.values()] for index in range(most)]
    every = bleu.corpus_score([translations[source] for source in references], columns).score
    chrf = sacrebleu.CHRF().corpus_score(written, [expected]).score
    return Quality(single, chrf, every, len(pairs), len(references), signature)


@dataclass(frozen=True)
class PairEvaluation(Shown):
    """Quality and loss on pairs. loss: nats per target token; left_out: pairs that do not fit the context."""

    quality: Quality
    loss: float
    tokens: int
    left_out: int

    def to_json(self) -> dict[str, Any]:
        return {**self.quality.to_json(), "loss": self.loss, "tokens": self.tokens}

    def document(self) -> DocumentSection:
        quality = self.quality
        rows = [
            ("BLEU", f"{quality.bleu:.2f}", "one reference per pair"),
            ("chrF", f"{quality.chrf:.2f}", "one reference per pair"),
            ("BLEU", f"{quality.bleu_all_references:.2f}", "all references of each sentence"),
            ("loss", f"{self.loss:.4f}", "nats per target token"),
            ("pairs", f"{quality.pairs:,}", f"{quality.sentences:,} sentences"),
        ]
        return DocumentSection("", [Table(("", "", ""), rows), Paragraph(quality.signature)])


def evaluate_pairs(translator: Translator, pairs: Sequence[Pair], decoding: Decoding) -> PairEvaluation:
    """The quality of translations of pairs, and the loss of their targets."""
    encoded = translator.vocabulary.encode_pairs(pairs)
    limit = translator.model.config.context_length
    fitting = [pair for pair in encoded if max(pair.lengths) <= limit]
    if not fitting:
        raise ContextLengthError(f"no pair fits the model's context of {limit} tokens; give shorter sentences")
    measured = evaluate(PairObjective(translator.model), evaluation_batches(fitting, BATCH_TOKENS))
    quality = measure_quality(translator, pairs, decoding)
    return PairEvaluation(quality, measured.loss, measured.tokens, len(encoded) - len(fitting))
