"""Texts of a task as token sequences: start, delimiter and extract tokens (Radford et al. 2018, figure 1).

With the pool `extract`:

    classify, regress       start text extract
    entailment              start premise delimiter hypothesis extract
    similarity              start first delimiter second extract, and start second delimiter first extract
    choice                  start question delimiter answer extract, for every answer

With `last` and `mean` there is no extract token, and the start is the tokenizer's own, if it has one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from foretell.errors import DataError
from foretell.finetuning.settings import PAIRED, HeadSettings, InputTokens, Pool, TaskName
from foretell.text import Tokenizer

START, DELIMITER, EXTRACT = "<|start|>", "<|delimiter|>", "<|extract|>"

Sequences = tuple[list[int], ...]  # of one example: one, two orders, or one per answer


def choose_tokens(tokenizer: Tokenizer, task: TaskName, pool: Pool) -> InputTokens:
    """The special tokens of a format: the tokenizer's own start token where it has one, new ones for the others."""
    start = None if tokenizer.start_ids or pool != "extract" else START
    delimiter = DELIMITER if task in PAIRED or task == "choice" else None
    return InputTokens(start=start, delimiter=delimiter, extract=EXTRACT if pool == "extract" else None)


def with_input_tokens(tokenizer: Tokenizer, tokens: InputTokens) -> Tokenizer:
    """The tokenizer with the special tokens of a format."""
    return tokenizer.with_special_tokens([name for name in (tokens.start, tokens.delimiter, tokens.extract) if name])


@dataclass(frozen=True)
class EncodedTexts:
    """The token sequences of an example. cut: tokens that did not fit the context and were left out."""

    sequences: Sequences
    cut: int = 0


class InputFormat:
    """Encodes the texts of a task for a tokenizer that has the special tokens of its settings."""

    def __init__(self, tokenizer: Tokenizer, settings: HeadSettings, context_length: int):
        self.tokenizer, self.settings, self.context_length = tokenizer, settings, context_length
        tokens = settings.tokens
        self.start = list(tokenizer.start_ids) if tokens.start is None else self._ids(tokens.start)
        self.delimiter, self.extract = self._ids(tokens.delimiter), self._ids(tokens.extract)

    def _ids(self, name: str | None) -> list[int]:
        return [] if name is None else [self.tokenizer.special_tokens[name]]

    def encode_all(self, rows: Sequence[Sequence[str]]) -> list[EncodedTexts]:
        """The sequences of many examples, given their texts."""
        ids = iter(self.tokenizer.encode_batch([text for texts in rows for text in texts]))
        return [self.arrange([next(ids).tolist() for _ in texts]) for texts in rows]

    def arrange(self, texts: list[list[int]]) -> EncodedTexts:
        """The sequences of one example, given the ids of its texts."""
        if self.settings.task == "choice":
            pairs = [[texts[0], answer] for answer in texts[1:]]
        elif self.settings.task == "similarity":
            pairs = [texts, texts[::-1]]
        else:
            pairs = [texts]
        joined = [self.join(pair) for pair in pairs]
        return EncodedTexts(tuple(ids for ids, _ in joined), max(cut for _, cut in joined))

    def join(self, texts: list[list[int]]) -> tuple[list[int], int]:
        """Texts between the special tokens, and how many tokens were left out to fit the context."""
        room = self.context_length - len(self.start) - len(self.extract) - len(self.delimiter) * (len(texts) - 1)
        kept = fit(texts, room, self.settings.truncate or "tail")
        ids = list(self.start)
        for index, text in enumerate(kept):
            ids += (self.delimiter if index else []) + text
        return [*ids, *self.extract], sum(map(len, texts)) - sum(map(len, kept))


def fit(texts: list[list[int]], room: int, truncate: str) -> list[list[int]]:
    """Texts cut to `room` tokens in all: short ones stay whole, long ones share what is left evenly."""
    kept, left = dict[int, list[int]](), max(0, room)
    order = sorted(range(len(texts)), key=lambda index: len(texts[index]))
    for done, index in enumerate(order):
        share = left // (len(texts) - done)
        kept[index] = cut_to(texts[index], min(len(texts[index]), share), truncate)
        left -= len(kept[index])
    return [kept[index] for index in range(len(texts))]


def cut_to(text: list[int], length: int, truncate: str) -> list[int]:
    """A text without its head, tail or middle, with `length` tokens left."""
    left_out = len(text) - length
    if left_out <= 0:
        return text
    if truncate == "head":
        return text[left_out:]
    front = length if truncate == "tail" else -(-length // 2)
    return text[:front] + text[front + left_out :]


def check_cuts(encoded: Sequence[EncodedTexts], where: Sequence[str], settings: HeadSettings, context: int) -> str:
    """A line about texts that were cut, empty if there are none; without `truncate` they are a DataError."""
    cuts = [(texts.cut, place) for texts, place in zip(encoded, where, strict=True) if texts.cut]
    if not cuts:
        return ""
    most, place = max(cuts, key=lambda cut: cut[0])
    count = f"{len(cuts):,} of {len(encoded):,} examples"
    if settings.truncate is None:
        raise DataError(
            f"{count} do not fit the model's context of {context}, by up to {most:,} tokens ({place}); give --truncate "
            "tail to leave out their end, or head or middle"
        )
    return f"{count} lose their {settings.truncate} to fit the context of {context}: up to {most:,} tokens ({place})"
