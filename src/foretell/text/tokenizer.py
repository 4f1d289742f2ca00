"""The tokenizer: text to ids and back, on Hugging Face `tokenizers`.

Two rules that the library does not keep by itself: text never becomes a special token unless the caller allows it,
and nothing is truncated, padded or dropped in silence.
"""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path

import numpy as np
import tokenizers

from foretell.errors import OutputError, TokenizerError
from foretell.text import structure
from foretell.text.backend import Document, make_backend, rust_failures
from foretell.text.byte_level import piece_bytes, readable
from foretell.text.coverage import (
    refuse_surrogates,
    refuse_unknown_characters,
    refuse_unknown_symbols,
    refuse_unknown_words,
    symbols_of,
)
from foretell.text.pieces import iter_pieces, iter_stream_pieces, safe_cut
from foretell.text.stream import StreamDecoder, make_stream

_GROUP_SIZE = 1_000_000  # characters encoded at a time: the library keeps about 100 bytes a token until a group is done

CHAT_TEMPLATE = "chat_template.jinja"  # where transformers looks for it

_REFUSE_UNKNOWN = {"characters": refuse_unknown_characters, "words": refuse_unknown_words}


class Tokenizer:
    """A vocabulary and the way to write text in it; immutable, and safe to share between threads.

    `kind` is 'characters', 'words', 'bytes', 'bpe', or a loaded family ('unigram', 'wordpiece').
    `start_ids` are what the tokenizer's own template puts before every text: Llama's `<s>`, none for everything
    trained here, GPT-2 and Qwen. `encode` leaves them out, `encode_input` puts them in front.
    `end_ids` end a text that a model writes (a chat model may have several); the first of them, `end_id`, ends each
    document in training data. It is None where the vocabulary has no such token.
    `special_tokens` maps the special tokens' names to ids, `added_tokens` all that were added to the vocabulary.
    `vocab_size` is the highest id + 1. `chat_template` is the Jinja text that came with the tokenizer, if any.
    `notes` says, in a line each, what the files that it was read from disagree about and what was done.
    """

    def __init__(self, document: Document, origin: str = "the tokenizer"):
        """Build from the content of a tokenizer.json; `origin` names it in the TokenizerError that refuses it."""
        self._plain = make_backend(document, origin)
        self._plain.encode_special_tokens = True
        document = self.document()
        vocabulary = self._plain.get_vocab()
        self.kind: str = structure.kind_of(document)
        self.special_tokens: dict[str, int] = structure.special_tokens(document)
        self.added_tokens: dict[str, int] = structure.added_tokens(document)
        self.start_ids: tuple[int, ...] = structure.start_ids(document)
        self.end_ids: tuple[int, ...] = structure.end_ids(document)
        self.chat_template: str | None = None
        self.notes: tuple[str, ...] = ()
        self.vocab_size: int = max(vocabulary.values()) + 1
        self._byte_level = structure.is_byte_level(document)
        self._word_end: str = document["model"].get("end_of_word_suffix") or ""
        self._decoder = document["decoder"]
        self._cut = safe_cut(document)
        self._unknown_id = structure.unknown_id(document)
        self._forbidden = frozenset(self.special_tokens.values()) - {self._unknown_id}
        self._symbols = symbols_of(document)

    def __repr__(self) -> str:
        return f"Tokenizer(kind={self.kind!r}, vocab_size={self.vocab_size}, end_id={self.end_id})"

    @property
    def start_id(self) -> int | None:
        """The first of the start tokens, or None."""
        return next(iter(self.start_ids), None)

    @property
    def end_id(self) -> int | None:
        """The token that ends a document, or None."""
        return next(iter(self.end_ids), None)

    def described(self, chat_template: str | None, notes: Sequence[str] = ()) -> Tokenizer:
        """The same tokenizer with what was found beside it: the chat template, and notes."""
        other = copy.copy(self)
        other.chat_template, other.notes = chat_template, tuple(notes)
        return other

    # ------------------------------------------------------------------ text to ids

    def encode_input(self, text: str, allow_special: bool = False) -> list[int]:
        """What a model reads for a text: the start tokens of this tokenizer, if it has any, then `encode` of the text.

        These are transformers' ids with add_special_tokens=True, but for what a template may put after a text: that
        is left out (and `notes` says so), since a text that is to go on has not ended. Raises as `encode` does.
        """
        return [*self.start_ids, *self.encode(text, allow_special)]

    def encode(self, text: str, allow_special: bool = False) -> list[int]:
        """The ids of a text alone; the name of a special token in it becomes that token only with `allow_special`.

        Raises TokenizerError for a lone surrogate, and for what the vocabulary cannot write without an unknown token.
        """
        backend = self._special if allow_special else self._plain
        self._refuse_unwritable(text, backend)
        with self._named_failures([text], backend):
            ids = backend.encode(text, add_special_tokens=False).ids
        if not allow_special:
            self._refuse_special(ids)
        return ids

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
        """The same ids as `encode` for many texts, in parallel; one int32 array a text. Raises as `encode` does."""
        return list(self._iter_encoded(texts))

    def encode_long(self, text: str) -> np.ndarray:
        """The same ids as `encode` for a text of any length, int32, in bounded memory. Raises as `encode` does.

        A tokenizer whose way of splitting is not known gets the text whole, and then memory is not bounded.
        """
        refuse_surrogates(text)  # here, so that the position in the message counts from the text's own beginning
        return np.concatenate([np.empty(0, np.int32), *self._iter_encoded(iter_pieces(text, self._cut))])

    def encode_stream(self, texts: Iterable[str]) -> Iterator[np.ndarray]:
        """The ids of one text that comes in parts, int32, as `encode` gives them for the whole; raises as it does."""
        return self._iter_encoded(iter_stream_pieces(texts, self._cut))

    def _iter_encoded(self, texts: Iterable[str]) -> Iterator[np.ndarray]:
        for group in _groups(texts):
            for text in group:
                self._refuse_unwritable(text, self._plain)
            with self._named_failures(group, self._plain):
                encodings = self._plain.encode_batch_fast(group, add_special_tokens=False)
            for encoding in encodings:
                ids = encoding.ids  # a property that makes a new list each time
                self._refuse_special(ids)
                yield np.array(ids, dtype=np.int32)

    def _refuse_unwritable(self, text: str, backend: tokenizers.Tokenizer) -> None:
        refuse_surrogates(text)
        if self._symbols is not None:
            refuse_unknown_symbols(backend, self._symbols, text)

    @contextmanager
    def _named_failures(self, texts: list[str], backend: tokenizers.Tokenizer) -> Generator[None]:
        """The library's error, or a better one where a word or character outside the vocabulary is to blame."""
        try:
            with rust_failures("the text cannot be encoded"):
                yield
        except TokenizerError:
            refuse = _REFUSE_UNKNOWN.get(self.kind)
            if refuse is not None and self._unknown_id is None:
                for text in texts:
                    refuse(backend, backend.get_vocab(), text)
            raise

    def _refuse_special(self, ids: list[int]) -> None:
        """The last guard: a model can find a special token's name in its own vocabulary (WordLevel, Unigram)."""
        if not self._forbidden.isdisjoint(ids):
            name = self.piece(next(token for token in ids if token in self._forbidden))
            raise TokenizerError(
                f"the text holds {name!r}, which is a special token of this tokenizer; "
                "take it out, or allow special tokens if it is meant"
            )

    @cached_property
    def _special(self) -> tokenizers.Tokenizer:
        # A second object, not a flag switched back and forth: threads and errors cannot leave it in the wrong state.
        return make_backend(self.document(), "the tokenizer")

    # ------------------------------------------------------------------ ids to text

    def decode(self, ids: Sequence[int] | np.ndarray, skip_special: bool = False) -> str:
        """The text of the ids; incomplete UTF-8 becomes U+FFFD. Raises TokenizerError for an id that is no token."""
        numbers = [int(token) for token in ids]
        self.pieces(numbers)  # the library leaves out ids that it does not know
        with rust_failures("the ids cannot be decoded"):
            return self._plain.decode(numbers, skip_special_tokens=skip_special)

    def stream(self, skip_special: bool = False, before: Sequence[int] = ()) -> StreamDecoder:
        """A decoder that takes ids one by one; what it returns adds up to `decode` of all of them.

        `before` are ids whose text stands before theirs: a word after another then comes with its space.
        """
        special = frozenset(self.special_tokens.values())
        words = [token for token in before if token not in special]
        return make_stream(self._decoder, self.piece, self.decode, special if skip_special else frozenset(), words)

    def pieces(self, ids: Iterable[int]) -> list[str]:
        """The vocabulary strings of the ids, such as 'Ġthe' or 'âĢ'. TokenizerError: an id that is no token."""
        return [self.piece(token) for token in ids]

    def piece(self, token: int) -> str:
        """The vocabulary string of one id. Raises TokenizerError where the id is no token."""
        piece = self._plain.id_to_token(token) if 0 <= token < self.vocab_size else None
        if piece is None:
            raise TokenizerError(f"{token} is not a token id of this tokenizer; its ids are 0 to {self.vocab_size - 1}")
        return piece

    def text_of(self, token: int) -> str:
        """One token as a person reads it: ' the'; bytes that are no character show as '<0xE2>'.

        Special tokens show as their name. Raises TokenizerError where the id is no token.
        """
        piece = self.piece(token)
        if piece in self.special_tokens:
            return piece
        if self._byte_level:
            return readable(piece_bytes(piece))
        if self._word_end and piece.endswith(self._word_end):
            return piece.removesuffix(self._word_end) + " "
        return piece if self.kind in ("characters", "words") else piece.replace("▁", " ")

    # ------------------------------------------------------------------ identity

    @cached_property
    def fingerprint(self) -> str:
        """16 hexadecimal digits that name this tokenizer: sha256 of its JSON with sorted keys and no spaces."""
        canonical = json.dumps(self.document(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()[:16]

    def document(self) -> Document:
        """The content of the tokenizer.json, as the library reads it, with every default written out."""
        return json.loads(self._plain.to_str())

    def save(self, path: str | Path) -> None:
        """Write a tokenizer.json that `tokenizers` and transformers read too, and its chat template beside it.

        Raises OutputError where it cannot.
        """
        try:
            Path(path).write_text(self._plain.to_str(pretty=True), encoding="utf-8", newline="\n")
            if self.chat_template is not None:
                Path(path).with_name(CHAT_TEMPLATE).write_text(self.chat_template, encoding="utf-8", newline="\n")
        except OSError as error:
            raise OutputError(f"{path}: the tokenizer cannot be written there: {error.strerror}") from error


def _groups(texts: Iterable[str]) -> Iterator[list[str]]:
    """The texts in lists of about _GROUP_SIZE characters."""
    group: list[str] = []
    size = 0
    for text in texts:
        group.append(text)
        size += len(text)
        if size >= _GROUP_SIZE:
            yield group
            group, size = [], 0
    if group:
        yield group
