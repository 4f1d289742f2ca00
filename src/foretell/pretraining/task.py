"""The text task: a decoder that learns to predict the next token of a text, and continues prompts meanwhile."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch import nn

from foretell.config.sampling import SamplingConfig
from foretell.config.training import Config
from foretell.data.batch import Batch
from foretell.data.data_use import DataUse, hash_stream
from foretell.data.loader import iter_evaluation_batches
from foretell.errors import ConfigError
from foretell.evaluation.loss import (
    WITHOUT_BITS,
    Evaluation,
    bits_per_byte,
    describe_first_loss,
    evaluate,
    first_loss,
    has_bits_per_byte,
)
from foretell.evaluation.material import TEXT, TEXT_ROWS
from foretell.evaluation.replayed_row import ReplayedRow, replayed_row
from foretell.model.cost import training_flops_per_token
from foretell.model.decoder import Decoder
from foretell.pretraining.tokens import OLD_DOMAIN, TokenizedText
from foretell.pretraining.training_data import make_training_data
from foretell.saved_model.parts_on_disk import save_model
from foretell.session.task import Sample, Task
from foretell.text import Tokenizer
from foretell.training.mask_check import check_mask
from foretell.training.objective import Objective

START_TOLERANCE = 0.3  # nats: a fresh model whose loss is further from ln V gets a warning
SAMPLE_TOKENS = 48
TOKENS_AT_ONCE = 8192  # tokens of the old domain per batch
SAMPLING = SamplingConfig(temperature=0.8, top_k=50)
ContinuePrompt = Callable[..., list[int]]  # `generation.batch_generation.continue_prompt`


class TextTask(Task):
    """Next-token prediction on a tokenized text."""

    held_out_setting = "data.validation_fraction"

    def __init__(
        self,
        config: Config,
        text: TokenizedText,
        decoder: Decoder,
        continue_prompt: ContinuePrompt,
    ):
        self.config, self.text, self.split_rule = config, text, text.split_rule
        self.decoder = self.model = decoder
        self.objective = Objective(decoder, label_smoothing=config.training.label_smoothing)
        self.row_length = config.window_length
        self.flops_per_token = training_flops_per_token(config.model)
        self.data = make_training_data(text, config)
        self.has_held_out = self.data.held_out_tokens > 0
        self.material = TEXT_ROWS if config.data.rows else TEXT
        tokenizer = text.tokenizer.reading(config.data.special)
        prompts, context_length = config.training.sample_prompts, config.model.context_length
        self.prompts = Prompts(prompts, self.data.beginning(), tokenizer, context_length, continue_prompt)

    def batch(self, step: int) -> Batch:
        return self.data.batch(step)

    def row_as_text(self, row: Batch, step: int, index: int) -> ReplayedRow:
        assert isinstance(self.objective, Objective)
        extent = self.data.extent(step * self.data.batch_size + index)
        losses = self.objective.token_losses(row).cpu()
        return replayed_row(row.to("cpu"), losses, 0, self.text.tokenizer, extent.tokens, extent.start)

    def evaluate(self, dtype: torch.dtype) -> Mapping[str, float]:
        """The loss on windows evenly spread over the held-out text and over the text of an old domain."""
        if not self.has_held_out:
            return {}
        max_tokens = self.config.training.evaluation_tokens
        figures = {"validation_loss": self.evaluate_held_out(dtype, max_tokens).loss}
        if OLD_DOMAIN in self.text.store.splits:
            figures["old_domain_loss"] = self.evaluate_old_domain(dtype, max_tokens).loss
        return figures

    def evaluate_held_out(
        self, dtype: torch.dtype, max_tokens: int | None = None, objective: nn.Module | None = None
    ) -> Evaluation:
        """The loss on the held-out text, or on about `max_tokens` of it; for another model if one is given."""
        return evaluate(objective or self.objective, self.data.evaluation_batches(max_tokens), dtype)

    def evaluate_old_domain(
        self, dtype: torch.dtype, max_tokens: int | None = None, objective: nn.Module | None = None
    ) -> Evaluation:
        """The loss on the text of the old domain, in windows of a whole context."""
        store, length = self.text.store, self.config.model.context_length
        masked = bool(store.extra[OLD_DOMAIN]["document_mask"])
        rows = max(1, TOKENS_AT_ONCE // length)
        batches = iter_evaluation_batches(store.split(OLD_DOMAIN), length, rows, max_tokens, masked)
        return evaluate(objective or self.objective, batches, dtype)

    def bits_per_byte(self, loss: float) -> float:
        """A loss in nats per token of the held-out text as bits per byte."""
        held_out = self.text.store.split("validation")
        return bits_per_byte(loss, len(held_out), held_out.bytes)

    def describe_loss(self, loss: float) -> str:
        """A loss on the held-out text, in nats per token, for people."""
        if self.config.data.rows:
            return f"{loss:.3f} per token of {'the answers' if self.config.data.loss_on == 'answer' else 'the rows'}"
        if not has_bits_per_byte(self.text.tokenizer):
            return f"{loss:.3f}, bits per byte are {WITHOUT_BITS}"
        return f"{loss:.3f}, {self.bits_per_byte(loss):.3f} bits per byte"

    def samples(self) -> list[Sample]:
        return [self.prompts.continue_one(self.decoder, prompt) for prompt in self.prompts.prompts]

    def save_model(self, directory: Path) -> None:
        save_model(directory, self.decoder, self.text.tokenizer)

    def data_use(self) -> DataUse:
        """The rows, or the windows of the texts."""
        tokenizer, store = self.text.tokenizer, self.text.store
        dropped = (*tokenizer.start_ids, *tokenizer.end_ids)
        splits = (store.split(name) for name in ("train", "validation"))
        return DataUse.of(*(hash_stream(each, dropped, is_whole=self.config.data.rows) for each in splits))

    def fingerprints(self) -> dict[str, str]:
        return {"tokenizer": self.text.tokenizer.fingerprint}

    def check(self, batch: Batch, dtype: torch.dtype) -> None:
        """Refuse a model that sees the future."""
        check_mask(self.decoder, batch, dtype)

    def describe_start(self, batch: Batch, dtype: torch.dtype) -> list[str]:
        """The first loss. An untrained model's should be ln V, as for a uniform distribution (random vectors)."""
        vocab_size, loss = self.config.model.vocab_size, first_loss(self.objective, batch, dtype)
        if self.record.start is not None:
            return [f"before      loss {loss:.2f} on the new text"]
        line = describe_first_loss(loss, vocab_size)
        is_random = not self.config.training.similar_vectors  # others favor similar tokens: 3.7 more at --size small
        if is_random and abs(loss - math.log(vocab_size)) > START_TOLERANCE:
            line += f": warning, a fresh model should be within {START_TOLERANCE} of it; look at model.init"
        return [line]


