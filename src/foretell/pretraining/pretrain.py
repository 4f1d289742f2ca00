"""`TextTraining`: the definition of training on text."""

from __future__ import annotations

import shutil
from pathlib import Path

import torch

from foretell.config.training import Config
from foretell.config.weight_shapes import weight_shapes
from foretell.data.loader import check_enough_tokens
from foretell.data.rows import RowStream
from foretell.data.shards import TokenStore
from foretell.distributed.world import current_world
from foretell.errors import counted
from foretell.model.decoder import Decoder
from foretell.model.presets import SIZES
from foretell.pretraining import resolve
from foretell.pretraining.request import TextRequest
from foretell.pretraining.resolve import Facts, RowFacts
from foretell.pretraining.task import ContinuePrompt, TextTask
from foretell.pretraining.tokens import TokenizedText, open_tokens, tokenize_text
from foretell.pretraining.training_data import arrange, check_store
from foretell.runs.record import RunRecord
from foretell.runs.run import Run
from foretell.saved_model.parts_on_disk import load_decoder
from foretell.session.budget import TEXT, SizeCost, choose_steps, estimate_steps
from foretell.session.declaration import ChosenConfig, Machine, Training, describe_model, describe_recipe
from foretell.session.fit import Footprint, check_model_fits
from foretell.session.reporter import Reporter
from foretell.session.start import Start
from foretell.storage.files import sync
from foretell.training.similar_vectors import MOST_TOKENS, information_of_neighbors, set_similar_vectors

NOT_HELD_OUT = (
    "held out    nothing: the text is too short, so there is no validation loss and the last step is the best"
)


