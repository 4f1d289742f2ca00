"""A tag for each word, such as named entities or parts of speech: `--task tag`.

Words are encoded one by one, with a space before each except the first. The head reads the last token of each word, at
which the decoder has read the whole word. The loss is the mean over words.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from foretell.data.table import Format, Row, Table
from foretell.errors import DataError, UsageError
from foretell.finetuning.examples import TEXT_NAMES, Example, ExampleForm, ExampleReader, cell_text, label_text
from foretell.finetuning.figures import class_report, log_softmax, scores
from foretell.finetuning.inputs import EncodedExample, InputFormat, Target, TaskBatch
from foretell.finetuning.kind import Kind
from foretell.finetuning.label_kind import MOST_LABELS, PROBABILITIES, in_order, label_index
from foretell.finetuning.prediction_format import PredictionFormat, TaskPrediction
from foretell.finetuning.settings import Columns, HeadSettings, TuningSettings
from foretell.insight.readout import TagsReadout
from foretell.typesetting import document
from foretell.typesetting.numbers import percent

TOKENS, TAGS = "tokens", "tags"  # the columns of a CoNLL file
OUTSIDE = "O"
SPAN_TAG = re.compile(r"[BIES]-.+")
NEW_DOCUMENT = "-DOCSTART-"

Span = tuple[str, int, int]  # the type, the first word, and the word after the last


class Conll(Format):
    """CoNLL: a word per line, with its tag in the last column; columns are separated by spaces or tabs, and sentences
    by blank lines. Lines that begin with -DOCSTART- are skipped."""

    suffixes = (".conll", ".bio", ".iob")

    def rows(self, table: Table) -> Iterator[Row]:
        """A row per sentence, with a list of words and, if there are several columns, one of tags."""
        sentence: list[list[str]] = []
        for line_number, line in enumerate(chain(table.lines(), [""]), start=1):
            cells = line.split()
            if cells and cells[0] == NEW_DOCUMENT:
                continue
            if cells and sentence and len(cells) != len(sentence[0]):
                raise DataError(
                    f"{table}, line {line_number}: {len(cells)} columns, but its sentence begins with "
                    f"{len(sentence[0])}; give every word the same columns"
                )
            if cells:
                sentence.append(cells)
            elif sentence:
                row: dict[str, Any] = {TOKENS: [word for word, *_ in sentence]}
                row |= {TAGS: [tag for *_, tag in sentence]} if len(sentence[0]) > 1 else {}
                yield Row(f"{table}, line {line_number - len(sentence)}", row)
                sentence = []


@dataclass(frozen=True)
class TagPrediction(TaskPrediction):
    """A tag for each word with its probability; None for a word that did not fit the context."""

    words: tuple[str, ...] = ()
    tags: tuple[str | None, ...] = ()
    confidences: tuple[float | None, ...] = ()

    def rows(self) -> list[tuple[str, str, str]]:
        shares = ["" if value is None else percent(value) for value in self.confidences]
        return list(zip(self.words, (tag or "" for tag in self.tags), shares, strict=True))

    def document(self) -> document.DocumentSection:
        return document.DocumentSection("tags", [document.Table(("word", "tag", "probability"), self.rows())])

    def short(self) -> str:
        """The spans, or all tags if they are not tags of spans."""
        if not is_spans(self.tags):
            return " ".join(tag or "-" for tag in self.tags)
        return ", ".join(f"{kind} {' '.join(self.words[a:b])}" for kind, a, b in spans(self.tags)) or "no span"

    def to_json(self) -> dict[str, Any]:
        return {TOKENS: list(self.words), TAGS: list(self.tags), PROBABILITIES: list(self.confidences)}


class TagReader(ExampleReader):
    """Reads sentences: the texts of an example are its words."""

    form = ExampleForm(most=None, words="a text, or its words")
    text_names = (TOKENS, "words", "token", *TEXT_NAMES)
    text_word = "words"
    otherwise = Conll()

    def given_texts(self, texts: Sequence[str]) -> tuple[str, ...]:
        """The words: one text is split at its white space."""
        return tuple(texts[0].split() or texts) if len(texts) == 1 else super().given_texts(texts)

    def texts(self, row: Row, columns: Columns) -> tuple[str, ...]:
        """The words of a list, or of a text split at white space."""
        words = row.cells.get(columns.texts[0])
        if isinstance(words, list) and all(isinstance(word, str) for word in words):
            return tuple(words)
        return tuple(cell_text(row, columns.texts[0]).split())

    def text_name(self, index: int, columns: Columns) -> str:
        return f"{columns.texts[0]}, item {index + 1}"

    def labels(self, row: Row, texts: tuple[str, ...], columns: Columns) -> tuple[str, ...]:
        """The tags: a list of words or numbers, or a text with white space between them."""
        assert columns.label is not None
        tags = row.cells.get(columns.label)
        tags = tags.split() if isinstance(tags, str) else tags
        if not texts:
            raise DataError(f"{row.where}: there is no word in column {columns.texts[0]!r}; remove the row")
        if not isinstance(tags, list) or len(tags) != len(texts):
            count = f"{len(tags):,}" if isinstance(tags, list) else "no list of"
            raise DataError(
                f"{row.where}: {len(texts):,} words, but {count} tags in column {columns.label!r}; give one per word"
            )
        return tuple(label_text(tag, columns.label, row.where) for tag in tags)


class TagFormat(PredictionFormat):
    answer = TAGS

    def make(self, outputs: np.ndarray, texts: Sequence[str]) -> TagPrediction:
        rows = outputs[: len(texts)]
        best = np.exp(log_softmax(rows)).max(1).tolist()
        names = [None if np.isnan(row[0]) else self.settings.labels[row.argmax()] for row in rows]
        shares = [None if name is None else value for name, value in zip(names, best, strict=True)]
        return TagPrediction(words=tuple(texts), tags=tuple(names), confidences=tuple(shares))

    def cells(self, prediction: TagPrediction | None) -> dict[str, Any]:
        return {name: cell for name, cell in super().cells(prediction).items() if name != TOKENS}

    def table_cells(self, prediction: TagPrediction | None) -> dict[str, Any]:
        return {self.column: self.cells(prediction)[self.column]}


class TagKind(Kind):
    """A tag for each word: cross entropy on a logit per tag."""

    reader = TagReader("tag", ("tags", "ner_tags", "pos_tags", "labels", "tag", "label"))
    format = TagFormat
    readout = TagsReadout
    splits_by_label = False
    drops_words = False
    reads_case = True  # names begin with a capital letter
    pools = ("last",)
    scores = ("accuracy", "span_f1")

    # --- targets

    @classmethod
    def fit(cls, settings: HeadSettings, examples: Sequence[Example]) -> HeadSettings:
        tags = {tag for example in examples for tag in example.labels}
        if len(tags) == 1:
            raise DataError(f"every word has the tag {min(tags)!r}; there is nothing to learn")
        if len(tags) > MOST_LABELS:
            raise DataError(
                f"{len(tags):,} different tags, such as {min(tags)[:30]!r}: at most {MOST_LABELS:,} can be learned; "
                "name the right column with --label-column"
            )
        return settings.model_copy(update={"labels": in_order(tags)})

    def check(self, tuning: TuningSettings) -> None:
        super().check(tuning)
        if tuning.class_weights != "none" or tuning.word_dropout:
            raise UsageError("--class-weights and --word-dropout are not for --task tag, where each word has a label")
        if tuning.best_by == "span_f1" and not is_spans(self.settings.labels):
            raise UsageError("--best-by span_f1 needs tags such as B-PER, I-PER and O; give --best-by accuracy")

    def target(self, example: Example) -> Target:
        return tuple(label_index(tag, self.settings.labels, example.where) for tag in example.labels)

    def weights(self, examples: Sequence[EncodedExample], class_weights: str) -> np.ndarray:
        """In proportion to the number of words, so that the loss of a batch is the mean over words."""
        counts = np.array([sum(at >= 0 for at in example.positions) for example in examples])
        return counts / max(1.0, counts.mean())

    # --- inputs

    def encode(self, examples: Sequence[Sequence[str]], inputs: InputFormat) -> list[EncodedExample]:
        return super().encode([[words[0], *(f" {word}" for word in words[1:])] for words in examples], inputs)

    def arrange(self, texts: list[list[int]], inputs: InputFormat) -> EncodedExample:
        ids = [token for word in texts for token in word]
        (kept,) = inputs.fitting([list(range(len(ids)))])
        places = {index: len(inputs.start) + position for position, index in enumerate(kept)}
        ends = np.cumsum([len(word) for word in texts]) - 1
        positions = tuple(places.get(int(end), -1) if word else -1 for end, word in zip(ends, texts, strict=True))
        sequence = [*inputs.start, *(ids[index] for index in kept)]
        return EncodedExample((sequence,), positions=positions, cut=len(ids) - len(kept))

    # --- outputs of the head, and the loss

    def outputs(self, layer: nn.Module, hidden: Tensor, batch: TaskBatch) -> Tensor:
        """(B, W, C) for the words of each example, from hidden states (B, T, D); NaN for words that were cut off."""
        rows = torch.arange(len(hidden), device=hidden.device)[:, None]
        outputs = layer(hidden[rows, batch.positions.clamp(min=0)])  # (B, W, C)
        return outputs.masked_fill((batch.positions < 0)[..., None], float("nan"))

    def outputs_of_pass(self, layer: nn.Module, sequences: Sequence[Tensor]) -> Tensor:
        """(T, C)."""
        return layer(sequences[0])

    def losses(self, outputs: Tensor, batch: TaskBatch, label_smoothing: float) -> Tensor:
        targets, is_read = batch.targets.long().flatten(), batch.positions >= 0  # (B*W,), (B, W)
        losses = F.cross_entropy(outputs.flatten(0, 1), targets, reduction="none", label_smoothing=label_smoothing)
        return losses.view_as(is_read).masked_fill(~is_read, 0).sum(1) / is_read.sum(1).clamp(min=1)  # (B,)

    # --- figures: a word that was cut off counts as outside of spans

    def figures(self, outputs: Sequence[np.ndarray], targets: Sequence[Target]) -> dict[str, float]:
        logits, indices = read_words(outputs, targets)
        loss = float(-log_softmax(logits)[np.arange(len(indices)), indices].mean())
        return {"loss": loss} | self.scores_of(self.chosen(outputs, targets), targets)

    def chosen(self, outputs: Sequence[np.ndarray], targets: Sequence[Target]) -> list[list[str]]:
        return [
            [OUTSIDE if np.isnan(row[0]) else self.settings.labels[row.argmax()] for row in each[: len(target)]]
            for each, target in zip(outputs, targets, strict=True)
        ]

    def tags(self, targets: Sequence[Target]) -> list[list[str]]:
        return [[self.settings.labels[int(index)] for index in target] for target in targets]

    def scores_of(self, predicted: Sequence[Sequence[str]], targets: Sequence[Target]) -> dict[str, float]:
        """The accuracy over words, and the micro F1 of spans if the tags are spans."""
        right = self.tags(targets)
        hits = [one == other for pair in zip(predicted, right, strict=True) for one, other in zip(*pair, strict=True)]
        figures = {"accuracy": sum(hits) / len(hits)}
        if is_spans(self.settings.labels):
            counts = np.array([*span_counts(predicted, right).values(), (0, 0, 0)]).sum(0)
            figures["span_f1"] = scores(*counts.tolist())["f1"]
        return figures

    def report(self, outputs: Sequence[np.ndarray], targets: Sequence[Target]) -> dict[str, Any]:
        labels, (logits, indices) = self.settings.labels, read_words(outputs, targets)
        report = {**self.figures(outputs, targets), **class_report(logits, indices, labels)}
        if is_spans(labels):
            counts = span_counts(self.chosen(outputs, targets), self.tags(targets))
            report["by_span"] = {kind: scores(*counts[kind]) for kind in sorted(counts)}
        return report

    def baseline(self, train: Sequence[Target], targets: Sequence[Target]) -> dict[str, Any]:
        frequent = Counter(int(index) for target in train for index in target).most_common(1)[0][0]
        tag = self.settings.labels[frequent]
        figures = self.scores_of([[tag] * len(target) for target in targets], targets)
        return {"rule": "the most frequent tag", "label": tag, **figures}


def read_words(outputs: Sequence[np.ndarray], targets: Sequence[Target]) -> tuple[np.ndarray, np.ndarray]:
    """The logits (N, C) and tag indices (N,) of all words that were not cut off."""
    logits = np.concatenate([each[: len(target)] for each, target in zip(outputs, targets, strict=True)])
    indices = np.array([int(index) for target in targets for index in target])
    is_read = ~np.isnan(logits[:, 0])
    return logits[is_read], indices[is_read]


def is_spans(tags: Iterable[str | None]) -> bool:
    """True for tags of spans: O, and B-, I-, E- or S- before a type."""
    return all(tag is None or tag == OUTSIDE or SPAN_TAG.fullmatch(tag) for tag in tags)


def spans(tags: Sequence[str | None]) -> list[Span]:
    """The spans of BIO or IOBES tags, by the rules of conlleval (Tjong Kim Sang and De Meulder 2003) and seqeval.

    A span continues with I or E of its type after B or I; any other tag ends it and, unless it is O, begins another.
    """
    closed: list[Span] = []
    before, kind_before, start = OUTSIDE, "", 0
    for index, tag in enumerate([*tags, OUTSIDE]):
        prefix, _, kind = (tag or OUTSIDE).partition("-")
        goes_on = prefix in ("I", "E") and before in ("B", "I") and kind == kind_before
        if before != OUTSIDE and not goes_on:
            closed.append((kind_before, start, index))
        if not goes_on:
            start = index
        before, kind_before = prefix, kind
    return closed


def span_counts(predicted: Sequence[Sequence[str]], right: Sequence[Sequence[str]]) -> dict[str, tuple[int, int, int]]:
    """For each type, the numbers of correctly predicted spans (both bounds), of predicted spans, and of true spans."""
    hits, ours, theirs = Counter[str](), Counter[str](), Counter[str]()
    for tags, right_tags in zip(predicted, right, strict=True):
        marked, true = spans(tags), spans(right_tags)
        hits.update(kind for kind, _, _ in set(marked) & set(true))
        ours.update(kind for kind, _, _ in marked)
        theirs.update(kind for kind, _, _ in true)
    return {kind: (hits[kind], ours[kind], theirs[kind]) for kind in ours.keys() | theirs.keys()}
