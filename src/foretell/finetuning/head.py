"""The head of a tuned model: one linear layer on a text's vector, a part of the saved model called `task_head`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from foretell.config import make_section
from foretell.errors import CheckpointError, UsageError
from foretell.finetuning.batches import TaskBatch
from foretell.finetuning.input_format import InputFormat, with_input_tokens
from foretell.finetuning.settings import HeadSettings, Truncate
from foretell.language_model import LanguageModel
from foretell.model.decoder import Decoder
from foretell.model.init import WEIGHT_STD, with_vocabulary
from foretell.saved_model.model_parts import DECODER, TOKENIZER, DecoderPart, TokenizerPart
from foretell.saved_model.part import Part, PartSource, register_part

TASK_HEAD = "task_head"  # the name and the kind of the part


def last_vectors(hidden: Tensor, lengths: Tensor) -> Tensor:
    """The vectors (N, D) of hidden (N, T, D) at the last token of each sequence; its position is length - 1."""
    return hidden[torch.arange(len(hidden), device=hidden.device), (lengths - 1).clamp(min=0)]


def mean_vectors(hidden: Tensor, lengths: Tensor) -> Tensor:
    """The mean (N, D) over the tokens of each sequence, without padding."""
    is_token = torch.arange(hidden.shape[1], device=hidden.device) < lengths[:, None]  # (N, T)
    return (hidden * is_token[..., None]).sum(1) / lengths.clamp(min=1)[:, None]


# `extract` and `last` differ in what the last token is: the extract token, or the text's own
POOLS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "extract": last_vectors,
    "last": last_vectors,
    "mean": mean_vectors,
}


def outputs_of_texts(head: nn.Module, vectors: Tensor, lengths: Tensor) -> Tensor:
    """One sequence per example: (B, C) from vectors (B, 1, D)."""
    return head(vectors[:, 0])


def outputs_of_orders(head: nn.Module, vectors: Tensor, lengths: Tensor) -> Tensor:
    """Two orders of the same texts: their vectors are added, (B, C) from (B, 2, D)."""
    return head(vectors.sum(1))


def outputs_of_answers(head: nn.Module, vectors: Tensor, lengths: Tensor) -> Tensor:
    """A score per answer, (B, K) from (B, K, D); minus infinity where an example has fewer answers."""
    return head(vectors)[..., 0].masked_fill(lengths == 0, float("-inf"))


OUTPUTS: dict[str, Callable[[nn.Module, Tensor, Tensor], Tensor]] = {
    "classify": outputs_of_texts,
    "regress": outputs_of_texts,
    "entailment": outputs_of_texts,
    "similarity": outputs_of_orders,
    "choice": outputs_of_answers,
}


@register_part
@dataclass(frozen=True)
class TaskHead(Part):
    """A linear layer (D to the number of outputs) with the settings that say what it reads and what it predicts."""

    kind: ClassVar[str] = TASK_HEAD
    settings: HeadSettings
    linear: nn.Linear

    def config(self) -> dict[str, Any]:
        return self.settings.model_dump(mode="json")

    def weights(self) -> Mapping[str, Tensor]:
        return dict(self.linear.named_parameters())

    @classmethod
    def load(cls, values: Mapping[str, Any], source: PartSource) -> TaskHead:
        settings = make_section(HeadSettings, values, source.name)
        decoder, tokenizer = source.parts.get(DECODER), source.parts.get(TOKENIZER)
        if not isinstance(decoder, DecoderPart) or not isinstance(tokenizer, TokenizerPart):
            raise CheckpointError(f"{source.directory}: a task head needs a decoder and a tokenizer before it")
        for name in settings.tokens.model_dump().values():
            if name is not None and name not in tokenizer.tokenizer.special_tokens:
                raise CheckpointError(f"{source.directory}: the tokenizer lacks the task head's token {name!r}")
        width = decoder.decoder.config.width
        weights = source.read({"weight": (settings.num_outputs, width)})
        linear = nn.Linear(width, settings.num_outputs, bias=False, device="meta")
        linear.load_state_dict(weights, assign=True)
        return cls(settings, linear)

    def outputs(self, decoder: Decoder, batch: TaskBatch) -> Tensor:
        """The outputs (B, C) of a batch: logits of labels or answers, or one number."""
        hidden = decoder.hidden(batch.ids.flatten(0, 1))  # (B*K, T, D)
        return self.outputs_from(hidden, batch.lengths, self.linear)

    def outputs_from(self, hidden: Tensor, lengths: Tensor, layer: nn.Module) -> Tensor:
        """The outputs (B, C) from hidden states (B*K, T, D) of sequences of lengths (B, K), by the linear `layer`."""
        vectors = POOLS[self.settings.pool](hidden, lengths.flatten())  # (B*K, D)
        return OUTPUTS[self.settings.task](layer, vectors.unflatten(0, lengths.shape), lengths)  # (B, C)


def new_head(settings: HeadSettings, width: int, seed: int) -> TaskHead:
    """A head with initial weights: normal with standard deviation 0.02. Like the paper's W_y it has no bias."""
    linear = nn.Linear(width, settings.num_outputs, bias=False)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        linear.weight.copy_(torch.randn(linear.weight.shape, generator=generator) * WEIGHT_STD)
    return TaskHead(settings, linear)


def with_head(model: LanguageModel, settings: HeadSettings, seed: int) -> LanguageModel:
    """The model with a new head, and with rows for the special tokens of its input format."""
    tokenizer = with_input_tokens(model.tokenizer, settings.tokens)
    decoder = with_vocabulary(model.decoder, tokenizer.vocab_size, seed)
    head = new_head(settings, decoder.config.width, seed)
    return replace(model, decoder=decoder, tokenizer=tokenizer, parts={**model.parts, TASK_HEAD: head})


def head_of(model: LanguageModel) -> TaskHead:
    """The head of a tuned model; a UsageError for a model without one."""
    head = model.parts.get(TASK_HEAD)
    if not isinstance(head, TaskHead):
        raise UsageError(f"{model.name} has no task head; make one with: foretell finetune {model.name} DATA")
    return head


def with_truncation(model: LanguageModel, truncate: Truncate | None) -> LanguageModel:
    """The tuned model with another rule for texts that do not fit; None keeps its own."""
    head = head_of(model)
    if truncate is None:
        return model
    settings = head.settings.model_copy(update={"truncate": truncate})
    return replace(model, parts={**model.parts, TASK_HEAD: replace(head, settings=settings)})


def input_format(model: LanguageModel) -> InputFormat:
    """How texts of its task reach a tuned model."""
    return InputFormat(model.tokenizer, head_of(model).settings, model.config.context_length)