class TextTraining(Training[TextRequest, TextTask]):
    """Training on text. The run keeps the token shards and the tokenizer."""

    verb = "train"
    curve = TEXT
    probe_seconds = 2.0
    known_rows: RowFacts | None = None

    def __init__(self, request: TextRequest, continue_prompt: ContinuePrompt):
        """continue_prompt: writes the samples that are shown during training."""
        super().__init__(request)
        self.continue_prompt = continue_prompt

    def check_early(self, machine: Machine) -> None:
        """Refuse a size that is too large even without a vocabulary."""
        if (size := self.request.size) is not None:
            model = self.request.model_config(size, vocab_size=1)
            training = resolve.training_config(self.request, size, model, steps=1)
            check_model_fits(weight_shapes(model), training, machine.memory)

    def read(self, run: Run, reporter: Reporter) -> TokenizedText:
        """The tokens of the request: an existing store, or a new one inside the run."""
        request = self.request
        if request.tokens is None:
            return tokenize_text(
                request.source,
                request.configured("tokenizer"),
                request.configured("data"),
                run.tokens,
                reporter,
                tokenizer=request.given_tokenizer,
                old_domain=request.old_domain,
                workers=request.workers,
            )
        text = open_tokens(request.tokens, request.given_tokenizer)
        check_store(text.store, request.configured("data"))
        shutil.copytree(request.tokens, run.tokens, dirs_exist_ok=True)
        for path in run.tokens.iterdir():
            sync(path)
        return text

    def reopen(self, run: Run, record: RunRecord) -> TokenizedText:
        text = open_tokens(run.tokens)
        if current_world().is_first:
            text.store.verify()  # training would not notice a changed id
        return text

    def facts(self, data: TokenizedText) -> Facts:
        train = data.store.split("train")
        rows = self.row_facts(data.store) if self.request.configured("data").rows else None
        return Facts(data.tokenizer.vocab_size, len(train), rows, 0 if self.request.given_tokenizer else train.bytes)

    def row_facts(self, store: TokenStore) -> RowFacts:
        """The facts about separate rows; this reads the lengths of all rows."""
        if self.known_rows is None:
            longest = max(RowStream.open(store, name).longest for name in ("train", "validation"))
            source = str(store.extra["rows"].get("longest", store.directory))
            train, held_out = (store.splits[name].documents for name in ("train", "validation"))
            packing = bool(self.request.configured("data").packing)
            self.known_rows = RowFacts(train, longest, source, held_out, packing)
        return self.known_rows

    def choose(self, data: TokenizedText, machine: Machine) -> ChosenConfig:
        request, facts, reasons = self.request, self.facts(data), list[str]()
        smallest = resolve.shape_of(request, facts, request.size or "toy")
        if facts.rows is None:
            check_enough_tokens(facts.train_tokens, resolve.window_length(request, facts, smallest), facts.as_bytes)
        else:
            resolve.check_row_fits(facts.rows, smallest.context_length)
        size = request.size if request.start is None else request.start.name
        if size is None:
            configs = {name: resolve.resolve_config(request, facts, name) for name in SIZES}
            if facts.rows is None:  # otherwise a size without a row of its context length is too large anyway
                configs = {name: each for name, each in configs.items() if each.window_length < facts.train_tokens}
            size, reason = self.timed_size(configs, data, machine, facts.train_tokens)
            reasons.append(reason)
        steps = request.given_steps
        if steps is None:
            probed = resolve.resolve_config(request, facts, size)
            tokens, seconds = int(self.cost(probed, data).tokens_per_step), self.seconds_per_step(probed, data, machine)
            speed, repetition = f"{tokens / seconds:,.0f} tokens/s", facts.repetition
            if request.minutes is None:
                most = repetition.most_epochs * facts.train_tokens // tokens
                limits = most, repetition.fewest_steps, repetition.reason
                steps, reason = choose_steps(self.default_minutes, seconds, speed, *limits)
            else:
                steps, reason = estimate_steps(request.minutes, seconds, speed, fewest=request.least_steps)
            reasons.append(f"steps       {steps:,} of {tokens:,} tokens: {reason}")
        config = resolve.resolve_config(request, facts, size, steps)
        request.check_exportable(config.model)
        return ChosenConfig(config, size, [*reasons, *resolve.describe_rows_read(request, facts, config)])

    def cost(self, config: Config, data: TokenizedText) -> SizeCost:
        row = resolve.mean_row(self.request, self.facts(data), config.model)
        shape = config.model.replaced(context_length=min(row, config.model.context_length))
        return super().cost(config.model_copy(update={"model": shape}), data)

    def footprint(self, config: Config, data: TokenizedText) -> Footprint:
        length = config.window_length
        if config.data.rows:
            length = arrange(RowStream.open(data.store, "train"), config).longest
        return Footprint(weight_shapes(config.model), config.model.replaced(context_length=length))

    def first_model(self, config: Config, data: TokenizedText, start: Start | None) -> Decoder:
        model = super().first_model(config, data, start)
        if start is None and config.training.similar_vectors:
            text = data.store.split("train")
            information = information_of_neighbors(text.read(0, min(len(text), MOST_TOKENS)), config.model.vocab_size)
            set_similar_vectors([model.embed.token.weight], information, config.training.seed)
        return model

    def load_model(self, directory: Path, device: torch.device) -> Decoder:
        return load_decoder(directory, device)

    def make_task(self, config: Config, data: TokenizedText, model: Decoder) -> TextTask:
        return TextTask(config, data, model, self.continue_prompt)

    def describe(self, task: TextTask) -> list[str]:
        """The text, the model and the recipe, with the reasons for what was chosen."""
        config, text = task.config, task.text
        train, held_out = text.store.split("train"), text.store.split("validation")
        nothing_held_out = len(held_out) < 2 and config.data.validation_fraction and not config.data.rows
        return [
            f"text        {train.bytes:,} bytes to learn from, {held_out.bytes:,} held out: {text.split_rule}",
            f"tokens      {len(train):,} and {len(held_out):,}, {train.bytes / max(1, len(train)):.2f} bytes each, "
            f"vocabulary {config.model.vocab_size:,}",
            *([f"rows        {task.data.described}"] if task.data.described else []),
            *([NOT_HELD_OUT] if nothing_held_out else []),
            *task.record.reasons,
            describe_model(task.record.size, config.model),
            f"dropout     {describe_dropout(config, text)}",
            describe_recipe(config.training, f"{counted(config.training.batch_size, 'row')} per step"),
        ]

    def check_resumable(self, config: Config, record: RunRecord, data: TokenizedText) -> None:
        """Refuse another tokenizer, and a family that the run's model cannot be exported to."""
        request, own = self.request, data.tokenizer.fingerprint
        request.check_exportable(config.model)
        given = request.tokenizer_with(config.tokenizer.start_token)
        if given is not None and given.fingerprint != own:
            raise request.changed("tokenizer", own, given.fingerprint)

    def words_to_extend(self, record: RunRecord, run: str) -> list[str]:
        return ["train", *record.data, "--start-from", run]


def describe_dropout(config: Config, text: TokenizedText) -> str:
    """The dropout rates and the number of passes over the text."""
    rates, training = config.model.dropout, config.training
    train, rows = text.store.splits["train"], training.steps * training.batch_size
    is_padded = config.data.rows and not config.data.packing
    epochs = rows / train.documents if is_padded else rows * config.window_length / train.tokens
    shown = f"{rates.residual:g}" if rates.attention == 0 and rates.embedding == rates.residual else str(rates)
    return f"{shown}, for a text that is read {resolve.in_times(epochs)}"
