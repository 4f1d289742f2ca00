"""The translation task: training of an encoder-decoder, with translations of held-out sentences."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from foretell.data.batch import PADDING
from foretell.data.data_use import DataUse
from foretell.errors import TrainingError
from foretell.evaluation.loss import describe_first_loss, evaluate, first_loss
from foretell.evaluation.material import PAIRS
from foretell.evaluation.replayed_row import ReplayedRow, ReplayedToken
from foretell.session.task import Sample, Task
from foretell.system.device import autocast
from foretell.training.mask_check import ROWS, Probe, after_borders, check_probes, other_tokens
from foretell.translation.batches import EncodedPair, PairBatch, PairLoader, PairObjective, evaluation_batches
from foretell.translation.config import PairConfig, TranslationConfig
from foretell.translation.encoder_decoder import EncoderDecoder
from foretell.translation.pairs import Pair, Vocabulary, hash_sources
from foretell.translation.translate import Decoding, has_sacrebleu, measure_quality, translate
from foretell.translation.translator import Translator, save_translator

SAMPLES = 4
QUALITY_PAIRS = 200  # held-out pairs translated at each evaluation
GREEDY = Decoding(beam_size=1)
# CPU time of the beam search that chooses the length penalty, in units of translating QUALITY_PAIRS greedily. Measured
# with one thread on English-French pairs, tiny: 3.4 after 154 steps, 3.9 after 266.
BEAM_COST = 4.0


@dataclass(frozen=True)
class PairData:
    """The training pairs and held-out pairs of a run."""

    train: Sequence[Pair]
    validation: Sequence[Pair]

    @cached_property
    def digest(self) -> str:
        digest = hashlib.sha256()
        for pair in (*self.train, *self.validation):
            digest.update(f"{pair.source}\t{pair.target}\n".encode())
        return digest.hexdigest()[:16]


@dataclass(frozen=True)
class PairText:
    """The pairs of a run and the vocabularies made from them."""

    pairs: PairData
    vocabulary: Vocabulary

    @cached_property
    def train(self) -> list[EncodedPair]:
        """The training pairs, encoded once for all sizes that are compared: 100,000 pairs take three seconds."""
        return self.vocabulary.encode_pairs(self.pairs.train)

    @cached_property
    def validation(self) -> list[EncodedPair]:
        """The held-out pairs, encoded."""
        return self.vocabulary.encode_pairs(self.pairs.validation)


class TranslationTask(Task):
    """Translation by teacher forcing."""

    material = PAIRS
    held_out_setting = "pairs.validation_fraction"

    def __init__(
        self,
        config: TranslationConfig,
        text: PairText,
        model: EncoderDecoder,
        loader: PairLoader,
    ):
        self.config, self.text = config, text
        self.data, self.vocabulary = text.pairs, text.vocabulary
        self.encoder_decoder = self.model = model
        self.loader = loader
        self.row_length = config.pairs.longest
        self.objective = PairObjective(model, label_smoothing=config.training.label_smoothing)
        self.left_out = len(text.train) - len(loader.pairs)
        self.held_out = fitting(text.validation, config.pairs)
        self.has_held_out = bool(self.held_out)

    @property
    def translator(self) -> Translator:
        tokenizer = self.config.pairs.bleu_tokenizer
        return Translator(self.encoder_decoder, self.vocabulary, bleu_tokenizer=tokenizer)

    @property
    def quality_pairs(self) -> Sequence[Pair]:
        """The held-out pairs to translate at each evaluation and to choose the length penalty with."""
        return self.data.validation[:QUALITY_PAIRS]

    def batch(self, step: int) -> PairBatch:
        return self.loader.batch(step)

    def row_as_text(self, row: PairBatch, step: int, index: int) -> ReplayedRow:
        """The sentences of each pair: the source, then the targets with their losses."""
        assert isinstance(self.objective, PairObjective)
        losses, row = self.objective.token_losses(row)[0].tolist(), row.to("cpu")
        assert row.source.document_ids is not None
        sides = (
            (self.vocabulary.source, row.source.ids[0], row.source.document_ids[0], [None] * len(row.source.ids[0])),
            (self.vocabulary.target, row.targets[0], row.document_ids[0], losses),
        )
        tokens = [
            ReplayedToken(each, tokenizer.decode([each]), loss, document)
            for tokenizer, ids, documents, of_side in sides
            for each, document, loss in zip(ids.tolist(), documents.tolist(), of_side, strict=True)
            if document != PADDING
        ]
        return ReplayedRow(None, sorted(tokens, key=lambda token: token.document or 0))

    def evaluate(self, dtype: torch.dtype) -> Mapping[str, float]:
        """The loss per target token and, if sacrebleu is installed, BLEU of greedy translations.

        Their durations give the estimated duration of the closing report (a beam search), in evaluations.
        """
        if not self.held_out:
            return {}
        began = time.perf_counter()
        batches = evaluation_batches(self.held_out, self.config.pairs.batch_tokens, self.config.model.context_length)
        figures = {"validation_loss": evaluate(self.objective, batches, dtype).loss}
        if has_sacrebleu():
            translating = time.perf_counter()
            figures["bleu"] = measure_quality(self.translator, self.quality_pairs, GREEDY).bleu
            ended = time.perf_counter()
            self.closing_evaluations = BEAM_COST * (ended - translating) / (ended - began)
        return figures

    def samples(self) -> list[Sample]:
        """Some held-out sentences, translated."""
        pairs = self.data.validation or self.data.train
        sources = list(dict.fromkeys(pair.source for pair in pairs))
        chosen = sources[:: max(1, len(sources) // SAMPLES)][:SAMPLES]
        return [Sample(f"{each.source} → ", each.translation) for each in translate(self.translator, chosen, GREEDY)]

    def save_model(self, directory: Path) -> None:
        save_translator(directory, self.translator)

    def data_use(self) -> DataUse:
        return DataUse.of([hash_sources(self.data.train)], [hash_sources(self.data.validation)])

    def fingerprints(self) -> dict[str, str]:
        both = f"{self.vocabulary.source.fingerprint} {self.vocabulary.target.fingerprint}"
        return {"tokenizer": both, "pairs": self.data.digest}

    def check(self, batch: PairBatch, dtype: torch.dtype) -> None:
        """Refuse a model that sees the future or padding, or that does not read its source."""
        check_pair_mask(self.encoder_decoder, batch, dtype)

    def describe_start(self, batch: PairBatch, dtype: torch.dtype) -> list[str]:
        return [describe_first_loss(first_loss(self.objective, batch, dtype), self.config.model.vocab_size)]


def fitting(pairs: Sequence[EncodedPair], config: PairConfig) -> list[EncodedPair]:
    """The pairs whose sentences have at most `longest` tokens."""
    return [pair for pair in pairs if max(pair.lengths) <= config.longest]


def check_pair_mask(model: EncoderDecoder, batch: PairBatch, dtype: torch.dtype = torch.float32) -> None:
    """Refuse to train a model that leaks or does not read its source; a `TrainingError` names the module.

    Later targets must not affect earlier values or the encoder. Padding of the source and other pairs of the row must
    not affect anything.
    A different source must change the target's losses.
    """
    every = max(1, len(batch) // ROWS)  # rows of all lengths
    batch = with_padding(batch.rows(0, ROWS * every, every), model.config.context_length)
    objective = PairObjective(model)
    check_probes(objective, batch, probes_of(batch), dtype)
    check_source_is_read(objective, batch, dtype)


def with_padding(batch: PairBatch, context_length: int) -> PairBatch:
    """The batch with up to two more columns of padding after the source, if the context has room."""
    source = batch.source
    assert source.positions is not None
    assert source.document_ids is not None
    columns = (0, max(0, min(2, context_length - source.ids.shape[1])))
    longer = replace(
        source,
        ids=F.pad(source.ids, columns),
        positions=F.pad(source.positions, columns),
        document_ids=F.pad(source.document_ids, columns, value=PADDING),
    )
    return replace(batch, source=longer)


def probes_of(batch: PairBatch) -> list[Probe]:
    """The probes: nothing replaced; later targets; the source's padding; all pairs except the first of each row."""
    source, future = batch.source, after_borders(batch.ids)
    assert source.document_ids is not None
    is_real = source.document_ids != PADDING  # (B, S)
    everywhere = torch.ones_like(batch.ids, dtype=torch.bool)
    first, first_source = batch.document_ids == 0, source.document_ids == 0
    later = replace(batch, ids=other_tokens(batch.ids, future))
    padding = replace(batch, source=replace(source, ids=other_tokens(source.ids, ~is_real)))
    others = replace(
        batch, ids=other_tokens(batch.ids, ~first), source=replace(source, ids=other_tokens(source.ids, ~first_source))
    )
    return [
        Probe("returns different outputs for the same batch", batch, by_side(is_real, everywhere)),
        Probe("sees the future", later, by_side(is_real, ~future)),
        Probe("sees the source's padding", padding, by_side(is_real, everywhere)),
        Probe("sees another pair", others, by_side(first_source, first)),
    ]


def by_side(encoder: Tensor, decoder: Tensor) -> Callable[[str], Tensor]:
    """The protected positions for modules of the encoder (B, S) and for all others (B, T)."""
    return lambda path: encoder if path.partition(".")[0] == "encoder" else decoder


@torch.no_grad()
def check_source_is_read(objective: PairObjective, batch: PairBatch, dtype: torch.dtype) -> None:
    """Refuse a model whose losses are the same for another source."""
    everything = torch.ones_like(batch.source.ids, dtype=torch.bool)
    other = replace(batch, source=replace(batch.source, ids=other_tokens(batch.source.ids, everything)))
    with autocast(batch.ids.device, dtype):
        before, after = (objective.token_losses(each) for each in (batch, other))
    if torch.equal(before, after) and not torch.equal(batch.source.ids, other.source.ids):
        raise TrainingError(
            "the losses are the same for another source, so no step was taken: the decoder does not read the encoder; "
            "check trunk.blocks.0.cross_attention and the memory that it gets"
        )