class Prompts:
    """Prompts that the model continues during training, always with the same draws; default: `beginning`."""

    def __init__(
        self,
        prompts: tuple[str, ...],
        beginning: list[int],
        tokenizer: Tokenizer,
        context_length: int,
        continue_prompt: ContinuePrompt,
    ):
        self.tokenizer, self.context_length, self.continue_prompt = tokenizer, context_length, continue_prompt
        self.prompts = [self.encode(prompt) for prompt in prompts] or [beginning]

    def encode(self, prompt: str) -> list[int]:
        """A prompt's ids; a prompt that leaves no room for a continuation is a `ConfigError`."""
        ids = self.tokenizer.encode_input(prompt)
        if not 0 < len(ids) < self.context_length:
            raise ConfigError(
                f"the sample prompt {prompt[:30]!r} has {len(ids)} tokens; it needs between 1 and "
                f"{self.context_length - 1}, one less than model.context_length"
            )
        return ids

    def continue_one(self, decoder: Decoder, prompt: list[int]) -> Sample:
        """A prompt and up to SAMPLE_TOKENS tokens after it."""
        count, tokenizer = min(SAMPLE_TOKENS, self.context_length - len(prompt)), self.tokenizer
        generated = self.continue_prompt(
            decoder, prompt, SAMPLING, count, vocab_size=tokenizer.vocab_size, end_ids=tokenizer.end_ids[:1]
        )
        before = tokenizer.decode(prompt, skip_special=True)
        whole = tokenizer.decode(prompt + generated, skip_special=True)
        if whole.startswith(before):  # decoded as a whole, because word tokens get a space only next to another
            return Sample(before, whole[len(before) :])
        return Sample(before, tokenizer.decode(generated, skip_special=True))
