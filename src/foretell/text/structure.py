"""What a tokenizer's JSON document says about itself: kind, special tokens, unknown token, start and end.

Everything is derived from the document alone, so it survives saving and loading without a file beside it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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


def added_tokens(document: Document) -> dict[str, int]:
    """Name to id of every token that was added to the model's own vocabulary, special or not, in order of their ids."""
    return {token["content"]: token["id"] for token in sorted(document["added_tokens"], key=lambda token: token["id"])}


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


def start_ids(document: Document) -> tuple[int, ...]:
    """The ids that the tokenizer's own template puts before every text (Llama's <s>); none for GPT-2."""
    return _around(document)[0]


def closing_ids(document: Document) -> tuple[int, ...]:
    """The ids that the tokenizer's own template puts after every text, as models that make vectors of texts do."""
    return _around(document)[1]


def _around(document: Document) -> tuple[tuple[int, ...], tuple[int, ...]]:
    for template in _templates(document):
        steps = template["single"]
        place = next((number for number, step in enumerate(steps) if "Sequence" in step), len(steps))
        before, after = (_ids_of(part, template) for part in (steps[:place], steps[place + 1 :]))
        if before or after:
            return before, after
    return (), ()


def _ids_of(steps: list[dict[str, Any]], template: dict[str, Any]) -> tuple[int, ...]:
    names = [step["SpecialToken"]["id"] for step in steps if "SpecialToken" in step]
    return tuple(number for name in names for number in template["special_tokens"][name]["ids"])


def end_ids(document: Document) -> tuple[int, ...]:
    """The ids that end a text, the one that ends a document first.

    They are those that the document's template declares, else the first of END_NAMES.
    """
    for template in _templates(document):
        used = _used_in(template)
        entries = template["special_tokens"]
        unused = [number for name, entry in entries.items() if name not in used for number in entry["ids"]]
        closing = [number for entry in entries.values() for number in entry["ids"] if number not in start_ids(document)]
        if candidates := unused or closing[:1]:
            return tuple(candidates)
    special = special_tokens(document)
    return tuple(special[name] for name in END_NAMES if name in special)[:1]


def with_ends(document: Document, tokens: Sequence[str]) -> Document:
    """The same tokenizer, declaring `tokens` (special tokens of it) as those that end a text; the first, a document.

    A tokenizer.json has no field for it and refuses unknown ones; a template that lists tokens without using them
    is valid everywhere and changes no ids.
    """
    special = special_tokens(document)
    template = next(_templates(document), _plain_template())
    used = {name: entry for name, entry in template["special_tokens"].items() if name in _used_in(template)}
    # An entry may have any name; that of the first token would hide the entry of a start token that is the same
    name = f"end: {tokens[0]}" if tokens[0] in used else tokens[0]
    declared = {name: {"id": name, "ids": [special[token] for token in tokens], "tokens": list(tokens)}}
    return _with_template(document, {**template, "special_tokens": used | declared})


def with_start(document: Document, token: str) -> Document:
    """The same tokenizer with a template that puts `token` (one of its special tokens) before every text."""
    step = {"SpecialToken": {"id": token, "type_id": 0}}
    entry = {token: {"id": token, "ids": [special_tokens(document)[token]], "tokens": [token]}}
    plain = _plain_template()
    single, pair = ([step, *plain[name]] for name in ("single", "pair"))
    return _with_template(document, {**plain, "single": single, "pair": pair, "special_tokens": entry})


def _with_template(document: Document, template: dict[str, Any]) -> Document:
    others = [step for step in _post_processors(document) if step["type"] != "TemplateProcessing"]
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
