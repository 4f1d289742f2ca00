"""Direct contributions of words and model parts to the logit of a label, and the effects of the words.

The logit of a label is a dot product of the text's vector with a row of the head. The text's vector is a sum of the
outputs of embedding, heads and feed-forward layers (insight/stream_terms.py), and a head's output is a sum
over the tokens that it reads. So the logit is a sum over parts, and also over tokens: the amount that heads read from a
token, plus embedding and feed-forward outputs at the token if its vector is pooled. A word has the sum of its tokens.
Later layers process vectors that have read other tokens, so a direct contribution is not an effect. The effect of a
word is measured by removing its tokens (insight/attribution/word_effects.py).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from foretell.finetuning.examples import Example
from foretell.finetuning.head import TaskHead, encode_examples, head_of, head_outputs, input_format
from foretell.finetuning.inputs import EncodedExample, InputFormat
from foretell.finetuning.kind import Kind
from foretell.finetuning.predict import TaskInputModel, given_texts
from foretell.finetuning.prediction_format import AskedOutput, TaskPrediction
from foretell.insight.attribution.direct_logit_attribution import DirectContribution, part_table
from foretell.insight.attribution.word_effects import (
    Masks,
    Numbers,
    WordRow,
    largest_in_order,
    leave_out,
    word_table,
)
from foretell.insight.contributions import record_contributions
from foretell.insight.readout import TaskReadout
from foretell.language_model import LanguageModel
from foretell.system.device import autocast
from foretell.text.words import Word, pieces_of, words_of
from foretell.typesetting.document import DocumentSection, Paragraph, Part
from foretell.typesetting.html import Shown
from foretell.typesetting.numbers import percent, signed

SHOWN_PARTS = 12


@dataclass(frozen=True)
class WordContribution:
    """A word of the texts: its effect on the logit, and its direct contribution.

    source: the index of its text among the texts of the example.
    """

    text: str
    effect: float
    value: float
    source: int = 0


@dataclass(frozen=True)
class SpecialTokens:
    """The tokens around the texts. value: their direct contribution. share: its share of all contributions.

    The share is relative to the sum of absolute values over words and special tokens.
    """

    names: tuple[str, ...]
    value: float
    share: float

    def parts(self) -> list[Part]:
        if not self.names:
            return []
        line = f"special tokens {' '.join(self.names)}: direct {signed(self.value)}"
        return [Paragraph(f"{line}, {percent(self.share)} of the direct contributions by absolute value")]


@dataclass(frozen=True, repr=False)
class LabelAttribution(Shown):
    """Contributions to `logit`: of words in the order of the texts, and of parts in the order of the model.

    The logit is the logit of `label` minus the logit of `against`, or minus the mean over all labels. For a number task
    it is the number, for a choice the score of the answer. The direct contributions of words and special tokens (or of
    parts) plus `constant`, the mean of the numbers, add up to `total`, which equals the logit up to rounding.
    unit: the unit of a row, `word` or `token`.
    """

    prediction: TaskPrediction
    label: str
    against: str
    unit: str
    words: list[WordContribution]
    special_tokens: SpecialTokens
    parts: list[DirectContribution]
    constant: float
    total: float
    logit: float

    def document(self) -> DocumentSection:
        """The prediction, a bar per word, the special tokens, and the largest parts."""
        title = f"direct contributions to {self.label}" + (f" {self.against}" if self.against else "")
        table = part_table(self.parts, SHOWN_PARTS, self.total, self.logit, self.constant)
        return DocumentSection(
            title,
            [
                Paragraph(f"predicted: {self.prediction.short().strip()}"),
                *self.tables(),
                *self.special_tokens.parts(),
                DocumentSection("by part of the model", [table]),
            ],
        )

    def tables(self) -> list[DocumentSection]:
        """The words of each text."""
        longest = max((abs(word.effect) for word in self.words), default=0.0)
        texts: dict[int, list[WordRow]] = {}
        for word in self.words:
            texts.setdefault(word.source, []).append(WordRow(word.text, word.effect, {"direct": signed(word.value)}))
        sections = []
        for source, rows in sorted(texts.items()):
            shown = largest_in_order(rows)
            title = f"by {self.unit}" + (f", text {source + 1}" if len(texts) > 1 else "")
            title += f", the {len(shown)} largest of {len(rows)}" if len(shown) < len(rows) else ""
            sections.append(DocumentSection(title, [word_table(shown, longest, self.unit)]))
        return sections

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "prediction": self.prediction.to_json()}


SPECIAL = -1  # the word index of a special token
EXAMPLES = {1: "text", 2: "pair"}  # by the number of texts


@torch.inference_mode()
def attribute_label(
    model: LanguageModel,
    texts: Sequence[str],
    label: str | None = None,
    against: str | None = None,
    pieces: bool = False,
) -> LabelAttribution:
    """Attribute the prediction of a tuned model for the texts of one example to its words.

    label: by default the predicted one. against: another label; by default the mean of all. pieces: use tokens instead
    of words. Raises UsageError for an unknown label, `against` with a number or a choice, and a model without a head.
    """
    head, inputs = head_of(model), input_format(model)
    texts = given_texts(head.task.reader, texts)
    (example,) = encode_examples([Example(texts, (), "the given text")], head.task, inputs)
    outputs = example_outputs(model, head, [example])[0]  # (C,)
    prediction = head.task.predictions.make(outputs, texts)
    asked = head.task.predictions.asked(texts, prediction.label if label is None else label, against)
    readout = make_readout(model, example, texts)
    sequences = readout.sequences(asked.output)
    divide = pieces_of if pieces else words_of
    divided = [divide(model.tokenizer, text) for text in texts]
    words = ExampleWords(head.task, inputs, example, divided, sequences)

    def number(outputs: Sequence[np.ndarray]) -> Numbers:
        compared = readout.compare(torch.from_numpy(np.stack(outputs)), asked.output, asked.against, dim=-1)
        return (readout.constant + readout.scale * compared).numpy()

    def without_words(masks: Masks) -> Numbers:
        return number(example_outputs(model, head, words.without(masks)))

    full, without = leave_out(without_words, len(words.words))
    values, special, parts = direct_contributions(model, words, readout, asked)
    total = sum(parts.values()) + readout.constant
    return LabelAttribution(
        prediction=prediction,
        label=asked.title,
        against=asked.minus,
        unit="token" if pieces else "word",
        words=[
            WordContribution(word.text, full - left, value, source)
            for (source, word), left, value in zip(words.words, without, values, strict=True)
        ],
        special_tokens=special,
        parts=[DirectContribution(name, value) for name, value in parts.items()],
        constant=readout.constant,
        total=total,
        logit=float(number([outputs])[0]),
    )


class ExampleWords:
    """The words of an example that affect its number, and the token sequences without some of them."""

    def __init__(
        self,
        kind: Kind,
        inputs: InputFormat,
        example: EncodedExample,
        texts: Sequence[list[Word]],
        used: Sequence[int] | None = None,
    ):
        """texts: the words of each text. used: the sequences that affect the number; by default all."""
        self.example = example
        words = {(source, at): word for source, each in enumerate(texts) for at, word in enumerate(each)}
        # Arranged like the ids, with the key of a word for each of its tokens; special tokens keep their ids
        keys = [
            [(source, at) for at, word in enumerate(each) for _ in word.tokens] for source, each in enumerate(texts)
        ]
        arranged = [inputs.join(group)[0] for group in kind.groups(keys)]
        self.sequences = list(range(len(arranged)) if used is None else used)
        read = {key for index in self.sequences for key in arranged[index]}
        present = [key for key in words if key in read]
        self.words = [(source, words[source, at]) for source, at in present]
        players = {key: player for player, key in enumerate(present)}
        # (T,) for each sequence: the index of each token's word; SPECIAL also for tokens that are always present
        self.owners = [np.array([players.get(key, SPECIAL) for key in row], int) for row in arranged]

    def without(self, masks: Masks) -> list[EncodedExample]:
        """The example with only the words in each mask (P,)."""
        rows = [(np.array(ids, int), owner) for ids, owner in zip(self.example.sequences, self.owners, strict=True)]
        kept = (tuple(ids[np.append(mask, True)[owner]].tolist() for ids, owner in rows) for mask in masks)
        return [replace(self.example, sequences=sequences) for sequences in kept]


def example_outputs(model: LanguageModel, head: TaskHead, examples: Sequence[EncodedExample]) -> list[np.ndarray]:
    """The outputs (C,) of each example; zeros for a text without tokens."""
    present = [index for index, example in enumerate(examples) if all(example.sequences)]
    outputs = head_outputs(model.decoder, head, [examples[index] for index in present], model.dtype)
    by_index = dict(zip(present, outputs, strict=True))
    nothing = np.zeros(head.settings.num_outputs)
    return [by_index.get(index, nothing) for index in range(len(examples))]


def direct_contributions(
    model: LanguageModel, words: ExampleWords, readout: TaskReadout, asked: AskedOutput
) -> tuple[list[float], SpecialTokens, dict[str, float]]:
    direction = readout.direction(asked.output, asked.against)
    by_word, by_part = np.zeros(len(words.words)), defaultdict[str, float](float)
    special = defaultdict[int, float](float)
    for index in words.sequences:
        ids = words.example.sequences[index]
        numbers, at = record_contributions(model, ids, by_token=True), readout.positions(len(ids))
        count = at.stop - at.start
        directions = (direction / count).expand(1, count, -1)
        by_token = numbers.of_tokens(at, directions)[:, 0].sum(0).tolist()
        for token, owner, value in zip(ids, words.owners[index].tolist(), by_token, strict=True):
            if owner == SPECIAL:
                special[token] += value
            else:
                by_word[owner] += value
        for name, value in zip(numbers.vector_names, numbers.of_parts(at, directions)[:, 0].tolist(), strict=True):
            by_part[name] += value
    around = float(np.abs(list(special.values())).sum())
    everything = around + float(np.abs(by_word).sum())
    names = tuple(model.tokenizer.text_of(token) for token in special)
    share = around / everything if everything else 0.0
    return by_word.tolist(), SpecialTokens(names, sum(special.values()), share), dict(by_part)


def readout_of(model: TaskInputModel, text: str = "") -> TaskReadout:
    """The head of a tuned model after the pass over an example. text: the first text of the example."""
    kind = head_of(model).task
    texts = kind.reader.given_texts([text, *model.others])
    (example,) = kind.encode([texts], input_format(model))
    return make_readout(model, example, texts, model.shown)


def make_readout(model: LanguageModel, example: EncodedExample, texts: Sequence[str], shown: int = 0) -> TaskReadout:
    """The head of a tuned model after the pass over sequence `shown` of an example."""
    head, sequences = head_of(model), example.sequences
    kind, factor, constant = head.task, head.settings.deviation, head.settings.mean

    def outputs(own: Tensor, *others: Tensor) -> Tensor:
        with torch.no_grad(), autocast(own.device, model.dtype):
            logits = kind.outputs_of_pass(head.linear, [*others[:shown], own, *others[shown:]])
        return logits if factor == 1 and not constant else constant + factor * logits.double()

    return kind.readout(
        names=kind.predictions.names(texts),
        weight=head.linear.weight.detach(),
        reads_mean=head.settings.pool == "mean",
        outputs=outputs,
        words=lambda: token_owners(model, example, texts, shown),
        scale=factor,
        constant=constant,
        others=tuple(ids for index, ids in enumerate(sequences) if index != shown),
        first=shown,
        example=EXAMPLES.get(kind.reader.form.fewest, "question and the answer"),
    )


def token_owners(model: LanguageModel, example: EncodedExample, texts: Sequence[str], shown: int) -> list[int]:
    """The word index of each token that the model reads; SPECIAL for the tokens around the texts."""
    kind, inputs = head_of(model).task, input_format(model)
    if example.positions:  # these are the last tokens of the words
        owners = np.searchsorted(example.positions, np.arange(len(example.sequences[0])))
        owners[: len(inputs.start)] = SPECIAL
        return owners.tolist()
    divided = [words_of(model.tokenizer, each) for each in texts]
    return ExampleWords(kind, inputs, example, divided).owners[shown].tolist()
