"""The translation task: an encoder-decoder that learns to translate, and translates held-out sentences as it learns."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from foretell.errors import ConfigError
from foretell.evaluation.perplexity import evaluate
from foretell.model.kernels.dispatch import Use, choose_kernels
from foretell.session.task import Sample, Task
from foretell.translation.batches import EncodedPair, PairBatch, PairLoader, PairObjective, evaluation_batches
from foretell.translation.config import PairConfig, TranslationConfig
from foretell.translation.encoder_decoder import EncoderDecoder
from foretell.translation.mask_probes import check_pair_mask
from foretell.translation.pairs import Pair
from foretell.translation.quality import has_sacrebleu, measure_quality
from foretell.translation.translate import Decoding, translate
from foretell.translation.translator import Translator, save_translator
from foretell.translation.vocabulary import Vocabulary

LOGITS_AT_ONCE = 2**26  # elements: recomputing them in chunks would take a quarter of a step
SAMPLES = 4
QUALITY_PAIRS = 200  # held-out pairs translated at each evaluation
GREEDY = Decoding(beam_size=1)


@dataclass(frozen=True)
class PairData:
    """The pairs of a run: those to learn from and those held out."""

    train: Sequence[Pair]
    validation: Sequence[Pair]

    @cached_property
    def digest(self) -> str:
        """A hash of all pairs."""
        digest = hashlib.sha256()
        for pair in (*self.train, *self.validation):
            digest.update(f"{pair.source}\t{pair.target}\n".encode())
        return digest.hexdigest()[:16]


class TranslationTask(Task):
    """Translation by teacher forcing. `about` has the entries of run.json beyond the configuration."""

    def __init__(
        self,
        config: TranslationConfig,
        data: PairData,
        vocabulary: Vocabulary,
        model: EncoderDecoder,
        loader: PairLoader,
        about: dict[str, Any],
    ):
        self.config, self.data, self.vocabulary, self.about = config, data, vocabulary, about
        self.encoder_decoder = self.model = model
        self.loader = loader
        self.objective = PairObjective(model, LOGITS_AT_ONCE, config.training.label_smoothing)
        self.left_out = len(data.train) - len(loader.pairs)
        self.held_out = fitting(vocabulary.encode_pairs(data.validation), config.pairs)
        if config.training.patience is not None and not self.held_out:
            raise ConfigError(
                "training.patience waits for a better validation loss, and no pair is held out; leave it out, or "
                "raise pairs.validation_fraction"
            )

    @property
    def translator(self) -> Translator:
        """The model as it is now, in evaluation mode while it translates."""
        return Translator(self.encoder_decoder, self.vocabulary)

    def choose_kernels(self, device: torch.device, dtype: torch.dtype) -> None:
        choose_kernels(self.model, Use(device, dtype, self.config.pairs.longest, is_training=True))

    def batch(self, step: int) -> PairBatch:
        return self.loader.batch(step)

    def evaluate(self, dtype: torch.dtype) -> Mapping[str, float]:
        """The loss per target token, and BLEU of greedy translations where sacrebleu is installed."""
        if not self.held_out:
            return {}
        batches = evaluation_batches(self.held_out, self.config.pairs.batch_tokens)
        figures = {"validation_loss": evaluate(self.objective, batches, dtype).loss}
        if has_sacrebleu():
            self.model.eval()
            figures["bleu"] = measure_quality(self.translator, self.data.validation[:QUALITY_PAIRS], GREEDY).bleu
            self.model.train()
        return figures

    def samples(self) -> list[Sample]:
        """Some held-out sentences, translated."""
        pairs = self.data.validation or self.data.train
        sources = list(dict.fromkeys(pair.source for pair in pairs))
        chosen = sources[:: max(1, len(sources) // SAMPLES)][:SAMPLES]
        self.model.eval()
        translations = translate(self.translator, chosen, GREEDY)
        self.model.train()
        return [Sample(f"{each.source} → ", each.translation) for each in translations]

    def save_model(self, directory: Path) -> None:
        save_translator(directory, self.translator)

    def fingerprints(self) -> dict[str, str]:
        both = f"{self.vocabulary.source.fingerprint} {self.vocabulary.target.fingerprint}"
        return {"tokenizer": both, "pairs": self.data.digest}

    def record(self) -> dict[str, Any]:
        return {
            "config": self.config.model_dump(mode="json"),
            **self.about,
            "parameters": sum(parameter.numel() for parameter in self.model.parameters()),
        }

    def check(self, batch: PairBatch, dtype: torch.dtype) -> None:
        """Refuse a model that sees the future or padding, or that does not read its source."""
        check_pair_mask(self.encoder_decoder, batch, dtype)

    def describe_start(self, batch: PairBatch, dtype: torch.dtype) -> list[str]:
        expected = math.log(self.config.model.vocab_size)
        loss = evaluate(self.objective, [batch.rows(0, 4)], dtype).loss
        return [f"untrained   loss {loss:.2f}, ln({self.config.model.vocab_size:,}) = {expected:.2f}"]


def make_loader(data: PairData, vocabulary: Vocabulary, config: PairConfig, seed: int) -> PairLoader:
    """The batches of a run."""
    return PairLoader(fitting(vocabulary.encode_pairs(data.train), config), config.batch_tokens, seed)


def fitting(pairs: Sequence[EncodedPair], config: PairConfig) -> list[EncodedPair]:
    """The pairs whose sentences have at most `longest` tokens."""
    return [pair for pair in pairs if max(pair.lengths) <= config.longest]
