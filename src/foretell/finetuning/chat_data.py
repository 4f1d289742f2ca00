"""Tokenized conversations of a run: made once from files, split, and stored in the run for resuming."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from foretell.data.batch import IGNORED, PADDING, Batch, make_document_batch
from foretell.data.data_use import hash_documents
from foretell.data.loader import EpochOrder, iter_spread
from foretell.errors import CheckpointError, DataError, TokenizerError, counted
from foretell.files import new_files, sha256
from foretell.finetuning.conversations import Conversation
from foretell.finetuning.inputs import are_few
from foretell.randomness import permutation, stream_key
from foretell.safetensors_files import open_tensors, save_tensors
from foretell.text.chat_template import ChatFormat, ChatTokens

CHATS = "chats.safetensors"  # in the run's folder for tokens
Truncation = Literal["drop", "tail"]


@dataclass(frozen=True)
class EncodedConversation:
    """A conversation, and its tokens: usually one ChatTokens (`ChatFormat.encode`)."""

    conversation: Conversation
    chats: list[ChatTokens]


@dataclass(frozen=True)
class ChatData:
    """The conversations for training, and the held-out ones."""

    train: list[ChatTokens]
    held_out: list[ChatTokens]

    def save(self, folder: Path) -> None:
        """Write the file CHATS into a folder."""
        parts = {"train": self.train, "held_out": self.held_out}
        tensors = {f"{part}.{name}": tensor for part, chats in parts.items() for name, tensor in flat(chats).items()}
        with new_files(folder / CHATS) as (file,):
            save_tensors(file, tensors)

    @classmethod
    def load(cls, folder: Path, digest: str) -> ChatData:
        """Read the file of `save`; a CheckpointError unless it has this SHA-256."""
        path = folder / CHATS
        if not path.is_file() or sha256(path) != digest:
            state = "not as it was written" if path.exists() else "missing"
            raise CheckpointError(f"{path} is {state}; restore it, or start again with another --out")
        with open_tensors(path) as file:
            names = ("ids", "is_answer", "lengths")
            parts = {
                part: {name: file.get_tensor(f"{part}.{name}") for name in names} for part in ("train", "held_out")
            }
        return cls(unflattened(**parts["train"]), unflattened(**parts["held_out"]))


def flat(chats: Sequence[ChatTokens]) -> dict[str, Tensor]:
    """The concatenated ids, the mask of answers, and the length of each conversation."""
    return {
        "ids": torch.tensor([token for chat in chats for token in chat.ids], dtype=torch.int32),
        "is_answer": torch.tensor([flag for chat in chats for flag in chat.is_answer], dtype=torch.uint8),
        "lengths": torch.tensor([len(chat) for chat in chats], dtype=torch.int32),
    }


def unflattened(ids: Tensor, is_answer: Tensor, lengths: Tensor) -> list[ChatTokens]:
    """The inverse of `flat`."""
    sizes = lengths.tolist()
    pairs = zip(ids.split(sizes), is_answer.bool().split(sizes), strict=True)
    return [ChatTokens(tokens.tolist(), flags.tolist()) for tokens, flags in pairs]


def encode_all(
    conversations: Sequence[Conversation], chat_format: ChatFormat, context_length: int, truncation: Truncation | None
) -> tuple[list[EncodedConversation], list[str]]:
    """The conversations that fit the context with their tokens, and notes on the others.

    Longer conversations are left out (`drop`) or cut off at their ends (`tail`). Without a `truncation`, a few are left
    out, and more are a DataError. Raises TokenizerError, with the row, for a conversation that the template or the
    tokenizer cannot write.
    """
    encoded = [EncodedConversation(each, encode_one(each, chat_format)) for each in conversations]
    room = context_length + 1  # the last token is predicted, but not read
    pairs = [(chat, each.conversation) for each in encoded for chat in each.chats]
    long = [(chat, conversation) for chat, conversation in pairs if len(chat) > room]
    if truncation is None and not are_few(len(long), len(pairs)):
        longest, conversation = max(long, key=lambda pair: len(pair[0]))
        raise DataError(
            f"{len(long):,} of {len(pairs):,} conversations do not fit the context of {context_length} tokens, the "
            f"longest is {conversation.where} with {len(longest):,}; --truncate drop leaves them out, --truncate tail "
            "cuts off their ends"
        )
    if truncation != "tail":
        encoded = [replace(each, chats=[chat for chat in each.chats if len(chat) <= room]) for each in encoded]
    cut = [replace(each, chats=[chat.cut(room) for chat in each.chats]) for each in encoded]
    learnable = [replace(each, chats=[chat for chat in each.chats if any(chat.is_answer[1:])]) for each in cut]
    fitting = [each for each in learnable if each.chats]
    if not fitting:
        raise DataError(
            f"none of {counted(len(conversations), 'conversation')} (the first: {conversations[0].where}) has an "
            f"answer within the context of {context_length} tokens; take a model with a longer context"
        )
    notes = []
    if long:
        done = "cut off at their ends" if truncation == "tail" else "left out"
        notes.append(f"{len(long):,} of {len(pairs):,} conversations are longer than the context: {done}")
    if without := sum(len(each.chats) for each in cut) - sum(len(each.chats) for each in fitting):
        notes.append(f"{without:,} of {len(pairs):,} conversations have no answer within the context: left out")
    return fitting, notes


def hash_chats(chats: Sequence[ChatTokens]) -> np.ndarray:
    return hash_documents([chat.ids for chat in chats], is_whole=True)


def encode_one(conversation: Conversation, chat_format: ChatFormat) -> list[ChatTokens]:
    """The tokens of a conversation; errors name its row."""
    try:
        return chat_format.encode(conversation.messages)
    except TokenizerError as error:
        raise TokenizerError(f"{conversation.where}: {error}") from None


def tokens_of(conversations: Sequence[EncodedConversation]) -> list[ChatTokens]:
    return [chat for each in conversations for chat in each.chats]


def split(
    conversations: Sequence[EncodedConversation], fraction: float, seed: int
) -> tuple[list[EncodedConversation], list[EncodedConversation]]:
    """Split into training and held-out conversations by the seed; two or more leave at least one in each part."""
    count = len(conversations)
    held = min(count - 1, max(1, round(count * fraction))) if fraction > 0 else 0
    chosen = set(permutation(stream_key("held-out chats", seed), count)[:held].tolist())
    train = [conversation for index, conversation in enumerate(conversations) if index not in chosen]
    return train, [conversations[index] for index in sorted(chosen)]


class PackedChats:
    """Conversations of at most `context_length` + 1 tokens as rows of batches.

    length: the length of a row (T). Batches have document ids and positions, so that attention stays within a
    conversation, and loss weights of 1 for targets in answers. The rows are the same in every epoch, in a new order.
    """

    def __init__(self, chats: Sequence[ChatTokens], context_length: int, seed: int = 0):
        self.chats = chats
        self.length = self.row_length(chats, context_length)
        self.rows = pack([len(chat) for chat in chats], self.length + 1)
        self.order = EpochOrder("chats", seed, len(self.rows))

    @staticmethod
    def row_length(chats: Sequence[ChatTokens], context_length: int) -> int:
        """The length of a row (T): the context's, unless all conversations together are shorter."""
        return min(context_length, max(1, sum(map(len, chats)) - 1))

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def share_of_padding(self) -> float:
        return 1 - sum(map(len, self.chats)) / max(1, len(self.rows) * (self.length + 1))

    @property
    def answer_tokens(self) -> int:
        """The number of learned tokens per epoch."""
        return sum(chat.answer_tokens for chat in self.chats)

    def batch(self, step: int, batch_size: int) -> Batch:
        """The batch of a step, counted from 0; depends only on the step and the seed."""
        return self.make_batch(self.order.items(step, batch_size))

    def iter_batches(self, batch_size: int, max_tokens: int | None = None) -> Iterator[Batch]:
        """All rows in order, or evenly spread rows with about `max_tokens` tokens."""
        most = None if max_tokens is None else max_tokens // self.length
        yield from map(self.make_batch, iter_spread(len(self.rows), most, batch_size))

    def make_batch(self, rows: Sequence[int]) -> Batch:
        """The batch (B, T) of these rows; T is `length` in every batch."""
        shape = len(rows), self.length + 1
        ids = np.full(shape, IGNORED, dtype=np.int64)
        documents = np.full(shape, PADDING, dtype=np.int64)
        is_answer = np.zeros(shape, dtype=np.float32)
        for index, row in enumerate(rows):
            start = 0
            for document, number in enumerate(self.rows[row]):
                chat = self.chats[number]
                span = slice(start, start + len(chat))
                ids[index, span], documents[index, span], is_answer[index, span] = chat.ids, document, chat.is_answer
                start += len(chat)
        batch = make_document_batch(ids, documents)
        return replace(batch, loss_weights=batch.loss_weights * torch.from_numpy(is_answer[:, 1:]))


def pack(lengths: Sequence[int], room: int) -> list[list[int]]:
    """Pack items into rows of at most `room` by best fit, longest first (as in Krell et al. 2021, section 3.1).

    Each item goes into the fullest row that has room for it.
    """
    rows: list[list[int]] = []
    space: list[tuple[int, int]] = []  # (remaining room, row), sorted
    for item in sorted(range(len(lengths)), key=lambda item: (-lengths[item], item)):
        at = bisect_left(space, (lengths[item], -1))
        left, row = space.pop(at) if at < len(space) else (room, len(rows))
        if row == len(rows):
            rows.append([])
        rows[row].append(item)
        insort(space, (left - lengths[item], row))
    return rows
