"""A tokenizer.json completed by what the files beside it declare, and what they disagree about."""

from __future__ import annotations

from pathlib import Path

from foretell.errors import TokenizerError
from foretell.text import structure
from foretell.text.backend import Document
from foretell.text.declared import Declared
from foretell.text.documents import special_token


def completed(
    document: Document, declared: Declared, directory: Path, *, makes_start: bool = False
) -> tuple[Document, list[str]]:
    """The tokenizer with its added tokens, special tokens and end tokens, and notes on what was left out.

    `makes_start`: put the start token before every text where that is asked for; a tokenizer.json has its own template
    for that. Raises TokenizerError where the end token is in no file.
    """
    document = _with_added(document, declared)
    document, notes = _with_specials(document, declared, directory)
    if makes_start and declared.adds_start and declared.start in structure.special_tokens(document):
        document = structure.with_start(document, declared.start)
    ends, more = _end_names(document, declared)
    known = structure.special_tokens(document)
    if ends and tuple(known[name] for name in ends) != structure.end_ids(document):
        document = structure.with_ends(document, ends)
    return document, [*notes, *more]


def disagreements(document: Document, declared: Declared) -> list[str]:
    """What tokenizer.json does that the files beside it say otherwise; tokenizer.json counts, as in transformers."""
    notes = []
    starts = structure.start_ids(document)
    if declared.adds_start is not None and declared.adds_start != bool(starts):
        says = "adds no start token" if declared.adds_start else "adds a start token"
        notes.append(
            f"tokenizer_config.json says add_bos_token {str(declared.adds_start).lower()}, but tokenizer.json {says}: "
            "tokenizer.json counts, as it does in transformers"
        )
    if structure.closing_ids(document):
        notes.append(
            "tokenizer.json puts a token after every text; it is left out here, since a text that is to go on "
            "has not ended"
        )
    return notes


def _with_added(document: Document, declared: Declared) -> Document:
    """The tokens that only the files beside it list, and those special that any file calls so."""
    entries = {entry["content"]: entry for entry in document["added_tokens"]}
    for entry in declared.added:
        there = entries.get(entry["content"], entry)
        entries[entry["content"]] = {**there, "special": there["special"] or entry["special"]}
    return {**document, "added_tokens": sorted(entries.values(), key=lambda entry: entry["id"])}


def _with_specials(document: Document, declared: Declared, directory: Path) -> tuple[Document, list[str]]:
    """The start token, the end token and the other special tokens that are named, as special tokens."""
    notes = []
    if declared.end is not None and structure.token_id(document, declared.end) is None:
        raise TokenizerError(
            f"{directory}: its end token {declared.end!r} is not in tokenizer.json; one of the files is wrong"
        )
    named = [name for name in (declared.start, declared.end) if name is not None]
    for name in dict.fromkeys([*named, *declared.specials]):
        number = structure.token_id(document, name)
        if number is None:
            notes.append(f"the special token {name!r} is named beside the vocabulary, which lacks it: it is left out")
        elif name not in structure.special_tokens(document):
            document = _with_special(document, name, number)
    return document, notes


def _with_special(document: Document, name: str, number: int) -> Document:
    others = [entry for entry in document["added_tokens"] if entry["content"] != name]
    entries = sorted([*others, special_token(name, number)], key=lambda entry: entry["id"])
    return {**document, "added_tokens": entries}


def _end_names(document: Document, declared: Declared) -> tuple[list[str], list[str]]:
    """The tokens that end a text, the document's own first, and notes on ids that cannot be one."""
    special = {number: name for name, number in structure.special_tokens(document).items()}
    first = declared.end or next((special[number] for number in structure.end_ids(document)), None)
    names, notes = [] if first is None else [first], []
    for file, number in declared.ends:
        if number in special:
            names.append(special[number])
        else:
            # LlamaConfig's default is 2, which another vocabulary has given to an ordinary token
            notes.append(f"{file} calls {number} an end token, which is no special token here: it is left out")
    return list(dict.fromkeys(names)), notes
