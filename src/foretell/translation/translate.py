"""Translation of sentences in batches, by beam search, greedily or by sampling; and evaluation of translations."""

from __future__ import annotations

import importlib
import importlib.util
import re
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from foretell.config.sampling import SamplingConfig
from foretell.data.memory import list_texts
from foretell.errors import ContextLengthError, UsageError, check_type, counted
from foretell.evaluation.loss import evaluate
from foretell.evaluation.material import PAIRS
from foretell.evaluation.overlap import Overlap, overlap_entry, overlap_lines, overlap_with
from foretell.generation.batch_generation import make_scheduler, result_of, run
from foretell.generation.beam import CachedSteps, Hypothesis, beam_search, length_penalty
from foretell.generation.sampling import Sampler
from foretell.generation.sequence import FinishReason, Rules
from foretell.generation.sequence import Sequence as TokenSequence
from foretell.translation.batches import PairObjective, evaluation_batches, make_source
from foretell.translation.config import BleuTokenizer
from foretell.translation.consensus import Candidates
from foretell.translation.pairs import Pair, hash_sources
from foretell.translation.translator import LENGTH_PENALTY, Translator
from foretell.typesetting.document import DocumentSection, Paragraph, Table
from foretell.typesetting.html import Shown

BEAM_SIZE = 5
LENGTH_PENALTIES = (0.0, 0.6, 1.0, 1.4, 2.0, 3.0)
ROWS_AT_ONCE = 320  # sentences times beams
LONGER, MORE = 2, 16  # a translation has at most LONGER times the tokens of its source plus MORE
BATCH_TOKENS = 4096
Decoded = tuple[list[int], float, FinishReason]  # (ids, score, finish reason)


@dataclass(frozen=True)
class Translation:
    """A sentence and its translation. score: the log-probability in nats divided by Wu's length penalty.

    finish_reason: end, or length if the model did not end the sentence.
    """

    source: str
    translation: str
    score: float
    ids: list[int]
    finish_reason: FinishReason

    def to_json(self) -> dict[str, Any]:
        return {"source": self.source, "translation": self.translation, "score": self.score}


@dataclass(frozen=True)
class Decoding:
    """The decoding method: beam search, greedy with one beam, or sampling if `sampling` is given.

    A beam search gives the hypothesis that is closest to all (consensus.py).
    alpha: the exponent of the length penalty (Wu et al. 2016); None for the model's.
    """

    beam_size: int = BEAM_SIZE
    alpha: float | None = None
    sampling: SamplingConfig | None = None

    def alpha_for(self, translator: Translator) -> float:
        own = LENGTH_PENALTY if translator.length_penalty is None else translator.length_penalty
        return own if self.alpha is None else self.alpha


def translate(
    translator: Translator, sentences: str | Sequence[str], decoding: Decoding = Decoding()
) -> list[Translation]:
    """Translate one or several sentences; blank ones stay blank. Sentences do not affect each other.

    Raises ContextLengthError for a sentence that is longer than the model's context.
    """
    return result_of(translating(translator, sentences, decoding))


def translating(
    translator: Translator, sentences: str | Sequence[str], decoding: Decoding
) -> Generator[None, None, list[Translation]]:
    """`translate`, which can be interrupted after each token."""
    check_type("the translator", translator, Translator, "a Translator", "foretell.load_translator makes one")
    sentences = list_texts(sentences)
    for index, sentence in enumerate(sentences):
        check_type(f"texts[{index}]", sentence, str, "a string")
    encoded = {
        index: translator.vocabulary.encode_source(sentence)
        for index, sentence in enumerate(sentences)
        if sentence.strip()
    }
    check_lengths(translator, sentences, encoded)
    results = {index: Translation(sentences[index], "", 0.0, [], "end") for index in range(len(sentences))}
    for members in groups_by_length(encoded, 1 if decoding.sampling else decoding.beam_size):
        decoded = yield from decode(translator, [encoded[index] for index in members], members, decoding)
        for index, (ids, score, reason) in zip(members, decoded, strict=True):
            text = translator.vocabulary.decode(ids)
            results[index] = Translation(sentences[index], text, score, ids, reason)
    return [results[index] for index in range(len(sentences))]


