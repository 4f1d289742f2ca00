"""The chat task: a decoder that learns to write the answers of conversations."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from foretell.config import DataConfig, ModelConfig, SamplingConfig, Section, TrainingConfig
from foretell.data.batch import PADDING, Batch
from foretell.evaluation.perplexity import evaluate, perplexity
from foretell.finetuning.chat_data import ChatData, PackedChats
from foretell.inference.completion import make_completer
from foretell.language_model import LanguageModel
from foretell.model.decoder import Decoder
from foretell.model.lora import LoRAConfig
from foretell.saved_model.parts_on_disk import save_parts
from foretell.session.task import ReplayedRow, ReplayedToken, Sample, Task
from foretell.text import Tokenizer
from foretell.text.chat_template import ChatTokens
from foretell.training.mask_check import check_mask
from foretell.training.objective import Objective

SAMPLES, SAMPLE_TOKENS = 2, 48
SAMPLING = SamplingConfig(temperature=0)


class ChatConfig(Section):
    """The whole configuration of chat tuning, as run.json has it."""

    model: ModelConfig
    data: DataConfig = DataConfig()
    training: TrainingConfig
    lora: LoRAConfig | None = None  # train low-rank updates alone


class ChatTask(Task):
    """Answers to questions of conversations that are packed into rows.

    tuned: its tokenizer has the template's tokens and the template; it may have adapters. digest: of the file with the
    tokenized conversations. `about` is written to run.json with the configuration.
    """

    def __init__(self, config: ChatConfig, data: ChatData, tuned: LanguageModel, digest: str, about: dict[str, Any]):
        self.config, self.data, self.tuned, self.digest, self.about = config, data, tuned, digest, about
        self.tokenizer, self.decoder = tuned.tokenizer, tuned.decoder
        self.model = decoder = tuned.decoder
        self.objective = Objective(decoder, label_smoothing=config.training.label_smoothing)
        self.row_length = config.model.context_length
        self.train = PackedChats(data.train, config.model.context_length, config.training.seed)
        self.held_out = PackedChats(data.held_out, config.model.context_length)
        self.loss_before: float | None = None  # on held-out answers, known in a run that was not resumed
        self.shown = [
            chat for chat in (data.held_out or data.train) if first_answer(chat) < config.model.context_length
        ]

    def batch(self, step: int) -> Batch:
        return self.train.batch(step, self.config.training.batch_size)

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
        """The likeliest answers to the first questions held out."""
        return [self._answer(chat.ids[: first_answer(chat)]) for chat in self.shown[:SAMPLES]]

    def _answer(self, prompt: list[int]) -> Sample:
        completer = make_completer(self.tuned, [prompt], SAMPLING)
        for _ in completer.stream(min(SAMPLE_TOKENS, self.config.model.context_length - len(prompt))):
            pass
        return Sample(self.tokenizer.decode(prompt), completer.completions()[0].text)

    def save_model(self, directory: Path) -> None:
        save_parts(directory, self.tuned.all_parts())

    def fingerprints(self) -> dict[str, str]:
        return {"tokenizer": self.tokenizer.fingerprint, "conversations": self.digest}


def first_answer(chat: ChatTokens) -> int:
    """The position where the first answer begins."""
    return chat.is_answer.index(True)


@torch.no_grad()
def replay_batch(decoder: Decoder, batch: Batch, tokenizer: Tokenizer, rows: int = 2) -> list[ReplayedRow]:
    """The first rows of a batch without their padding, with losses in evaluation mode of the tokens that are learned.

    A row's last target is left out if it is not learned: it may be padding.
    """
    part, was_training = batch.rows(0, rows), decoder.training
    losses = Objective(decoder.eval()).token_losses(part).cpu()  # (B, T)
    decoder.train(was_training)
    part = part.to("cpu")
    return [ReplayedRow(0, make_tokens(part, losses, row, tokenizer)) for row in range(len(part))]


def make_tokens(batch: Batch, losses: Tensor, row: int, tokenizer: Tokenizer) -> list[ReplayedToken]:
    """The tokens of one row; each has the loss of the position before it."""
    assert batch.document_ids is not None, "conversations are packed with document ids"
    is_learned = [False, *(batch.loss_weights[row] > 0).tolist()]
    documents = batch.document_ids[row].tolist()
    ids = batch.ids[row].tolist()
    if is_learned[-1]:
        ids, documents = [*ids, int(batch.targets[row, -1])], [*documents, documents[-1]]
    before = [0.0, *losses[row].tolist()]
    return [
        ReplayedToken(token, tokenizer.decode([token]), before[index] if is_learned[index] else None, document)
        for index, (token, document) in enumerate(zip(ids, documents, strict=True))
        if document != PADDING
    ]
