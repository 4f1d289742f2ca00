"""Read a tokenizer from disk: a tokenizer.json, a directory as transformers writes it, or GPT-2's two files."""

from __future__ import annotations

from pathlib import Path

from foretell.errors import TokenizerError
from foretell.text.completed import completed, disagreements
from foretell.text.declared import read_chat_template, read_declared
from foretell.text.documents import byte_level_document, byte_level_split
from foretell.text.families import CLASS_OF_MODEL, family_document
from foretell.text.files import read_merges, read_object, read_text, read_vocabulary
from foretell.text.tokenizer import CHAT_TEMPLATE, Tokenizer

UNREADABLE = ("tokenizer.model", "tekken.json", "tiktoken.model")  # SentencePiece's and others' own formats


def load_tokenizer(path: str | Path) -> Tokenizer:
    """The tokenizer in a tokenizer.json, or in a directory as transformers writes it.

    A directory holds tokenizer.json, or vocab.json and merges.txt (GPT-2, Qwen2, Qwen3, OpenAI GPT). Beside them,
    tokenizer_config.json, special_tokens_map.json, added_tokens.json, generation_config.json and config.json may name
    added tokens and the tokens that end a text. Where they disagree tokenizer.json counts, and the tokenizer's `notes`
    say so. Raises TokenizerError for whatever is missing, cannot be read or contradicts itself.
    """
    path = Path(path)
    if not path.is_dir():
        tokenizer, template = Tokenizer(read_object(path), origin=str(path)), path.with_name(CHAT_TEMPLATE)
        return tokenizer.described(read_text(template)) if template.exists() else tokenizer
    if (path / "tokenizer.json").exists():
        return _load_json(path)
    if (path / "vocab.json").exists() and (path / "merges.txt").exists():
        return _load_pair(path)
    found = next((name for name in UNREADABLE if (path / name).exists()), None)
    reason = (
        f"; {found} is not read: have transformers save the tokenizer, which writes tokenizer.json" if found else ""
    )
    raise TokenizerError(f"{path} holds no tokenizer; it needs tokenizer.json, or vocab.json and merges.txt{reason}")


def gpt2_tokenizer(vocab_file: str | Path, merges_file: str | Path) -> Tokenizer:
    """GPT-2's tokenizer from its two files (vocab.json and merges.txt, or encoder.json and vocab.bpe at OpenAI).

    Raises TokenizerError where one is missing, cannot be read, or does not fit the other.
    """
    vocabulary, merges = read_vocabulary(Path(vocab_file)), read_merges(Path(merges_file))
    document = byte_level_document(vocabulary, merges, byte_level_split(use_regex=True))
    return Tokenizer(document, origin=f"{vocab_file} with {Path(merges_file).name}")


def _load_json(path: Path) -> Tokenizer:
    origin = str(path / "tokenizer.json")
    plain = Tokenizer(read_object(path / "tokenizer.json"), origin)
    found, declared = plain.document(), read_declared(path)
    document, notes = completed(found, declared, path)
    tokenizer = plain if document == found else Tokenizer(document, origin)
    return _described(tokenizer, path, [*notes, *disagreements(document, declared)])


def _load_pair(path: Path) -> Tokenizer:
    declared = read_declared(path)
    name = declared.tokenizer_class or CLASS_OF_MODEL.get(declared.model_type or "", "GPT2Tokenizer")
    vocabulary, merges = read_vocabulary(path / "vocab.json"), read_merges(path / "merges.txt")
    plain = family_document(name, vocabulary, merges, path, prefix_space=declared.prefix_space)
    origin = f"{path / 'vocab.json'} with merges.txt"
    document, notes = completed({"normalizer": None, "post_processor": None, **plain}, declared, path, makes_start=True)
    return _described(Tokenizer(document, origin), path, notes)


def _described(tokenizer: Tokenizer, path: Path, notes: list[str]) -> Tokenizer:
    template, more = read_chat_template(path)
    return tokenizer.described(template, [*notes, *more])
