"""The chat task: a decoder learns the answers in conversations."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from pathlib import Path

import torch

from foretell.config.model import ModelConfig
from foretell.config.sampling import SamplingConfig
from foretell.config.section import Section
from foretell.config.training import DataConfig, TrainingConfig
from foretell.data.batch import Batch
from foretell.data.data_use import DataUse, hash_stream
from foretell.data.rows import PackedRows, PaddedRows, RowBatches, RowStream
from foretell.evaluation.loss import evaluate, perplexity
from foretell.evaluation.material import CHATS
from foretell.evaluation.replayed_row import ReplayedRow, replayed_row
from foretell.finetuning.chat_data import ChatData
from foretell.inference.completion import make_completer
from foretell.language_model import LanguageModel
from foretell.model.decoder import Decoder
from foretell.model.lora import LoRAConfig
from foretell.saved_model.parts_on_disk import save_parts
from foretell.session.task import Sample, Task
from foretell.text import Tokenizer
from foretell.training.mask_check import check_mask
from foretell.training.objective import Objective

SHOWN_ROWS = 2  # rows of a batch
SAMPLES, SAMPLE_TOKENS = 2, 48
SAMPLING = SamplingConfig(temperature=0)
ORDER = "chats"  # the name of the random order of rows


class ChatConfig(Section):
    """The configuration of chat tuning in run.json."""

    model: ModelConfig
    data: DataConfig = DataConfig()
    training: TrainingConfig
    lora: LoRAConfig | None = None  # train only low-rank updates


class ChatTask(Task):
    """Training on the answers of conversations.

    tuned: the model; its tokenizer has the template and the template's tokens, and it may have adapters.
    """

    material = CHATS

    def __init__(self, config: ChatConfig, data: ChatData, tuned: LanguageModel):
        self.config, self.data, self.tuned = config, data, tuned
        self.tokenizer, self.decoder = tuned.tokenizer, tuned.decoder
        self.model = tuned.decoder
        self.objective = Objective(tuned.decoder, label_smoothing=config.training.label_smoothing)
        self.row_length = config.model.context_length
        self.train = row_batches(config.data, data.train, self.row_length, config.training.seed)
        self.held_out = row_batches(config.data, data.held_out, self.row_length)
        self.loss_before: float | None = None  # on held-out answers; unknown in a resumed run

    def batch(self, step: int) -> Batch:
        return self.train.batch(step, self.config.training.batch_size)

    def row_as_text(self, row: Batch, step: int, index: int) -> ReplayedRow:
        assert isinstance(self.objective, Objective)
        return learned_rows(self.objective, row, self.tokenizer)[0]

    def evaluate(self, dtype: torch.dtype) -> Mapping[str, float]:
        """The loss on held-out answers, in nats per token."""
        if not len(self.held_out):
            return {}
        most, rows = self.config.training.evaluation_tokens, self.config.training.batch_size
        return {"validation_loss": evaluate(self.objective, self.held_out.iter_batches(rows, most), dtype).loss}

    def describe_start(self, batch: Batch, dtype: torch.dtype) -> list[str]:
        figures = self.evaluate(dtype)
        if not figures:
            return [f"before      loss {evaluate(self.objective, [batch], dtype).loss:.3f} on the answers of a batch"]
        self.loss_before = loss = figures["validation_loss"]
        return [f"before      loss {loss:.3f} on held-out answers, perplexity {perplexity(loss):.1f}"]

    def check(self, batch: Batch, dtype: torch.dtype) -> None:
        """Refuse a model that sees the future or another conversation."""
        check_mask(self.decoder, batch, dtype)

    def samples(self) -> list[Sample]:
        """The greedy answers to the first held-out questions."""
        rows = self.data.held_out if len(self.data.held_out) else self.data.train
        prompts = (prompt for row in range(len(rows)) if len(prompt := rows.prompt(row)) < self.row_length)
        samples = []
        for prompt in islice(prompts, SAMPLES):
            room = min(SAMPLE_TOKENS, self.row_length - len(prompt))
            (answer,) = make_completer(self.tuned, [prompt], SAMPLING).finished(room)
            samples.append(Sample(self.tokenizer.decode(prompt), answer.text))
        return samples

    def save_model(self, directory: Path) -> None:
        save_parts(directory, self.tuned.all_parts())

    def data_use(self) -> DataUse:
        return DataUse.of(*(hash_stream(rows.tokens, is_whole=True) for rows in (self.data.train, self.data.held_out)))

    def fingerprints(self) -> dict[str, str]:
        return {"tokenizer": self.tokenizer.fingerprint, "conversations": self.data.digest}


def row_batches(data: DataConfig, rows: RowStream, context_length: int, seed: int = 0) -> RowBatches:
    """Arrange conversations in batches, packed unless `packing` is false into rows as long as the longest of them."""
    if data.packing is False:
        return PaddedRows(rows, seed, ORDER)
    return PackedRows(rows, min(context_length, max(1, rows.longest - 1)), seed, ORDER)


@torch.no_grad()
def replay_batch(decoder: Decoder, batch: Batch, tokenizer: Tokenizer) -> list[ReplayedRow]:
    """The first rows of a batch, with evaluation-mode losses of the learned tokens."""
    was_training = decoder.training
    rows = learned_rows(Objective(decoder.eval()), batch.rows(0, SHOWN_ROWS), tokenizer)
    decoder.train(was_training)
    return rows


def learned_rows(objective: Objective, part: Batch, tokenizer: Tokenizer) -> list[ReplayedRow]:
    """The rows of a batch without padding, with the losses of the learned tokens.

    A row's last target is left out if it is not learned, because it may be padding.
    """
    losses = objective.token_losses(part).cpu()  # (B, T)
    part = part.to("cpu")
    assert part.lengths is not None, "batches of rows have lengths"
    counts = [int(part.lengths[row]) + int(part.loss_weights[row, -1] > 0) for row in range(len(part))]
    return [replayed_row(part, losses, row, tokenizer, count) for row, count in enumerate(counts)]
