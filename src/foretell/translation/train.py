"""`TranslationTraining`: the declaration of training on sentence pairs, and its request."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch

from foretell.config.section import Section, make_section
from foretell.config.training import TrainingConfig
from foretell.distributed.world import current_world
from foretell.errors import CheckpointError, ConfigError, counted
from foretell.model.presets import preset
from foretell.runs.record import RunRecord
from foretell.runs.run import Run
from foretell.saved_model.config_file import FORMAT_WITH_PARTS, read_entries
from foretell.session.budget import FEWEST_STEPS, PAIRS, SizeCost
from foretell.session.declaration import ChosenConfig, Machine, Training, describe_recipe
from foretell.session.fit import Footprint
from foretell.session.reporter import Reporter
from foretell.session.request import TrainingRequest, default_dropout
from foretell.session.start import Start
from foretell.session.state import SessionState
from foretell.storage.files import CONFIG, MODEL_TYPE, TOKENIZER_FILE, open_regular, sync, write_text
from foretell.text import load_tokenizer
from foretell.translation.batches import PairLoader
from foretell.translation.config import (
    DROPOUT_BY_EPOCHS,
    PRESETS,
    SIZES,
    EncoderDecoderConfig,
    PairConfig,
    TranslationConfig,
    shape_config,
    training_defaults,
)
from foretell.translation.encoder_decoder import EncoderDecoder, make_encoder_decoder, weight_shapes
from foretell.translation.options import TranslationOptions
from foretell.translation.pair_information import give_similar_vectors
from foretell.translation.pairs import (
    Pair,
    make_vocabulary,
    read_pairs,
    split_pairs,
    train_vocabulary,
    without_known,
)
from foretell.translation.task import PairData, PairText, TranslationTask, fitting
from foretell.translation.translate import choose_bleu_tokenizer, choose_length_penalty, has_sacrebleu
from foretell.translation.translator import (
    DECODING,
    LENGTH_PENALTY,
    SOURCE_TOKENIZER_FILE,
    DecodingConfig,
    DecodingPart,
    load_saved,
)

MOST_EPOCHS = 30  # more passes over the same pairs mostly memorise them
WIDE, LARGER_BATCH = 192, 4096  # from this width on, larger batches learn more: docs/translation-reference.md

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class PairRequest(TranslationOptions, TrainingRequest):
    config_type: ClassVar[type[Section]] = TranslationConfig

    paths: Sequence[str | Path] = ()
    pairs: PairData | None = None  # instead of files

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.size is not None:
            preset(self.size, PRESETS)
        if "batch_size" in self.section("training"):
            raise ConfigError("batches are counted in tokens here: give --pairs.batch-tokens instead")
        if self.dev is not None and "validation_fraction" in self.section("pairs"):
            raise ConfigError("pairs.validation_fraction holds out a share of the pairs, and dev is a file of them")
        self.configured("tokenizer"), self.configured("pairs")

    @property
    def described(self) -> list[str]:
        return [str(path) for path in self.paths] or ([] if self.pairs is None else ["pairs from Python"])

    @property
    def choices(self) -> dict[str, Any]:
        named = {"reverse": self.reverse or None, "columns": list(self.columns) or None}
        is_shared = False if self.separate_vocabularies else None
        return {"is_shared": is_shared, "dev": self.dev and str(self.dev), **named}


class TranslationTraining(Training[PairRequest, TranslationTask]):
    """Training on sentence pairs. The run stores the pairs and both tokenizers."""

    verb = "train --task translate"
    curve = PAIRS

    def __init__(self, request: PairRequest):
        super().__init__(request)
        self.loaders: dict[tuple[PairConfig, int, int, int], PairLoader] = {}

    def read(self, run: Run, reporter: Reporter) -> PairText:
        request = self.request
        pairs = request.pairs or read_data(request)
        vocabulary = train_vocabulary(
            pairs.train, request.configured("tokenizer"), is_shared=not request.separate_vocabularies
        )
        text = PairText(pairs, vocabulary)
        store(text, run.tokens)
        return text

    def reopen(self, run: Run, record: RunRecord) -> PairText:
        return stored(run.tokens)

    def choose(self, data: PairText, machine: Machine) -> ChosenConfig:
        request, vocabulary = self.request, data.vocabulary
        sizes: dict[str, Any] = {"vocab_size": vocabulary.target.vocab_size}
        if not vocabulary.is_shared:
            sizes["source_vocab_size"] = vocabulary.source.vocab_size
        bleu_tokenizer = choose_bleu_tokenizer(pair.target for pair in data.pairs.train)
        pairs = {"bleu_tokenizer": bleu_tokenizer, **request.section("pairs")}
        shapes = {
            name: shape_config(name, request.section("model"), **sizes)
            for name in ((request.size,) if request.size else SIZES)
        }
        dropout = default_dropout(MOST_EPOCHS, DROPOUT_BY_EPOCHS)
        configs = {name: self.config(shape, pairs, dropout, 1) for name, shape in shapes.items()}
        loader = self.loader(data, next(iter(configs.values())))
        size, reasons = request.size, []
        if size is None:
            size, reason = self.timed_size(configs, data, machine, int(loader.lengths.sum()))
            reasons.append(reason)
        per_epoch = self.loader(data, configs[size]).batches_per_epoch
        most = max(FEWEST_STEPS, MOST_EPOCHS * per_epoch)
        steps, reason = self.timed_steps(configs[size], data, machine, most)
        config = self.config(shapes[size], pairs, default_dropout(steps / per_epoch, DROPOUT_BY_EPOCHS), steps)
        reasons.append(f"steps       {steps:,} ({steps / per_epoch:.1f} times the pairs): {reason}")
        return ChosenConfig(config, size, reasons, most_steps=most)

    def cost(self, config: TranslationConfig, data: PairText) -> SizeCost:
        loader, weights = self.loader(data, config), weight_shapes(config.model)
        flops = config.model.training_flops_per_token(sum(map(math.prod, weights.values())))
        return SizeCost.of(weights, config.training, int(loader.lengths.sum()) / loader.batches_per_epoch, flops)

    def config(
        self, model: EncoderDecoderConfig, pairs: dict[str, Any], dropout: dict[str, float], steps: int
    ) -> TranslationConfig:
        """The configuration: recipe and dropout, with the user's settings."""
        request = self.request
        chosen = {"steps": steps, **request.section("training")}
        steps = make_section(TrainingConfig, chosen, "training").steps
        training = {**training_defaults(model, steps), **chosen}
        pairs = {**({"batch_tokens": LARGER_BATCH} if model.width >= WIDE else {}), **pairs}
        return TranslationConfig(
            model=model if "dropout" in request.section("model") else model.replaced(dropout=dropout),
            tokenizer=request.configured("tokenizer"),
            pairs=make_section(PairConfig, pairs, "pairs"),
            training=make_section(TrainingConfig, training, "training"),
        )

    def loader(self, data: PairText, config: TranslationConfig) -> PairLoader:
        """The batches of a run, made once."""
        seed, context_length = config.training.seed, config.model.context_length
        fewest = current_world().size * config.training.gradient_accumulation_steps
        key = config.pairs, seed, context_length, fewest
        if key not in self.loaders:
            pairs = fitting(data.train, config.pairs)
            self.loaders[key] = PairLoader(pairs, config.pairs.batch_tokens, seed, context_length, fewest)
        return self.loaders[key]

    def footprint(self, config: TranslationConfig, data: PairText) -> Footprint:
        """A lower bound: the rows of a step if both sides have their maximum length."""
        rows = max(1, config.pairs.batch_tokens // (2 * config.pairs.longest))
        row = config.model.encoder.replaced(context_length=config.pairs.longest, vocab_size=config.model.vocab_size)
        return Footprint(weight_shapes(config.model), row, rows)

    def first_model(self, config: TranslationConfig, data: PairText, start: Start | None) -> EncoderDecoder:
        model = make_encoder_decoder(config.model, config.training.seed)
        if config.training.similar_vectors:
            give_similar_vectors(model, self.loader(data, config).pairs, config.training.seed)
        return model

    def load_model(self, directory: Path, device: torch.device) -> EncoderDecoder:
        return load_saved(directory, device, for_training=True).model

    def make_task(self, config: TranslationConfig, data: PairText, model: EncoderDecoder) -> TranslationTask:
        return TranslationTask(config, data, model, self.loader(data, config))

    def closed(self, session: SessionState[TranslationTask]) -> None:
        """Choose the length penalty of the best checkpoint on held-out pairs, unless it has one."""
        pairs = session.task.quality_pairs
        if not session.world.is_first or not pairs or not has_sacrebleu():
            return
        best = session.run.best()
        translator = load_saved(best.directory, session.device)
        if translator.length_penalty is not None:
            return
        qualities = choose_length_penalty(translator, pairs)
        (alpha, quality), *_ = qualities.items()
        before = qualities[LENGTH_PENALTY]
        logger.info(
            f"decoding    length penalty {alpha:g}: BLEU {quality.bleu:.1f} (tokenizer {translator.bleu_tokenizer}), "
            f"chrF {quality.chrf:.1f}, brevity penalty {quality.brevity_penalty:.3f} on {len(pairs):,} held-out pairs "
            f"({LENGTH_PENALTY:g}: {before.bleu:.1f}, {before.brevity_penalty:.3f})"
        )
        settings = DecodingConfig(length_penalty=alpha, bleu_tokenizer=translator.bleu_tokenizer)
        parts = read_entries(best.directory) | {DECODING: {"kind": DECODING, **DecodingPart(settings).config()}}
        best.replace_json(CONFIG, {"model_type": MODEL_TYPE, "format": FORMAT_WITH_PARTS, "parts": parts})

    def describe(self, task: TranslationTask) -> list[str]:
        data, model, training, loader = task.data, task.config.model, task.config.training, task.loader
        parameters = sum(weight.numel() for weight in task.model.parameters())
        sizes = {tokenizer.vocab_size for tokenizer in (task.vocabulary.source, task.vocabulary.target)}
        kind = "one vocabulary" if task.vocabulary.is_shared else "two vocabularies"
        longest, dev = task.config.pairs.longest, task.record.task.get("dev")
        left_out = f"{counted(task.left_out, 'pair')} with more than {longest} tokens in a sentence (pairs.longest)"
        return [
            f"pairs       {len(data.train):,} to learn from, {len(data.validation):,} held out"
            + (", by a hash of the source" if dev is None else f": {dev}"),
            f"tokens      {loader.lengths[:, 0].sum():,} source and {loader.lengths[:, 1].sum():,} target, {kind} of "
            f"{', '.join(f'{size:,}' for size in sorted(sizes))}",
            f"model       {task.record.size}, {parameters:,} parameters: "
            f"{model.encoder.num_layers} + {counted(model.num_layers, 'layer')}, {counted(model.num_heads, 'head')}, "
            f"width {model.width}",
            describe_recipe(
                training,
                f"{task.config.pairs.batch_tokens:,} tokens per step, dropout {model.dropout.residual:g}, label "
                f"smoothing {training.label_smoothing:g}",
            ),
            *([f"left out    {left_out}"] if task.left_out else []),
            *task.record.reasons,
        ]


def read_data(request: PairRequest) -> PairData:
    """The pairs of files and the held-out ones: from a file, else by the hash of their source."""
    pairs = read_pairs(request.paths, reverse=request.reverse, columns=request.columns)
    if request.dev is not None:
        held_out = read_pairs([request.dev], reverse=request.reverse, columns=request.columns)
        return PairData(without_known(pairs, held_out), held_out)
    parts = split_pairs(pairs, request.configured("pairs").validation_fraction)
    return PairData(parts["train"], parts["validation"])


def store(text: PairText, folder: Path) -> None:
    """Store pairs and tokenizers in the run, so that it can resume without the original files."""
    for name, pairs in (("train.tsv", text.pairs.train), ("validation.tsv", text.pairs.validation)):
        write_text(folder / name, "".join(f"{pair.source}\t{pair.target}\n" for pair in pairs))
    vocabulary = text.vocabulary
    for name, tokenizer in ((TOKENIZER_FILE, vocabulary.target), (SOURCE_TOKENIZER_FILE, vocabulary.source)):
        tokenizer.save(folder / name)
        sync(folder / name)


def stored(folder: Path) -> PairText:
    """The pairs and vocabularies written by `store`."""
    sides = []
    for name in ("train.tsv", "validation.tsv"):
        try:
            with open_regular(folder / name) as file:
                lines = file.read().decode("utf-8").split("\n")  # read_text would also split at CR
        except (OSError, UnicodeDecodeError) as error:
            raise CheckpointError(f"{folder / name} cannot be read: {error}; start again with another --out") from None
        sides.append([Pair(*line.split("\t")) for line in lines if line])
    tokenizers = (load_tokenizer(folder / name) for name in (SOURCE_TOKENIZER_FILE, TOKENIZER_FILE))
    return PairText(PairData(*sides), make_vocabulary(*tokenizers))


def resuming(out: Path) -> TranslationTraining:
    """The training that can resume a run."""
    return TranslationTraining(PairRequest(out=out))
