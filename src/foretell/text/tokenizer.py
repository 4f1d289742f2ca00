"""The tokenizer: text to ids and back, based on Hugging Face `tokenizers`.

It adds two guarantees to the library: text never becomes a special token unless the caller allows it, and nothing is
silently truncated, padded or dropped.
"""

from __future__ import annotations

import copy
import hashlib
import json
import logging
import re
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import tokenizers

from foretell.errors import OutputError, TokenizerError, UsageError, as_path, did_you_mean
from foretell.storage.files import check_target
from foretell.text import tokenizer_json
from foretell.text import untrusted_tokenizer as untrusted
from foretell.text.streaming import (
    PIECE_SIZE,
    StreamDecoder,
    is_byte,
    iter_pieces,
    iter_stream_pieces,
    make_stream,
    safe_cut,
)
from foretell.text.tokenizer_json import TokenizerJson, piece_bytes, readable

if TYPE_CHECKING:
    import numpy as np

CHAT_TEMPLATE = "chat_template.jinja"  # transformers' file name
ALLOW_SPECIAL = "; --allow-special, or allow_special=True, reads it as the special token"
_GROUP_SIZE = 1_000_000  # characters encoded at a time; meanwhile the library needs about 100 bytes per token

Item = TypeVar("Item")

logger = logging.getLogger(__name__)


