"""Direct contributions of tokens and of parts of a tuned model to the logit of a label.

The logit of a label is a dot product of the text's vector with a row of the head. That vector is a sum of the outputs
of embedding, heads and feed-forward layers (insight/attribution/direct_logit_attribution.py), and a head's output is a
sum over the tokens that it reads. So the logit is a sum over parts, and also over tokens: what heads read at a token,
plus what embedding and feed-forward layers added there where its vector is pooled. Later layers work on vectors that
have read other tokens, so a direct contribution is not an effect. The effect is the logit's fall without a token.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from foretell.finetuning.head import TaskHead, head_of, head_outputs, input_format
from foretell.finetuning.inputs import EncodedExample, Sequences, make_task_batch
from foretell.finetuning.kind import TaskPrediction
from foretell.insight.attribution.direct_logit_attribution import (
    DirectContribution,
    SourceOutputs,
    StreamDecomposition,
    contributions,
)
from foretell.insight.trace import Trace
from foretell.language_model import LanguageModel
from foretell.model.structure import model_structure
from foretell.typesetting.document import DocumentSection, Paragraph, Table, bar, quoted, signed
from foretell.typesetting.html import Shown

SHOWN_PARTS, SHOWN_TOKENS = 12, 64


@dataclass(frozen=True)
class TokenContribution:
    """One token: its effect on the logit (None for the special tokens around texts) and its direct contribution.

    `sequence` counts the two orders of a similarity; a token is left out of one of them.
    """

    index: int
    text: str
    effect: float | None
    value: float
    sequence: int = 0


@dataclass(frozen=True)
class LabelAttribution(Shown):
    """Contributions to `logit`: of tokens in the order of the text, and of parts in the order of the model.

    The logit of `label` minus the logit of `against`, or minus the mean over all labels; of a number it is the
    number itself, of a choice the score of the answer. Both lists and `constant`, the mean of the numbers, add up to
    `total`, which equals the logit but for rounding.
    """

    prediction: TaskPrediction
    label: str
    against: str
    tokens: list[TokenContribution]
    parts: list[DirectContribution]
    constant: float
    total: float
    logit: float

    def document(self) -> DocumentSection:
        """The prediction, a bar per token, and the largest parts."""
        title = f"direct contributions to {self.label}" + (f" {self.against}" if self.against else "")
        tokens = self.tokens
        if len(tokens) > SHOWN_TOKENS:
            tokens = sorted(sorted(tokens, key=lambda each: -abs(each.effect or 0))[:SHOWN_TOKENS], key=place)
        parts = sorted(self.parts, key=lambda part: -abs(part.value))[:SHOWN_PARTS]
        rest = sum(part.value for part in self.parts) - sum(part.value for part in parts)
        others = [(signed(rest), "", f"the other {len(self.parts) - len(parts)} together")]
        ends = [(signed(self.total), "", "their sum")]
        if self.constant:
            ends = [(signed(self.constant), "", "the mean of the training examples"), *ends]
        left_out = f"the {SHOWN_TOKENS} largest of {len(self.tokens)}" if len(tokens) < len(self.tokens) else ""
        return DocumentSection(
            title,
            [
                Paragraph(f"predicted: {self.prediction.short().strip()}"),
                DocumentSection("by token" + (f", {left_out}" if left_out else ""), [token_table(tokens)]),
                DocumentSection(
                    "by part of the model",
                    [
                        bars(
                            [(part.value, part.name) for part in parts],
                            [*(others if len(parts) < len(self.parts) else []), *ends],
                        )
                    ],
                ),
                Paragraph(f"the model's own: {signed(self.logit)}"),
            ],
        )

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "prediction": self.prediction.to_json()}


def place(token: TokenContribution) -> tuple[int, int]:
    """The position of a token: its sequence, and its index there."""
    return token.sequence, token.index


def token_table(tokens: Sequence[TokenContribution]) -> Table:
    """The tokens with bars for their effects."""
    longest = max((abs(token.effect or 0) for token in tokens), default=1.0) or 1.0
    rows = [
        (
            "" if token.effect is None else signed(token.effect),
            bar((token.effect or 0) / longest),
            signed(token.value),
            quoted(token.text),
        )
        for token in tokens
    ]
    return Table(("effect", "", "direct", "token"), rows)


def bars(rows: Sequence[tuple[float, str]], more: Sequence[tuple[str, str, str]] = ()) -> Table:
    """Numbers with bars and names; bars are relative to the largest."""
    longest = max((abs(value) for value, _ in rows), default=1.0) or 1.0
    return Table(("", "", ""), [*((signed(value), bar(value / longest), name) for value, name in rows), *more])


@torch.inference_mode()
def attribute_label(
    model: LanguageModel, texts: Sequence[str], label: str | None = None, against: str | None = None
) -> LabelAttribution:
    """Attribute the prediction of a tuned model for the texts of one example.

    label: default the predicted one. against: another label; default the mean of all. Raises UsageError for an unknown
    label, for `against` with a number or a choice, and for a model without a head.
    """
    head, inputs = head_of(model), input_format(model)
    texts = head.task.given_texts(texts)
    (example,) = head.task.encode([texts], inputs)
    outputs = head.outputs(model.decoder, make_task_batch([example]).to(model.device))[0].double()  # (C,)
    prediction = head.task.prediction(outputs.cpu().numpy(), texts)
    chosen = prediction.label if label is None else label
    readout = head.task.readout(head.linear.weight.double(), texts, chosen, against)
    tokens, parts = list[TokenContribution](), defaultdict[str, float](float)
    for index in range(len(example.sequences)) if readout.sequence is None else [readout.sequence]:
        ids = example.sequences[index]
        by_token, by_part = sequence_contributions(model, head, ids, readout.direction)
        effects = token_effects(model, head, example, index, readout.logit_of)
        tokens += [
            TokenContribution(at, model.tokenizer.text_of(ids[at]), effects.get(at), value, index)
            for at, value in by_token
        ]
        for name, value in by_part.items():
            parts[name] += value
    total = sum(parts.values()) + readout.constant
    direct = [DirectContribution(name, value) for name, value in parts.items()]
    logit = float(readout.logit_of(outputs))
    return LabelAttribution(prediction, readout.title, readout.minus, tokens, direct, readout.constant, total, logit)


def token_effects(
    model: LanguageModel, head: TaskHead, example: EncodedExample, which: int, logit_of: Callable[[Tensor], Tensor]
) -> dict[int, float]:
    """The fall of the logit without each token of one sequence, by position; special tokens are left in place."""
    special = set(model.tokenizer.special_tokens.values())
    ids = example.sequences[which]
    positions = [at for at, token in enumerate(ids) if token not in special]
    without = [replace(example, sequences=left_out(example.sequences, which, at)) for at in positions]
    if not without:
        return {}
    logits = logit_of(
        torch.from_numpy(np.stack(head_outputs(model.decoder, head, [example, *without], model.dtype)))
    )  # (N,)
    return {at: float(logits[0] - value) for at, value in zip(positions, logits[1:], strict=True)}


def left_out(sequences: Sequences, which: int, at: int) -> Sequences:
    """The sequences, one of them without a token."""
    return tuple([*ids[:at], *ids[at + 1 :]] if index == which else ids for index, ids in enumerate(sequences))


def sequence_contributions(
    model: LanguageModel, head: TaskHead, ids: list[int], direction: Tensor
) -> tuple[list[tuple[int, float]], dict[str, float]]:
    """Contributions of one token sequence, by position and by part."""
    structure = model_structure(model.decoder)
    decomposition = StreamDecomposition(model.decoder, structure, SourceOutputs)
    stream = decomposition.stream(*structure["head"].reads)
    with Trace(model, stream.names()) as trace:
        model.decoder.hidden(torch.tensor([ids], device=model.device))
    positions = range(len(ids)) if head.settings.pool == "mean" else [len(ids) - 1]
    by_token, by_part = np.zeros(len(ids)), defaultdict[str, float](float)
    for at in positions:
        for name, value in contributions(stream, trace, at, direction):
            part, _, source = name.partition("@")
            by_token[int(source) if source else at] += value / len(positions)
            by_part[part] += value / len(positions)
    return list(enumerate(by_token.tolist())), dict(by_part)
