"""The head of a tuned model (a linear layer, the part `task_head` of the saved model), and its loss."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from foretell.config.section import make_section
from foretell.errors import CheckpointError, UsageError
from foretell.finetuning.examples import Example
from foretell.finetuning.inputs import EncodedExample, InputFormat, TaskBatch, iter_by_length, with_input_tokens
from foretell.finetuning.kind import Kind, kind_of
from foretell.finetuning.settings import HeadSettings, Truncate
from foretell.insight.readout import TASK_HEAD
from foretell.language_model import LanguageModel, check_model
from foretell.model.decoder import Decoder
from foretell.model.dropout import Dropout, make_dropout
from foretell.model.init import WEIGHT_STD, with_vocabulary
from foretell.saved_model.config_file import command_of
from foretell.saved_model.part import DECODER, TOKENIZER, DecoderPart, Part, PartSource, TokenizerPart, register_part
from foretell.system.device import autocast
from foretell.training.objective import Loss, Objective

logger = logging.getLogger(__name__)


@register_part
@dataclass(frozen=True)
class TaskHead(Part):
    """A linear layer (D to the number of outputs) with the settings of its kind."""

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

    @property
    def task(self) -> Kind:
        return kind_of(self.settings)

    def outputs(self, decoder: Decoder, batch: TaskBatch) -> Tensor:
        """The outputs (B, C) of a batch."""
        hidden = decoder.hidden(batch.ids.flatten(0, 1))  # (B*K, T, D)
        return self.task.outputs(self.linear, hidden, batch)


def new_head(settings: HeadSettings, width: int, seed: int) -> TaskHead:
    """A head with normal initial weights of standard deviation 0.02 and no bias, like the paper's W_y."""
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
    check_model(model)
    head = model.parts.get(TASK_HEAD)
    if not isinstance(head, TaskHead):
        if command := command_of(model.name, [part.kind for part in model.parts.values()]):
            raise UsageError(f"{model.name} has no task head; use it with: {command}")
        raise UsageError(f"{model.name} has no task head; make one with: foretell finetune {model.name} DATA")
    return head


def with_truncation(model: LanguageModel, truncate: Truncate | None) -> LanguageModel:
    """The tuned model with another rule for texts that do not fit; None keeps the rule."""
    head = head_of(model)
    if truncate is None:
        return model
    settings = head.settings.model_copy(update={"truncate": truncate})
    return replace(model, parts={**model.parts, TASK_HEAD: replace(head, settings=settings)})


def input_format(model: LanguageModel) -> InputFormat:
    settings = head_of(model).settings
    return InputFormat(model.tokenizer, settings.tokens, model.config.context_length, settings.truncate)


def encode_examples(examples: Sequence[Example], kind: Kind, inputs: InputFormat) -> list[EncodedExample]:
    """Examples as token sequences, with targets if they have labels.

    Examples that do not fit the context are logged, or refused.
    """
    targets = [kind.target(example) if example.labels else () for example in examples]
    encoded = kind.encode([example.texts for example in examples], inputs)
    joined = zip(encoded, targets, examples, strict=True)
    encoded = [replace(each, target=target, where=example.where) for each, target, example in joined]
    if line := inputs.check_cuts(encoded):
        logger.warning(line)
    return encoded


@torch.no_grad()
def head_outputs(
    decoder: Decoder, head: TaskHead, examples: Sequence[EncodedExample], dtype: torch.dtype
) -> list[np.ndarray]:
    """The outputs (C,) of each example; if their numbers differ, as in a choice, C is the batch's maximum."""
    device = head.linear.weight.device
    outputs: dict[int, np.ndarray] = {}
    for indices, batch in iter_by_length(examples):
        with autocast(device, dtype):
            rows = head.outputs(decoder, batch.to(device)).double().cpu().numpy()  # (B, C)
        outputs |= zip(indices, rows, strict=True)
    return [outputs[index] for index in range(len(examples))]


def weights_by_path(decoder: Decoder, head: TaskHead) -> nn.Module:
    """A module with the weights of a decoder and its head, under the paths of a saved model."""
    return nn.ModuleDict({**dict(decoder.named_children()), TASK_HEAD: head.linear})


class TaskObjective(nn.Module):
    """L_task + lambda L_lm (Radford et al. 2018, equation 5), both as means over examples.

    The language modelling loss of an example is the mean over its tokens and sequences. In evaluation mode the loss is
    only the task's, unweighted and not smoothed, so that runs can be compared.
    """

    def __init__(
        self, decoder: Decoder, head: TaskHead, lm_weight: float, head_dropout: float, label_smoothing: float = 0.0
    ):
        super().__init__()
        self.decoder, self.linear, self.kind = decoder, head.linear, head.task
        self.lm_weight, self.label_smoothing = lm_weight, label_smoothing
        self.dropout = make_dropout(head_dropout)
        if isinstance(self.dropout, Dropout):
            self.dropout.bind(decoder.dropout_rng, TASK_HEAD)
        self.language_modelling = Objective(decoder)

    def forward(self, batch: TaskBatch) -> Loss:
        outputs, hidden = self.outputs(batch)
        smoothing = self.label_smoothing if self.training else 0.0
        losses = self.kind.losses(outputs.float(), batch, smoothing)  # (B,)
        task = (losses * batch.weights).sum() if self.training else losses.sum()
        parts = {"task": task.detach()}
        total = task
        if self.training and self.lm_weight > 0:
            text = self.text_loss(batch, hidden)
            parts["language_modelling"] = text.detach()
            total = task + self.lm_weight * text
        return Loss(total, torch.full((), batch.count, device=total.device), parts)

    def outputs(self, batch: TaskBatch) -> tuple[Tensor, Tensor]:
        """The outputs (B, C) and the hidden states (B*K, T, D) that they come from."""
        rng = self.decoder.dropout_rng
        rng.sequences = batch.ids.shape[1]  # a row of the batch is K rows of the decoder, each with a mask
        hidden = self.decoder.hidden(batch.ids.flatten(0, 1))  # (B*K, T, D)
        rng.sequences = 1
        return self.kind.outputs(nn.Sequential(self.dropout, self.linear), hidden, batch), hidden

    def text_loss(self, batch: TaskBatch, hidden: Tensor) -> Tensor:
        """The sum of the language modelling losses of the examples."""
        ids, lengths = batch.ids.flatten(0, 1), batch.lengths.flatten()  # (B*K, T), (B*K,)
        is_target = torch.arange(1, ids.shape[1], device=ids.device) < lengths[:, None]
        shares = (batch.lengths > 0) / ((batch.lengths - 1).clamp(min=1) * (batch.lengths > 0).sum(1, keepdim=True))
        weights = is_target * shares.flatten()[:, None]  # (B*K, T-1)
        return self.language_modelling.weighted_loss(hidden[:, :-1], ids[:, 1:], weights)