def groups_by_length(encoded: Mapping[int, list[int]], beams: int) -> Iterator[list[int]]:
    """The indices of sources in groups that are translated together, shortest first."""
    by_length, rows = sorted(encoded, key=lambda index: len(encoded[index])), max(1, ROWS_AT_ONCE // beams)
    return (by_length[first : first + rows] for first in range(0, len(by_length), rows))


def check_lengths(translator: Translator, sentences: Sequence[str], encoded: dict[int, list[int]]) -> None:
    limit = translator.model.config.context_length
    for index, ids in encoded.items():
        if len(ids) > limit:
            raise ContextLengthError(
                f"line {index + 1} has {len(ids)} tokens, but the model's context is {limit}; cut it into sentences: "
                f"'{sentences[index][:40]}'"
            )


def decode(
    translator: Translator, sources: list[list[int]], samples: list[int], decoding: Decoding
) -> Generator[None, None, list[Decoded]]:
    """The best translation of each source. samples: the indices of their random streams."""
    alpha = decoding.alpha_for(translator)
    if decoding.sampling is not None:
        return sample(translator, sources, samples, decoding.sampling, alpha)
    beams = yield from search(translator, sources, decoding.beam_size, alpha)
    chosen = [beam[Candidates(beam, translator.vocabulary).best(alpha)] for beam in beams]
    return [(best.ids, best.score, best.finish_reason) for best in chosen]


@torch.inference_mode()
def search(
    translator: Translator, sources: list[list[int]], beam_size: int, alpha: float
) -> Generator[None, None, list[list[Hypothesis]]]:
    """The hypotheses of each source by beam search, best score first."""
    model, vocabulary = translator.model, translator.vocabulary
    limits = [token_limit(translator, source) for source in sources]
    steps = CachedSteps(model.given(make_source(sources)), [[vocabulary.start_id]] * len(sources), max(limits))
    end_id, vocab_size = vocabulary.target_end_id, vocabulary.target.vocab_size
    return (yield from beam_search(steps, limits, end_id, beam_size, alpha, vocab_size))


def token_limit(translator: Translator, source: list[int]) -> int:
    return min(translator.model.config.context_length, LONGER * len(source) + MORE)


def sample(
    translator: Translator, sources: list[list[int]], samples: list[int], sampling: SamplingConfig, alpha: float
) -> list[Decoded]:
    """Sample translations token by token."""
    vocabulary = translator.vocabulary
    limits = [token_limit(translator, source) for source in sources]
    sampler, end_id = Sampler(sampling, vocabulary.target.vocab_size), vocabulary.target_end_id
    ends = frozenset([end_id])
    sequences = [
        TokenSequence([vocabulary.start_id], sample, rules=Rules(sampler, limit, ends, top_logprobs=0), row=row)
        for row, (sample, limit) in enumerate(zip(samples, limits, strict=True))
    ]
    logprobs = dict.fromkeys(sequences, 0.0)
    for sequence, _, token in run(make_scheduler(translator.model.given(make_source(sources)), sequences), sequences):
        logprobs[sequence] += token.logprob if token else 0.0
    return [
        (
            [token for token in sequence.generated if token != end_id],
            logprob / length_penalty(len(sequence.generated), alpha),
            sequence.finish_reason or "length",
        )
        for sequence, logprob in logprobs.items()
    ]


# --- BLEU and chrF, computed by sacrebleu (Post 2018) ----------------------------------------------------------------


@dataclass(frozen=True)
class Quality:
    """BLEU (Papineni et al. 2002) and chrF (Popović 2015), from 0 to 100, with sacrebleu's default settings.

    Only the tokenizer of BLEU is another one for some scripts (`choose_bleu_tokenizer`); the signature names it.

    bleu, chrf: with one reference per pair. brevity_penalty: the factor in `bleu` for translations that are shorter
    than their references, else 1. bleu_all_references: one translation per sentence, compared with all its references.
    """

    bleu: float
    chrf: float
    bleu_all_references: float
    pairs: int
    sentences: int
    signature: str
    brevity_penalty: float

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


NO_FOUR_WORDS = "BLEU counts runs of four words and is 0 for shorter sentences; chrF counts characters"


# Characters of scripts that sacrebleu's default tokenizer, 13a, does not divide into words, by the tokenizer that does
BY_SCRIPT: dict[BleuTokenizer, re.Pattern[str]] = {
    "ja-mecab": re.compile("[\u3041-\u30ff\uff66-\uff9f]"),  # kana
    "zh": re.compile("[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]"),
    "ko-mecab": re.compile("[\u1100-\u11ff\u3130-\u318f\uac00-\ud7af]"),
    "char": re.compile("[\u0e00-\u109f\u1780-\u17ff]"),  # Thai, Lao, Tibetan, Burmese, Khmer
}
NEEDS = {"ja-mecab": "MeCab", "ko-mecab": "mecab_ko"}  # modules of sacrebleu's extras; without them: char
LEAST_KANA = 0.1  # share of the characters of Japanese; Chinese has none


def choose_bleu_tokenizer(targets: Iterable[str]) -> BleuTokenizer:
    """sacrebleu's tokenizer for the most frequent script, of which a character counts like a word of other scripts."""
    text = " ".join(targets)
    counts: dict[BleuTokenizer, int] = {}
    for tokenizer, characters in BY_SCRIPT.items():
        text, counts[tokenizer] = characters.subn(" ", text)
    counts["13a"] = len(re.findall(r"[^\W\d_]+", text))
    if counts["ja-mecab"] > LEAST_KANA * counts["zh"]:
        counts["ja-mecab"] += counts.pop("zh")
    best = max(counts, key=lambda tokenizer: (counts[tokenizer], tokenizer == "13a"))
    return best if best not in NEEDS or importlib.util.find_spec(NEEDS[best]) else "char"


def load_sacrebleu() -> Any:
    """The package; a `UsageError` with the install command if it is missing."""
    try:
        return importlib.import_module("sacrebleu")
    except ModuleNotFoundError:
        raise UsageError("BLEU and chrF need the package sacrebleu: pip install 'foretell[translate]'") from None


def has_sacrebleu() -> bool:
    return importlib.util.find_spec("sacrebleu") is not None


def make_bleu(tokenizer: BleuTokenizer) -> Any:
    """sacrebleu's BLEU with a tokenizer; a `UsageError` if the tokenizer's packages are missing."""
    if tokenizer in NEEDS and not importlib.util.find_spec(NEEDS[tokenizer]):
        raise UsageError(f"BLEU with the tokenizer {tokenizer} needs: pip install 'sacrebleu[{tokenizer[:2]}]'")
    return load_sacrebleu().BLEU(tokenize=tokenizer)


def measure_quality(translator: Translator, pairs: Sequence[Pair], decoding: Decoding = Decoding()) -> Quality:
    """Translate each different source of the pairs once, and compare with the targets."""
    sources = list(dict.fromkeys(pair.source for pair in pairs))
    translations = translate(translator, sources, decoding)
    texts = {translation.source: translation.translation for translation in translations}
    return compare(pairs, texts, translator.bleu_tokenizer)


def compare(pairs: Sequence[Pair], translations: dict[str, str], tokenizer: BleuTokenizer | None = None) -> Quality:
    """The quality of translations, which are given by source sentence. tokenizer: by default by the targets' script."""
    bleu = make_bleu(tokenizer or choose_bleu_tokenizer(pair.target for pair in pairs))
    references: dict[str, list[str]] = {}
    for pair in pairs:
        references.setdefault(pair.source, []).append(pair.target)
    written, expected = [translations[pair.source] for pair in pairs], [pair.target for pair in pairs]
    single = bleu.corpus_score(written, [expected])
    signature = str(bleu.get_signature())
    most = max(map(len, references.values()))
    columns = [[(own + [None] * most)[index] for own in references.values()] for index in range(most)]
    every = bleu.corpus_score([translations[source] for source in references], columns).score
    chrf = load_sacrebleu().CHRF().corpus_score(written, [expected]).score
    return Quality(single.score, chrf, every, len(pairs), len(references), signature, round(single.bp, 4))


def choose_length_penalty(translator: Translator, pairs: Sequence[Pair]) -> dict[float, Quality]:
    """The quality for each of LENGTH_PENALTIES, sorted by BLEU, then chrF, best first.

    They weigh the hypotheses of one beam search.
    """
    sources = list(dict.fromkeys(pair.source for pair in pairs if pair.source.strip()))
    encoded = dict(enumerate(map(translator.vocabulary.encode_source, sources)))
    candidates: dict[str, Candidates] = {}
    for members in groups_by_length(encoded, BEAM_SIZE):
        sources_of_group = [encoded[index] for index in members]
        beams_of_group = result_of(search(translator, sources_of_group, BEAM_SIZE, LENGTH_PENALTY))
        for index, beam in zip(members, beams_of_group, strict=True):
            candidates[sources[index]] = Candidates(beam, translator.vocabulary)
    qualities = {}
    for alpha in LENGTH_PENALTIES:
        texts = {source: each.texts[each.best(alpha)] for source, each in candidates.items()}
        present = [pair for pair in pairs if pair.source in texts]
        qualities[alpha] = compare(present, texts, translator.bleu_tokenizer)

    def rank(alpha: float) -> tuple[float, float, float]:
        return -qualities[alpha].bleu, -qualities[alpha].chrf, abs(alpha - LENGTH_PENALTY)

    return {alpha: qualities[alpha] for alpha in sorted(qualities, key=rank)}


@dataclass(frozen=True)
class PairEvaluation(Shown):
    """Quality and loss on pairs. loss: nats per target token; left_out: pairs that do not fit the context."""

    quality: Quality
    loss: float
    tokens: int
    left_out: int
    overlap: Overlap | None = None

    def to_json(self) -> dict[str, Any]:
        figures = {"loss": self.loss, "tokens": self.tokens}
        return {**self.quality.to_json(), **figures, **overlap_entry(self.overlap)}

    def document(self) -> DocumentSection:
        quality, several = self.quality, self.quality.pairs > self.quality.sentences
        rows = [
            ("BLEU", f"{quality.bleu:.2f}", f"one reference per pair, brevity penalty {quality.brevity_penalty:.3f}"),
            ("chrF", f"{quality.chrf:.2f}", "one reference per pair"),
            *([("BLEU", f"{quality.bleu_all_references:.2f}", "all references of each sentence")] if several else []),
            ("loss", f"{self.loss:.4f}", "nats per target token"),
            ("pairs", f"{quality.pairs:,}", counted(quality.sentences, "sentence")),
        ]
        short = [Paragraph(NO_FOUR_WORDS)] if quality.bleu == 0 else []
        parts = [Table(("", "", ""), rows), *short, Paragraph(quality.signature), *overlap_lines(self.overlap)]
        return DocumentSection("", parts)


def evaluate_pairs(translator: Translator, pairs: Sequence[Pair], decoding: Decoding) -> PairEvaluation:
    """The quality of translations of pairs, and the loss of their targets."""
    encoded = translator.vocabulary.encode_pairs(pairs)
    limit = translator.model.config.context_length
    fitting = [pair for pair in encoded if max(pair.lengths) <= limit]
    if not fitting:
        raise ContextLengthError(f"no pair fits the model's context of {limit} tokens; give shorter sentences")
    measured = evaluate(PairObjective(translator.model), evaluation_batches(fitting, BATCH_TOKENS, limit))
    quality = measure_quality(translator, pairs, decoding)
    overlap = overlap_with(translator.data_use, hash_sources(pairs), PAIRS)
    return PairEvaluation(quality, measured.loss, measured.tokens, len(encoded) - len(fitting), overlap)
