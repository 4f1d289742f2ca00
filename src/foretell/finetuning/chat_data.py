"""Tokenized conversations of a run: made once from files, split, and kept in the run as rows of a token store."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from foretell.data.rows import RowStream, TokensInMemory, loss_split
from foretell.data.shard_writer import TokenWriter, write_index
from foretell.data.shards import INDEX, TokenStore
from foretell.distributed.world import current_world
from foretell.errors import CheckpointError, DataError, TokenizerError, counted
from foretell.finetuning.conversations import Conversation
from foretell.finetuning.kinds import Truncation
from foretell.numerics.randomness import permutation, stream_key
from foretell.storage.files import sha256
from foretell.storage.safetensors_files import open_tensors
from foretell.text import Tokenizer
from foretell.text.chat_template import ChatFormat, ChatTokens

FORMER_FILE = "chats.safetensors"  # see `read_chat_file`


@dataclass(frozen=True)
class EncodedConversation:
    """A conversation, and its tokens: usually one ChatTokens (`ChatFormat.encode`)."""

    conversation: Conversation
    chats: list[ChatTokens]


@dataclass(frozen=True)
class ChatData:
    """The conversations for training, and the held-out ones. digest: the SHA-256 of the file that lists their files."""

    train: RowStream
    held_out: RowStream
    digest: str

    @classmethod
    def write(
        cls,
        folder: Path,
        tokenizer: Tokenizer,
        train: Sequence[EncodedConversation],
        held_out: Sequence[EncodedConversation],
    ) -> ChatData:
        """Write the tokens as rows of a token store, with the answers as loss masks."""
        records = {}
        for name, conversations in (("train", train), ("validation", held_out)):
            with (
                TokenWriter(folder, name, tokenizer.vocab_size) as ids,
                TokenWriter(folder, loss_split(name), tokenizer.vocab_size) as loss_mask,
            ):
                for each in conversations:
                    ids.add_bytes(sum(len(message.content.encode()) for message in each.conversation.messages))
                    for chat in each.chats:
                        ids.add_document(np.array(chat.ids), 0)
                        loss_mask.add_document(np.array(chat.is_answer, dtype=np.uint8), 0)
            records |= {name: ids.record, loss_split(name): loss_mask.record}
        extra = {"rows": {"loss_on": "answer"}}
        write_index(folder, tokenizer.fingerprint, tokenizer.vocab_size, records, extra)
        return cls._of(TokenStore.open(folder), sha256(folder / INDEX))

    @classmethod
    def open(cls, folder: Path, tokenizer: Tokenizer, digest: str) -> ChatData:
        """Open and verify the store of `write`, or the file of a run that has none; see `read_chat_file`.

        Raises CheckpointError if it does not have this digest, DataError for other damage.
        """
        path = folder / (FORMER_FILE if (folder / FORMER_FILE).exists() else INDEX)
        if not path.is_file() or sha256(path) != digest:
            raise CheckpointError(f"{path} is not as it was written; restore it, or start again with another --out")
        if path.name == FORMER_FILE:
            return cls(*read_chat_file(path), digest=digest)
        store = TokenStore.open(folder, tokenizer.fingerprint)
        if current_world().is_first:
            store.verify()  # training would not notice a changed id
        return cls._of(store, digest)

    @classmethod
    def _of(cls, store: TokenStore, digest: str) -> ChatData:
        return cls(RowStream.open(store, "train"), RowStream.open(store, "validation"), digest)


def read_chat_file(path: Path) -> tuple[RowStream, RowStream]:
    """The training and the held-out rows of a run that was begun before conversations were kept in a token store."""
    with open_tensors(path) as file:

        def read(part: str) -> RowStream:
            lengths = file.get_tensor(f"{part}.lengths").tolist()
            ids, is_answer = (file.get_tensor(f"{part}.{name}").split(lengths) for name in ("ids", "is_answer"))
            return RowStream(TokensInMemory(ids), TokensInMemory(is_answer))

        return read("train"), read("held_out")


def rows_in_memory(conversations: Sequence[EncodedConversation]) -> RowStream:
    """The tokens of conversations in memory, with the answers as loss masks."""
    chats = [chat for each in conversations for chat in each.chats]
    return RowStream(TokensInMemory([chat.ids for chat in chats]), TokensInMemory([chat.is_answer for chat in chats]))


def encode_all(
    conversations: Sequence[Conversation], chat_format: ChatFormat, context_length: int, truncation: Truncation | None
) -> tuple[list[EncodedConversation], list[str]]:
    """The conversations that fit the context with their tokens, and notes on the others.

    Longer conversations are cut off at their ends (`tail`, also without a `truncation`), left out (`drop`), or a
    DataError (`never`). Raises TokenizerError, with the row, for one that the template or the tokenizer cannot write.
    """
    encoded = [EncodedConversation(each, encode_one(each, chat_format)) for each in conversations]
    room = context_length + 1  # the last token is predicted, but not read
    pairs = [(chat, each.conversation) for each in encoded for chat in each.chats]
    long = [(chat, conversation) for chat, conversation in pairs if len(chat) > room]
    if truncation == "never" and long:
        longest, conversation = max(long, key=lambda pair: len(pair[0]))
        raise DataError(
            f"{len(long):,} of {len(pairs):,} conversations do not fit the context of {context_length} tokens, the "
            f"longest is {conversation.where} with {len(longest):,}; --truncate drop leaves them out, --truncate tail "
            "cuts off their ends"
        )
    if truncation == "drop":
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
        done = "left out" if truncation == "drop" else "cut off at their ends"
        notes.append(f"{len(long):,} of {len(pairs):,} conversations are longer than the context: {done}")
    if without := sum(len(each.chats) for each in cut) - sum(len(each.chats) for each in fitting):
        notes.append(f"{without:,} of {len(pairs):,} conversations have no answer within the context: left out")
    return fitting, notes


def encode_one(conversation: Conversation, chat_format: ChatFormat) -> list[ChatTokens]:
    """The tokens of a conversation; errors name its row."""
    try:
        return chat_format.encode(conversation.messages)
    except TokenizerError as error:
        raise TokenizerError(f"{conversation.where}: {error}") from None


def split(
    conversations: Sequence[EncodedConversation], fraction: float, seed: int
) -> tuple[list[EncodedConversation], list[EncodedConversation]]:
    """Split into training and held-out conversations by the seed; two or more leave at least one in each part."""
    count = len(conversations)
    held = min(count - 1, max(1, round(count * fraction))) if fraction > 0 else 0
    chosen = set(permutation(stream_key("held-out chats", seed), count)[:held].tolist())
    train = [conversation for index, conversation in enumerate(conversations) if index not in chosen]
    return train, [conversations[index] for index in sorted(chosen)]
