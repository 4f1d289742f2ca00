"""`FinetuneTraining`: the declaration of training with a head."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from foretell.data.memory import write_rows
from foretell.errors import counted
from foretell.finetuning.figures import describe_figures
from foretell.finetuning.head import head_of, with_head
from foretell.finetuning.inputs import InputFormat, choose_tokens, with_input_tokens
from foretell.finetuning.kind import kind_of
from foretell.finetuning.probe import fit_probe, starts_from_probe
from foretell.finetuning.report import REPORT, compared, write_report
from foretell.finetuning.request import FinetuneRequest, command_words, untrained
from foretell.finetuning.settings import Columns, FinetuneConfig
from foretell.finetuning.task import FinetuneTask, LabelledFiles, TaskData, read_files
from foretell.finetuning.tfidf import tuned_baseline
from foretell.finetuning.tuning import TunedTraining, trained_weights, with_updates
from foretell.language_model import LanguageModel
from foretell.runs.record import RunRecord
from foretell.runs.run import Run
from foretell.session.declaration import describe_model, kept_data
from foretell.session.failures import explain_stop
from foretell.session.fit import Footprint
from foretell.session.reporter import Reporter
from foretell.session.start import Start
from foretell.session.state import SessionState
from foretell.storage.files import read_json
from foretell.system.device import choose_device, choose_training_dtype
from foretell.text import Tokenizer

KEPT_ROWS = "rows.jsonl"  # the run's copy of a table in memory

logger = logging.getLogger(__name__)


class FinetuneTraining(TunedTraining[FinetuneRequest, FinetuneTask]):
    """Training with a head on labelled texts. The run stores copies of the files."""

    verb = "finetune"
    encoded: TaskData | None = None
    new_start: Start | None = None
    probe: Tensor | None = None  # the first weights of the head (C, D)
    baseline: dict[str, Any]

    def words_to_extend(self, record: RunRecord, run: str) -> list[str]:
        return command_words([run], record, recorded_config(record).finetuning)

    def recorded(self, data: LabelledFiles) -> dict[str, Any]:
        """The columns given by the user; the others are found again when resuming."""
        columns = self.request.named_columns
        return {} if columns == Columns(texts=()) else {"columns": columns.model_dump(mode="json")}

    def read(self, run: Run, reporter: Reporter) -> LabelledFiles:
        request = self.request
        assert request.data is not None
        head = request.section("head")
        files = read_files(request.data, request.dev, request.tuning(), head, request.named_columns, request.split_seed)
        kind_of(files.settings).check(request.tuning())
        for part, path in (("data", request.data), ("dev", request.dev)):
            if isinstance(path, Path):
                run.keep_file(path, part)
            elif path is not None:
                write_rows(path, run.folder_of(part) / KEPT_ROWS)
        return files

    def reopen(self, run: Run, record: RunRecord) -> LabelledFiles:
        config = recorded_config(record)
        head, tuning = config.head, config.finetuning
        settings = {"pool": head.pool, "truncate": head.truncate}
        if record.section("finetuning").get("folds"):  # a retired field; such a run has no held-out examples
            tuning = tuning.model_copy(update={"dev_fraction": 0.0})
            logger.warning("folds       are not evaluated any more; the training on all examples continues")
        files = read_files(kept_data(run), run.kept_file("dev"), tuning, settings, head.columns, config.training.seed)
        return replace(files, split_rule=record.split or files.split_rule)

    def start_of(self, data: LabelledFiles) -> Start:
        if not self.request.is_from_scratch:
            return self.start
        if self.new_start is None:
            kind, request = type(kind_of(data.settings)), self.request
            self.new_start = untrained(kind, data.train, request.split_seed, request.size)
        return self.new_start

    def configure(self, data: LabelledFiles, steps: int | None = None) -> FinetuneConfig:
        request, start, head = self.request, self.start_of(data), data.settings
        dropout = {} if request.recipe.dropout is None else {"dropout": request.recipe.dropout}
        model = start.config.replaced(**(dropout | request.section("model")))
        tokens = choose_tokens(start.tokenizer, head.pool, has_delimiter=kind_of(head).reader.form.fewest > 1)
        return FinetuneConfig(
            model=model,
            finetuning=request.tuning(),
            head=head.model_copy(update={"tokens": tokens}),
            training=request.training_config(len(data.train), model.width, steps, bool(data.dev)),
            lora=request.configured("lora") if "lora" in request.overrides else None,
        )

    def footprint(self, config: FinetuneConfig, data: LabelledFiles) -> Footprint:
        """A lower bound: the batch with the longest example, to which the other sequences are padded."""
        tokenizer = with_input_tokens(self.start_of(data).tokenizer, config.head.tokens)
        examples = self.encode(config, data, tokenizer).train
        largest = max(examples, key=lambda example: example.length * len(example.sequences))
        row = config.model.replaced(context_length=largest.length)
        return self.footprint_of(config, row, config.training.batch_size * len(largest.sequences))

    def encode(self, config: FinetuneConfig, data: LabelledFiles, tokenizer: Tokenizer) -> TaskData:
        """The examples as tokens, computed once, because encoding many texts takes long."""
        if self.encoded is None:
            head, context_length = config.head, config.model.context_length
            self.encoded = data.encoded(InputFormat(tokenizer, head.tokens, context_length, head.truncate))
            tokenizer.note_unknown(token for each in self.encoded.train for ids in each.sequences for token in ids)
        return self.encoded

    def first_model(self, config: FinetuneConfig, data: LabelledFiles, start: Start | None) -> LanguageModel:
        """The start's weights with a new head, rows for new tokens, and any requested LoRA updates.

        Without a start, weights are random.
        """
        start = start or untrained(type(kind_of(data.settings)), data.train, config.training.seed, shape=config.model)
        shape = config.model.replaced(vocab_size=start.config.vocab_size)
        untuned = replace(start.model, decoder=start.decoder(shape, trained_weights(config.lora)), notes=())
        model = with_head(untuned, config.head, config.training.seed)
        self.start_head(config, data, model)
        return with_updates(model, config.lora, config.training.seed)

    def start_head(self, config: FinetuneConfig, data: LabelledFiles, model: LanguageModel) -> None:
        """Set the first weights of the head to a probe's, which is computed once, if it starts from one."""
        head, device = head_of(model), choose_device(self.request.device)
        examples = self.encode(config, data, model.tokenizer).train
        if not starts_from_probe(head, config.model.width, examples[0].target):
            return
        if self.probe is None:
            logger.info(f"head        a ridge regression on the model's vectors of {len(examples):,} examples")
            decoder, dtype = model.decoder.to(device), choose_training_dtype(self.request.dtype, device)
            self.probe = fit_probe(decoder, head, examples, config.training.seed, dtype)
        with torch.no_grad():
            head.linear.weight.copy_(self.probe)

    def make_task(self, config: FinetuneConfig, data: LabelledFiles, model: LanguageModel) -> FinetuneTask:
        config = config.model_copy(update={"model": model.config})  # includes the rows of new tokens
        return FinetuneTask(config, self.encode(config, data, model.tokenizer), model)

    def describe(self, task: FinetuneTask) -> list[str]:
        head, data, training = task.head.settings, task.data, task.config.training
        names = {name: token for name, token in head.tokens.model_dump().items() if token}
        tokens = ", ".join(f"{name} {token}" for name, token in names.items()) or "no new tokens"
        longest = max(example.length for example in data.train)
        columns = ", ".join((*head.columns.texts, *head.columns.choices))
        case = "" if task.head.task.reads_case else " in lower case"
        new = [
            describe_model(task.record.size, task.config.model),
            f"vocabulary  the most frequent words of the training texts{case}; others are read as unknown",
        ]
        return [
            *([] if task.record.start else new),
            f"columns     {columns}; label {head.columns.label}",
            f"examples    {len(data.train):,} to learn from, {len(data.dev):,} held out: {data.files.split_rule}",
            f"labels      {task.head.task.describe_targets([example.target for example in data.train])}",
            f"input       pool {head.pool}, {tokens}; at most {longest} of {task.config.model.context_length} tokens",
            f"trained     {describe_trained(task.model)}",
            *task.record.reasons,
            f"recipe      {counted(training.steps, 'step')} of {counted(training.batch_size, 'row')}, learning rate "
            f"{training.learning_rate:g}, lambda {task.config.finetuning.lm_weight:g}",
        ]

    def opened(self, session: SessionState[FinetuneTask]) -> None:
        """Compute the baseline, so that the training can be compared with it; a finished run has it in its report."""
        files, path = session.task.data.files, session.run.directory / REPORT
        if session.task.has_held_out and session.world.is_first:
            known = read_json(path).get("baseline") if path.exists() else None
            with explain_stop("before the next step", session.run):
                self.baseline = known or tuned_baseline(session.task.head.task, files.train, files.dev)
            logger.info(f"baseline    {describe_figures(compared(self.baseline))} with {self.baseline['rule']}")

    def closed(self, session: SessionState[FinetuneTask]) -> None:
        if session.task.has_held_out and session.world.is_first:
            write_report(session, self.baseline)


def recorded_config(record: RunRecord) -> FinetuneConfig:
    return FinetuneConfig.model_validate(record.current_config)


def describe_trained(model: nn.Module) -> str:
    """The number of trained weights: `all 812,034 weights`, `2,048 of 812,034 weights (0.25%)`."""
    weights = list(model.parameters())
    count = sum(weight.numel() for weight in weights)
    trained = sum(weight.numel() for weight in weights if weight.requires_grad)
    return f"all {count:,} weights" if trained == count else f"{trained:,} of {count:,} weights ({trained / count:.2%})"