class Tokenizer:
    """A vocabulary with encoding and decoding; immutable, and safe to share between threads.

    kind: 'characters', 'words', 'bytes', 'bpe', or a loaded family ('unigram', 'wordpiece').
    start_ids: the ids that the tokenizer's template puts before every text: Llama's `<s>`, none for GPT-2, Qwen and
    tokenizers trained here. `encode` does not add them, `encode_input` does.
    end_ids: the ids that end a generated text (a chat model may have several). The first one, `end_id`, ends each
    document in training data; it is None if the vocabulary has no end token.
    special_tokens: the ids of special tokens, by name. added_tokens: the same for all tokens added to the vocabulary.
    vocab_size: the highest id + 1. chat_template: the Jinja text that came with the tokenizer, if any.
    notes: a line for each contradiction between the tokenizer's files, with its resolution.
    """

    def __init__(self, content: TokenizerJson, origin: str = "the tokenizer"):
        """Build from the content of a tokenizer.json; the TokenizerError for an invalid one begins with `origin`."""
        self._plain = untrusted.make_backend(content, origin)
        self._plain.encode_special_tokens = True
        self._encoder = self._plain  # encodes text; see `reading`
        content = untrusted.with_defaults(content, self._plain)
        untrusted.refuse_broken_templates(content, origin)
        self.kind: str = tokenizer_json.tokenizer_kind(content)
        self.special_tokens: dict[str, int] = tokenizer_json.special_tokens(content)
        self.added_tokens: dict[str, int] = tokenizer_json.added_tokens(content)
        self.start_ids: tuple[int, ...] = tokenizer_json.template_ids(content)[0]
        self.end_ids: tuple[int, ...] = tokenizer_json.end_ids(content)
        self.chat_template: str | None = None
        self.notes: tuple[str, ...] = ()
        self.vocab_size: int = tokenizer_json.vocab_size(content)
        self._spells_bytes = tokenizer_json.spells_bytes(content)
        self._byte_level = tokenizer_json.is_byte_level(content)
        self._word_end: str = content["model"].get("end_of_word_suffix") or ""
        self._decoder = content["decoder"]
        self._cut = safe_cut(content)
        self.unknown_id: int | None = tokenizer_json.unknown_id(content)
        self._forbidden = frozenset(self.special_tokens.values()) - {self.unknown_id}
        self.spelled_names = self._names_of(self._forbidden)
        self._noted: set[str] = set()  # names that `note_spelled` has logged
        self._writable = untrusted.writable_characters(content)

    def __repr__(self) -> str:
        return f"Tokenizer(kind={self.kind!r}, vocab_size={self.vocab_size}, end_id={self.end_id})"

    @property
    def start_id(self) -> int | None:
        return next(iter(self.start_ids), None)

    @property
    def end_id(self) -> int | None:
        return next(iter(self.end_ids), None)

    @property
    def read_names(self) -> list[str]:
        """The special tokens whose names in a text are read as the tokens."""
        return [name for name, token_id in self.special_tokens.items() if token_id not in self._forbidden]

    def with_chat_template(self, chat_template: str | None, notes: Sequence[str] = ()) -> Tokenizer:
        """A copy of the tokenizer with a chat template, and the notes from loading it."""
        other = copy.copy(self)
        other.chat_template, other.notes, other._noted = chat_template, tuple(notes), set()
        return other

    def with_special_tokens(self, names: Sequence[str]) -> Tokenizer:
        """A copy of the tokenizer with further special tokens, whose ids begin at `vocab_size`; existing names stay.

        Raises TokenizerError for a name that is a token of ordinary text.
        """
        known = self._plain.get_vocab()
        if taken := next((name for name in names if name in known and name not in self.special_tokens), None):
            raise TokenizerError(f"{taken!r} is already an ordinary token; give the special token another name")
        if all(name in self.special_tokens for name in names):
            return self
        other = Tokenizer(tokenizer_json.with_special(self.to_json(), names))
        return other.with_chat_template(self.chat_template, self.notes)

    def with_start(self, name: str) -> Tokenizer:
        """A copy of the tokenizer that puts this special token before every text; it may be the end token.

        Raises TokenizerError for a name that is not a special token.
        """
        self._refuse_not_special([name])
        content = tokenizer_json.with_start(self.to_json(), name)
        ends = [self.piece(token_id) for token_id in self.end_ids]
        content = tokenizer_json.with_ends(content, ends) if ends else content
        return Tokenizer(content).with_chat_template(self.chat_template, self.notes)

    def reading(self, names: Iterable[str]) -> Tokenizer:
        """A copy of the tokenizer that encodes these special tokens' names in any text as the tokens.

        Raises TokenizerError for a name that is not a special token.
        """
        names = sorted(set(names))
        if not names:
            return self
        self._refuse_not_special(names)
        # An ordinary added token is recognised in every text, and the other special tokens are still read as text
        content = untrusted.without_text_changes(self.to_json())
        content["post_processor"] = None  # it would trim offsets
        for token in content["added_tokens"]:
            token["special"] = token["special"] and token["content"] not in names
        other = copy.copy(self)
        other._encoder = tokenizers.Tokenizer.from_str(json.dumps(content))
        other._encoder.encode_special_tokens = True
        other._cut = safe_cut(content)
        other._forbidden = self._forbidden - {self.special_tokens[name] for name in names}
        other.spelled_names = self._names_of(other._forbidden)
        return other

    def _names_of(self, token_ids: Collection[int]) -> re.Pattern[str]:
        """A pattern for the names of these special tokens; longer names are matched first."""
        names = [name for name, token_id in self.special_tokens.items() if token_id in token_ids]
        return re.compile("|".join(map(re.escape, sorted(names, key=len, reverse=True))) or "(?!)")

    def note_spelled(self, texts: Iterable[str], advice: str = "") -> None:
        """Log the names of special tokens in texts that are encoded as ordinary text; each name once."""
        names = {name for text in texts for name in self.spelled_names.findall(text)} - self._noted
        if names:
            self._noted |= names
            logger.warning(f"{', '.join(map(repr, sorted(names)[:8]))} in the text is read as ordinary text{advice}")

    def note_unknown(self, ids: Iterable[int]) -> None:
        """Log a line if most ids of a training's data, without special tokens, are the unknown one."""
        if self.unknown_id is None:
            return
        words = [token_id for token_id in ids if token_id not in self._forbidden]
        if 2 * (unknown := words.count(self.unknown_id)) > len(words):
            name = self.piece(self.unknown_id)
            logger.warning(
                f"vocabulary  {unknown / len(words):.0%} of the tokens are {name}: words that it does not have"
            )

    def _refuse_not_special(self, names: Sequence[str]) -> None:
        known = ", ".join(list(self.special_tokens)[:8]) or "none"
        for name in names:
            if name not in self.special_tokens:
                near = did_you_mean(name, self.special_tokens)
                raise TokenizerError(f"{name!r} is not a special token of this tokenizer{near}; it has {known}")

    # ------------------------------------------------------------------ text to ids

    def encode_input(self, text: str, allow_special: bool = False) -> list[int]:
        """A model's input ids for a text: any start tokens, then `encode` of the text.

        These are transformers' ids with add_special_tokens=True, except that a text which begins with the start token
        gets no second one, and that tokens which a template puts after a text are left out, with a note, because the
        text will be continued. Raises the errors of `encode`.
        """
        return self.with_start_ids(self.encode(text, allow_special))

    def with_start_ids(self, ids: list[int]) -> list[int]:
        """The ids after the start tokens."""
        return [*self.missing_start(ids), *ids]

    def make_row(self, texts: Iterable[list[int]]) -> tuple[list[int], int]:
        """Join the ids of a text, or of a prompt and its answer, to a row; returns it and the length of the first part.

        The row begins with the start tokens and ends with the end token, unless the text already does.
        """
        first, *answers = texts
        prompt = self.with_start_ids(first)
        row, ends = [*prompt, *chain.from_iterable(answers)], self.end_ids[:1]
        return row + ([] if tuple(row[-1:]) == ends else [*ends]), len(prompt)

    def missing_start(self, ids: Sequence[int] | np.ndarray) -> tuple[int, ...]:
        """The start tokens; empty if the ids begin with them already."""
        return () if tuple(ids[: len(self.start_ids)]) == self.start_ids else self.start_ids

    def encode(self, text: str, allow_special: bool = False) -> list[int]:
        """The ids of a text, without start tokens; a special token's name becomes that token only if `allow_special`.

        Raises TokenizerError for a lone surrogate, and for text that the vocabulary cannot write if it has no unknown
        token.
        """
        backend = self._special if allow_special else self._encoder
        ids = self._encoding(text, backend).ids
        if not allow_special:
            self._refuse_special(ids)
        return ids

    def id_of(self, text: str | int) -> int:
        """The id of one token by its text, or the id itself. Raises UsageError, TokenizerError for an unknown id."""
        if not isinstance(text, str):
            self.piece(int(text))
            return int(text)
        ids = self.encode(text, allow_special=True)
        if len(ids) != 1:
            pieces = ", ".join(repr(self.text_of(token_id)) for token_id in ids[:8]) + ", ..." * (len(ids) > 8)
            raise UsageError(
                f"{text[:40]!r} is {len(ids)} tokens of this model{pieces and f': {pieces}'}; give one token"
            )
        if ids[0] == self.unknown_id and text != self.piece(ids[0]):
            raise UsageError(f"{text[:40]!r} is not in the vocabulary of this model; give one of its tokens")
        return ids[0]

    def offsets(self, text: str) -> list[tuple[int, int]]:
        """The range (start, end) of characters in the text for each token of `encode(text)`.

        Tokens that are parts of one character have the same offsets. Raises the errors of `encode`.
        """
        return self._located(text).offsets

    def encode_answers(self, context: str, answers: Sequence[str]) -> list[tuple[list[int], int]]:
        """For each answer, the input ids of context and answer, and the index of the answer's first token.

        Both are encoded as one text, so the ids do not depend on where it is divided; a token with characters of both
        is the answer's. Raises the errors of `encode`.
        """
        # What comes before the context's last safe cut is encoded once: an answer cannot change its ids
        cuts = [] if self._cut is None else self._cut.finditer(context, max(0, len(context) - PIECE_SIZE))
        cut = max((match.start() for match in cuts), default=0)
        head, rest, rows = self.encode_long(context[:cut]).tolist(), context[cut:], []
        for answer in answers:
            encoding = self._located(rest + answer)
            self._refuse_special(encoding.ids)
            # At least 1: a SentencePiece vocabulary puts a token without characters before a text
            before = len(head) + sum(max(1, end) <= len(rest) for _, end in encoding.offsets)
            row = self.with_start_ids(ids := [*head, *encoding.ids])
            rows.append((row, max(len(self.start_ids), len(row) - len(ids) + before)))
        return rows

    def _located(self, text: str) -> tokenizers.Encoding:
        """A text's ids and their offsets, which a post-processor may not trim: a token's spaces belong to it."""
        return self._encoding(text, self._encoder if self._encoder.post_processor is None else self._untrimmed)

    @cached_property
    def _untrimmed(self) -> tokenizers.Tokenizer:
        backend = untrusted.make_backend({**self.to_json(), "post_processor": None}, "the tokenizer")
        backend.encode_special_tokens = True
        return backend

    def _encoding(self, text: str, backend: tokenizers.Tokenizer) -> tokenizers.Encoding:
        self._refuse_unwritable(text, backend)
        with self._named_failures([text], backend):
            return backend.encode(text, add_special_tokens=False)

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
        """The ids of many texts, as from `encode`, in parallel; an int32 array per text. Raises the errors of `encode`.

        Long texts are encoded in pieces, because the library needs 200 bytes per character. With a pre-tokenizer that
        is unknown to `safe_cut`, texts are not cut.
        """
        import numpy as np  # imported here, because it takes 0.1 s and short prompts do not need it

        pieces = [list(iter_pieces(text, self._cut)) for text in texts]
        for text, parts in zip(texts, pieces, strict=True):
            if len(parts) > 1:  # check the whole text, so that positions in messages count from its beginning
                untrusted.refuse_surrogates(text)
        encoded, none = self._iter_encoded(chain.from_iterable(pieces)), np.empty(0, np.int32)
        return [
            next(encoded) if len(parts) == 1 else np.concatenate([none, *islice(encoded, len(parts))])
            for parts in pieces
        ]

    def encode_long(self, text: str) -> np.ndarray:
        """The ids of `encode`, as int32, for a text of any length in bounded memory. Raises the errors of `encode`."""
        return self.encode_batch([text])[0]

    def cut_stream(self, texts: Iterable[str]) -> Iterator[str]:
        """Cut a text that arrives in parts into pieces; their joined ids are the ids of the whole text."""
        return iter_stream_pieces(texts, self._cut)

    def _iter_encoded(self, texts: Iterable[str]) -> Iterator[np.ndarray]:
        import numpy as np

        for group in in_groups(texts, len, _GROUP_SIZE):
            for text in group:
                self._refuse_unwritable(text, self._encoder)
            with self._named_failures(group, self._encoder):
                encodings = self._encoder.encode_batch_fast(group, add_special_tokens=False)
            for encoding in encodings:
                ids = encoding.ids  # the property makes a new list at each access
                self._refuse_special(ids)
                yield np.array(ids, dtype=np.int32)

    def _refuse_unwritable(self, text: str, backend: tokenizers.Tokenizer) -> None:
        untrusted.refuse_surrogates(text)
        if self._writable is not None:
            untrusted.refuse_dropped_characters(backend, self._writable, text, byte_level=self._spells_bytes)

    @contextmanager
    def _named_failures(self, texts: list[str], backend: tokenizers.Tokenizer) -> Generator[None]:
        """Raise the library's error, or an error that names the word or character outside the vocabulary."""
        try:
            with untrusted.rust_failures("the text cannot be encoded"):
                yield
        except TokenizerError:
            if self.kind in ("characters", "words") and self.unknown_id is None:
                for text in texts:
                    untrusted.refuse_unknown(backend, text, characters=self.kind == "characters")
            raise

    def _refuse_special(self, ids: list[int]) -> None:
        """Refuse special tokens encoded from text: WordLevel and Unigram vocabularies can contain their names."""
        if not self._forbidden.isdisjoint(ids):
            name = self.piece(next(token_id for token_id in ids if token_id in self._forbidden))
            raise TokenizerError(
                f"the text holds {name!r}, which is a special token of this tokenizer; "
                "remove it, or allow special tokens if that is intended"
            )

    @cached_property
    def _special(self) -> tokenizers.Tokenizer:
        # A second object instead of a flag, which threads and errors could leave in the wrong state
        return untrusted.make_backend(self.to_json(), "the tokenizer")

    # ------------------------------------------------------------------ ids to text

    def decode(self, ids: Sequence[int] | np.ndarray, skip_special: bool = False) -> str:
        """The text of the ids; incomplete UTF-8 becomes U+FFFD. Raises TokenizerError for an unknown id."""
        ids = [int(token_id) for token_id in ids]
        self.pieces(ids)  # the library silently leaves out unknown ids
        with untrusted.rust_failures("the ids cannot be decoded"):
            return self._plain.decode(ids, skip_special_tokens=skip_special)

    def stream(self, skip_special: bool = False, before: Sequence[int] = ()) -> StreamDecoder:
        """A decoder that takes ids one by one; its joined results equal `decode` of all ids.

        before: the ids before the first one; with these, the first word gets the space before it.
        """
        special = frozenset(self.special_tokens.values())
        words = [token_id for token_id in before if token_id not in special]
        return make_stream(self._decoder, self.piece, self.decode, special if skip_special else frozenset(), words)

    def pieces(self, ids: Iterable[int]) -> list[str]:
        """The vocabulary strings of the ids, such as 'Ġthe' or 'âĢ'. Raises TokenizerError for an unknown id."""
        return [self.piece(token_id) for token_id in ids]

    def has(self, token_id: int) -> bool:
        """True if the id exists; there may be gaps between ids."""
        return 0 <= token_id < self.vocab_size and self._plain.id_to_token(token_id) is not None

    def piece(self, token_id: int) -> str:
        piece = self._plain.id_to_token(token_id) if 0 <= token_id < self.vocab_size else None
        if piece is None:
            raise TokenizerError(
                f"{token_id} is not a token id of this tokenizer; its ids are 0 to {self.vocab_size - 1}"
            )
        return piece

    def token_bytes(self) -> tuple[bytes, ...]:
        """The UTF-8 bytes of each id, in order of the ids; empty for special tokens.

        Raises TokenizerError for a tokenizer whose tokens depend on the tokens before them, as with spaces.
        """
        return self._token_bytes

    @cached_property
    def _token_bytes(self) -> tuple[bytes, ...]:
        if not self._byte_level and self.kind != "characters":
            raise TokenizerError(
                f"a regex or a JSON schema needs a byte-level or character tokenizer, but this one is {self.kind}"
            )
        special = frozenset(self.special_tokens.values())
        spell = piece_bytes if self._byte_level else str.encode
        pieces = ("" if token in special else self._plain.id_to_token(token) or "" for token in range(self.vocab_size))
        return tuple(map(spell, pieces))

    def bytes_of(self, token_id: int) -> bytes:
        """The bytes of one token, which may be a part of a character; for a special token, its name.

        Raises TokenizerError for an unknown id.
        """
        piece = self.piece(token_id)
        if is_byte(piece) and piece not in self.special_tokens:
            return bytes([int(piece[3:5], 16)])
        if self._byte_level and piece not in self.special_tokens:
            return piece_bytes(piece)
        return self.text_of(token_id).encode()

    def text_of(self, token_id: int) -> str:
        """One token as readable text: ' the'; incomplete characters as '<0xE2>', special tokens as their name.

        Raises TokenizerError for an unknown id.
        """
        piece = self.piece(token_id)
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
        """16 hexadecimal digits that identify this tokenizer: SHA-256 of its JSON with sorted keys and no spaces."""
        canonical = json.dumps(self.to_json(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()[:16]

    def to_json(self) -> TokenizerJson:
        """The content of a tokenizer.json as the library writes it, with all defaults."""
        return json.loads(self._plain.to_str())

    def save(self, path: str | Path, *, overwrite: bool = False) -> None:
        """Write a tokenizer.json, which `tokenizers` and transformers can read, and the chat template next to it.

        Raises OutputError if a file exists, unless `overwrite`, or cannot be written.
        """
        target = as_path("the path", path)
        contents = {target: self._plain.to_str(pretty=True)}
        if self.chat_template is not None:
            contents[target.with_name(CHAT_TEMPLATE)] = self.chat_template
        for file in contents:
            check_target(file, overwrite=overwrite)
        try:
            for file, content in contents.items():
                file.write_text(content, encoding="utf-8", newline="\n")
        except OSError as error:
            raise OutputError(f"{path}: the tokenizer cannot be written there: {error.strerror}") from error


def in_groups(items: Iterable[Item], size: Callable[[Item], int], limit: int) -> Iterator[list[Item]]:
    """Split items into lists; each ends when the sum of its sizes reaches `limit`."""
    group, total = list[Item](), 0
    for item in items:
        group.append(item)
        total += size(item)
        if total >= limit:
            yield group
            group, total = [], 0
    if group:
        yield group
