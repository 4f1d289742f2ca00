"""Build the Hugging Face `tokenizers` object from its JSON document, and turn its failures into one line."""

from __future__ import annotations

import json
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import tokenizers

from foretell.errors import ForetellError, TokenizerError

Document = dict[str, Any]  # the content of a tokenizer.json


@contextmanager
def rust_failures(what: str) -> Generator[None]:
    """Raise whatever `tokenizers` raises as a TokenizerError that begins with `what`."""
    try:
        yield
    except ForetellError:  # also Interrupted, which a signal raises wherever the program is
        raise
    except Exception as error:  # tokenizers raises bare Exception, so nothing narrower catches it
        raise TokenizerError(f"{what}: {_one_line(error)}") from error
    except BaseException as error:
        # A panic in Rust derives from BaseException and its type cannot be imported.
        if type(error).__name__ != "PanicException":
            raise
        raise TokenizerError(f"{what}: {_one_line(error)}") from error


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:200]


def make_backend(document: Document, origin: str) -> tokenizers.Tokenizer:
    """The `tokenizers` object of a document; `origin` names it in the TokenizerError that refuses a broken one."""
    refuse_broken_shape(document, origin)
    with rust_failures(f"{origin} is not a tokenizer that can be read"):
        backend = tokenizers.Tokenizer.from_str(json.dumps(settled(document)))
    _refuse_shared_ids(backend.get_vocab(), origin)
    _refuse_renumbered(document, backend, origin)
    return backend


def _refuse_shared_ids(vocabulary: dict[str, int], origin: str) -> None:
    if not vocabulary:
        raise TokenizerError(f"{origin} holds no tokens; a tokenizer needs at least one")
    tokens: dict[int, str] = {}
    for token, number in vocabulary.items():
        if tokens.setdefault(number, token) != token:
            raise TokenizerError(f"{origin}: the tokens {tokens[number]!r} and {token!r} share the id {number}")


def _refuse_renumbered(document: Document, backend: tokenizers.Tokenizer, origin: str) -> None:
    """The library numbers added tokens as it likes where theirs leave a gap, and says nothing."""
    for token in _added_tokens(document):
        number = backend.token_to_id(token["content"])
        if number != token["id"]:
            raise TokenizerError(
                f"{origin}: the token {token['content']!r} has id {token['id']}, but ids would put it at {number}; "
                "the added tokens must continue the vocabulary without a gap"
            )


def settled(document: Document) -> Document:
    """The same tokenizer without what would change a text silently.

    Published files carry truncation (one common GPT-2 file cuts every text at 50 tokens), padding and BPE dropout
    (random ids). Added tokens written <|like this|> are control tokens whatever their flag says: text from a user
    must not become one.
    """
    model = dict(document["model"])
    if "dropout" in model:
        model["dropout"] = None
    added = [{**token, "special": token.get("special") or _is_control(token)} for token in _added_tokens(document)]
    return {**document, "truncation": None, "padding": None, "added_tokens": added, "model": model}


def _added_tokens(document: Document) -> list[dict[str, Any]]:
    return document.get("added_tokens") or []


def _is_control(token: dict[str, Any]) -> bool:
    content = str(token.get("content"))
    return content.startswith("<|") and content.endswith("|>")


def refuse_broken_shape(document: Document, origin: str) -> None:
    """Raise TokenizerError where the JSON is no tokenizer at all, or where its merges would make Rust panic."""
    model = document.get("model") if isinstance(document, dict) else None
    if not isinstance(model, dict):
        raise TokenizerError(f"{origin} is not a tokenizer: it has no 'model' section; give a tokenizer.json")
    added = _added_tokens(document)
    if not isinstance(added, list) or not all(isinstance(token, dict) for token in added):
        raise TokenizerError(f"{origin} is not a tokenizer: its 'added_tokens' is not a list of tokens")
    if isinstance(model.get("merges"), list) and isinstance(model.get("vocab"), dict):
        _refuse_broken_merges(model, origin)


def _refuse_broken_merges(model: dict[str, Any], origin: str) -> None:
    vocabulary = model["vocab"]
    skipped = len(model.get("continuing_subword_prefix") or "")
    for number, merge in enumerate(model["merges"], start=1):
        parts = merge.split(" ") if isinstance(merge, str) else merge
        if not isinstance(parts, list) or len(parts) != 2 or not all(isinstance(part, str) for part in parts):
            raise TokenizerError(f"{origin}: merge {number} is not a pair of tokens: {str(merge)[:60]!r}")
        for token in (*parts, parts[0] + parts[1][skipped:]):
            if token not in vocabulary:
                raise TokenizerError(
                    f"{origin}: merge {number} needs the token {token[:60]!r}, which the vocabulary lacks"
                )
