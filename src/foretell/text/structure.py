"""What a tokenizer's JSON document says about itself: kind, special tokens, unknown token, start and end.

Everything is derived from the document alone, so it survives saving and loading without a file beside it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from foretell.text.backend import Document
from foretell.text.documents import EVERY_CHARACTER

# The token that ends a document, under the names that published tokenizers give it; the first one present counts.
END_NAMES = (
    "<|endoftext|>",  # GPT-2, Qwen base models, and everything trained here
    "<|end_of_text|>",  # Llama 3
    "</s>",  # Llama 1 and 2, Mistral, T5
    "<eos>",  # Gemma
    "<EOS>",
    "<|im_end|>",  # chat models that carry no other
    "<|eos|>",
    "[EOS]",
)


def kind_of(document: Document) -> str:
    """'characters', 'words', 'bytes' or 'bpe'; 'unigram' and 'wordpiece' for loaded tokenizers of those families."""
    model = document["model"]
    if model["type"] == "WordLevel":
        return "characters" if document["pre_tokenizer"] == EVERY_CHARACTER else "words"
    if model["type"] == "BPE" and is_byte_level(document) and not model["merges"]:
        return "bytes"
    return model["type"].lower()


def is_byte_level(document: Document) -> bool:
    """Whether the vocabulary spells bytes in GPT-2's table."""
    decoder = document["decoder"]
    return decoder is not None and decoder["type"] == "ByteLevel"


def special_tokens(document: Document) -> dict[str, int]:
    """Name to id of every special token, in order of their ids."""
    special = [token for token in document["added_tokens"] if token["special"]]
    return {token["content"]: token["id"] for token in sorted(special, key=lambda token: token["id"])}


def token_id(document: Document, name: str) -> int | None:
    """The id of a token, added or of the model's own vocabulary; None where there is none of that name."""
    added = {token["content"]: token["id"] for token in document["added_tokens"]}
    vocabulary = document["model"]["vocab"]
    if isinstance(vocabulary, list):  # Unigram: pairs of piece and score, in order of their ids
        vocabulary = {piece: number for number, (piece, _) in enumerate(vocabulary)}
    return added.get(name, vocabulary.get(name))


def unknown_id(document: Document) -> int | None:
    """The id that the model writes for what it does not know, or None where it has no such token."""
    model = document["model"]
    if model["type"] == "Unigram":
        return model["unk_id"]
    return token_id(document, model["unk_token"])


def start_id(document: Document) -> int | None:
    """The id that the tokenizer's own template puts before every text (Llama's <s>); None for GPT-2, which has none."""
    for template in _templates(document):
        first = next(iter(template["single"]), {})
        if "SpecialToken" in first:
            return template["special_tokens"][first["SpecialToken"]["id"]]["ids"][0]
    return None


def end_id(document: Document) -> int | None:
    """The id of the token that ends a document: the one its template declares, else the first of END_NAMES."""
    for template in _templates(document):
        used = _used_in(template)
        ids = {name: entry["ids"][0] for name, entry in template["special_tokens"].items()}
        unused = [number for name, number in ids.items() if name not in used]
        candidates = unused or [number for number in ids.values() if number != start_id(document)]
        if candidates:
            return candidates[0]
    special = special_tokens(document)
    return next((special[name] for name in END_NAMES if name in special), None)


def with_end(document: Document, token: str) -> Document:
    """The same tokenizer, declaring `token` (one of its special tokens) as the one that ends a document.

    A tokenizer.json has no field for it and refuses unknown ones; a template that lists the token without using it
    is valid everywhere and changes no ids.
    """
    declared = {token: {"id": token, "ids": [special_tokens(document)[token]], "tokens": [token]}}
    others = [step for step in _post_processors(document) if step["type"] != "TemplateProcessing"]
    template = next(_templates(document), _plain_template())
    used = {name: entry for name, entry in template["special_tokens"].items() if name in _used_in(template)}
    template = {**template, "special_tokens": used | declared}
    return {**document, "post_processor": {"type": "Sequence", "processors": [*others, template]}}


def _used_in(template: dict[str, Any]) -> set[str]:
    steps = (*template["single"], *template["pair"])
    return {step["SpecialToken"]["id"] for step in steps if "SpecialToken" in step}


def _plain_template() -> dict[str, Any]:
    first, second = ({"Sequence": {"id": name, "type_id": 0}} for name in "AB")
    return {"type": "TemplateProcessing", "single": [first], "pair": [first, second], "special_tokens": {}}


def _post_processors(document: Document) -> list[dict[str, Any]]:
    processor = document["post_processor"]
    if processor is None:
        return []
    return processor["processors"] if processor["type"] == "Sequence" else [processor]


def _templates(document: Document) -> Iterator[dict[str, Any]]:
    return (step for step in _post_processors(document) if step["type"] == "TemplateProcessing")
