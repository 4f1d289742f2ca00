"""The key-value pairs of a GGUF file that describe a tokenizer, read and written.

llama.cpp selects the pre-tokenizer, which splits text before the merges, by name. With a wrong name it would silently
give other tokens, so an unknown name is refused when reading, and the tokenizer's split is compared with the known ones
when writing. Byte-level BPE (and plain bytes) and SentencePiece's vocabulary with scores are read and written.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard, TypeVar

from foretell.errors import TokenizerError
from foretell.text import Tokenizer, tokenizer_json
from foretell.text.tokenizer_json import TokenizerJson

Item = TypeVar("Item")

# Types of tokens. Control tokens are our special tokens, which are never encoded from text; user-defined ones are added
# tokens that can be encoded from text.
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
START = "tokenizer.ggml"
MODEL, PRE = f"{START}.model", f"{START}.pre"
TOKENS, KINDS, MERGES, SCORES = (f"{START}.{name}" for name in ("tokens", "token_type", "merges", "scores"))
FIRST, ADDS_FIRST, ADDS_END = (f"{START}.{name}" for name in ("bos_token_id", "add_bos_token", "add_eos_token"))
ENDS = tuple(f"{START}.{name}_token_id" for name in ("eos", "eot", "eom"))
# Control tokens that end a text or a turn even if the file does not name them, as in llama.cpp
END_NAMES = ("<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|endoftext|>", "<|end_of_text|>", "<|eom_id|>")
TEMPLATE = "tokenizer.chat_template"
NO_MERGE = "Ā Ā"  # llama.cpp requires merges, and the format has no empty list; this pair never occurs
BYTE_NAME = re.compile("<0x[0-9A-F]{2}>")
BLANK_SPLIT = {  # has no effect, since blanks have been replaced (Gemma's tokenizer.json)
    "type": "Split",
    "pattern": {"String": " "},
    "behavior": "MergedWithPrevious",
    "invert": False,
}
PLACEMENT = ("single_word", "lstrip", "rstrip")


@dataclass(frozen=True)
class PreTokenizer:
    """A pre-tokenizer as in a tokenizer.json. takes_words: words in the vocabulary become tokens directly."""

    document: TokenizerJson
    takes_words: bool = False  # `ignore_merges`
    adds_start: bool = False  # the start token goes before every text unless add_bos_token is false


# llama.cpp's name -> its split; Llama 3 and DBRX have the same split
PRE_TOKENIZERS = {
    "gpt-2": PreTokenizer(tokenizer_json.byte_level_split(use_regex=True)),
    "qwen2": PreTokenizer(tokenizer_json.pattern_split(tokenizer_json.QWEN2_PATTERN)),
    "llama-bpe": PreTokenizer(tokenizer_json.pattern_split(tokenizer_json.LLAMA3_PATTERN), True, True),
    "dbrx": PreTokenizer(tokenizer_json.pattern_split(tokenizer_json.LLAMA3_PATTERN)),
    "smollm": PreTokenizer(tokenizer_json.digit_split()),
    "tekken": PreTokenizer(tokenizer_json.pattern_split(tokenizer_json.TEKKEN_PATTERN), True, True),
    "gpt-4o": PreTokenizer(tokenizer_json.pattern_split(tokenizer_json.GPT4O_PATTERN)),
}
# Other names of the same splits (llama.cpp's llama-vocab.cpp)
ALIASES = {
    **dict.fromkeys(("phi-2", "mpt", "olmo", "jais", "trillion"), "gpt-2"),
    **dict.fromkeys(("deepseek-r1-qwen", "stablelm2", "kormo", "hunyuan", "f2llmv2"), "qwen2"),
    **dict.fromkeys(("llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2"), "llama-bpe"),
    "smaug-bpe": "dbrx",
    **dict.fromkeys(("starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"), "smollm"),
    "llama4": "gpt-4o",
}
WITHOUT_MERGES = "gpt-2"  # for plain bytes, the split does not matter


def write_vocabulary(tokenizer: Tokenizer, vocab_size: int, kept: Mapping[str, Any] = {}) -> dict[str, Any]:
    """The pairs of a tokenizer for a model with `vocab_size` rows; `TokenizerError` if llama.cpp cannot have it.

    kept: pairs of the file that it came from, which are written again where they agree with the tokenizer.
    """
    document = tokenizer.to_json()
    write = write_sentencepiece if document["model"].get("byte_fallback") else write_byte_level
    names, kinds = token_list(document, vocab_size)
    pairs = write(tokenizer, document, names, kinds)
    check_marks(tokenizer, document)
    others = {key: kept[key] for key in kept if key.startswith(START) and key not in (PRE, FIRST, *ENDS)}
    pairs |= {TOKENS: names, KINDS: kinds, **start_and_end_pairs(tokenizer, kept, names, kinds)}
    pairs |= {ADDS_END: False, **others, ADDS_FIRST: bool(tokenizer.start_ids)}
    if ALIASES.get(str(kept.get(PRE))) == pairs[PRE]:
        pairs[PRE] = kept[PRE]
    if tokenizer.chat_template is not None:
        pairs[TEMPLATE] = tokenizer.chat_template
    return pairs


def start_and_end_pairs(
    tokenizer: Tokenizer, kept: Mapping[str, Any], names: Sequence[str], kinds: Sequence[int]
) -> dict[str, Any]:
    """The ids of the start token and the end tokens: the kept ones, unless the tokenizer has others."""
    start, ends = start_and_ends(kept, names, kinds)
    if ENDS[0] in kept and (*ends,) == tokenizer.end_ids and {*tokenizer.start_ids} <= {*start}:
        return {key: kept[key] for key in (FIRST, *ENDS) if key in kept}
    end, *others = tokenizer.end_ids
    pairs = {FIRST: end if tokenizer.start_id is None else tokenizer.start_id, ENDS[0]: end}
    return {**pairs, ENDS[1]: others[0]} if others else pairs


def write_byte_level(
    tokenizer: Tokenizer, document: TokenizerJson, names: Sequence[str], kinds: list[int]
) -> dict[str, Any]:
    """The split and the merges of byte-level BPE."""
    check_kind(tokenizer, document)
    merges = [" ".join(merge) for merge in document["model"]["merges"]]
    return {MODEL: "gpt2", PRE: find_split(document), MERGES: merges or [NO_MERGE]}


def write_sentencepiece(
    tokenizer: Tokenizer, document: TokenizerJson, names: Sequence[str], kinds: list[int]
) -> dict[str, Any]:
    """SentencePiece's scores, which follow from the order of the merges; changes the types of bytes and unknown."""
    vocabulary, unknown = document["model"]["vocab"], document["model"]["unk_token"]
    for name, index in vocabulary.items():
        if kinds[index] == NORMAL and BYTE_NAME.fullmatch(name):
            kinds[index] = BYTE
    if unknown is not None:
        kinds[vocabulary[unknown]] = UNKNOWN
    merges = [(first, second) for first, second in document["model"]["merges"]]
    ranks = {piece: -float(rank) for rank, piece in enumerate(dict.fromkeys(map("".join, merges)))}
    scores = [ranks.get(name, float(-len(names))) for name in names]
    expected = merges_by_score(mergeable_pieces(vocabulary, kinds), scores)
    prefixes = [has_prefix for has_prefix in (False, True) if same_steps(document, unknown, has_prefix)]
    if not prefixes or set(merges) != set(expected) or [*map("".join, merges)] != [*map("".join, expected)]:
        raise TokenizerError("GGUF: the tokenizer has bytes for unknown characters, but is not SentencePiece's BPE")
    return {MODEL: "llama", PRE: "default", SCORES: scores, f"{START}.add_space_prefix": prefixes[0]}


def same_steps(document: TokenizerJson, unknown: str | None, has_prefix: bool) -> bool:
    """True if a tokenizer changes texts as SentencePiece's BPE does."""
    plain = tokenizer_json.sentencepiece_json({}, (), unknown, has_prefix)
    model = {name: value for name, value in plain["model"].items() if name not in ("vocab", "merges")}
    steps, own_steps = (
        (each["normalizer"] or {}).get("normalizers", [each["normalizer"]]) for each in (plain, document)
    )
    is_split = document["pre_tokenizer"] not in (None, BLANK_SPLIT)
    return (
        steps == own_steps
        and not is_split
        and plain["decoder"] == document["decoder"]
        and all(document["model"].get(name) == value for name, value in model.items())
    )


def check_kind(tokenizer: Tokenizer, document: TokenizerJson) -> None:
    """Refuse tokenizers that are not byte-level BPE in llama.cpp's form."""
    if tokenizer.kind not in ("bpe", "bytes") or document["decoder"]["type"] != "ByteLevel":
        actual = "bpe of characters" if tokenizer.kind == "bpe" else tokenizer.kind
        raise TokenizerError(
            f"GGUF: the tokenizer is of kind {actual}, but only byte-level tokenizers can be exported: bpe and bytes "
            "of the kinds trained here"
        )
    model = document["model"]
    for field in ("continuing_subword_prefix", "end_of_word_suffix", "unk_token", "byte_fallback"):
        if model.get(field):
            raise TokenizerError(
                f"GGUF: the tokenizer has {field} = {model[field]!r}, which llama.cpp does not support"
            )
    if not is_composed(document) and document["normalizer"] is not None:
        raise TokenizerError(
            f"GGUF: the tokenizer normalizes text ({document['normalizer']['type']}), llama.cpp does not"
        )


def is_composed(document: TokenizerJson) -> bool:
    """True if the tokenizer normalizes text to Unicode's NFC first, which llama.cpp does not."""
    return document["normalizer"] == {"type": "NFC"}


def check_marks(tokenizer: Tokenizer, document: TokenizerJson) -> None:
    """Refuse start, end and added tokens that GGUF cannot express."""
    if len(tokenizer.start_ids) > 1:
        raise TokenizerError(f"GGUF: {len(tokenizer.start_ids)} tokens start every text; llama.cpp adds one")
    if not tokenizer.end_ids:
        raise TokenizerError("GGUF: the tokenizer has no end token, and llama.cpp would use token 11")
    for token in document["added_tokens"]:
        if not token["special"] and any(token[flag] for flag in PLACEMENT):
            raise TokenizerError(
                f"GGUF: the added token {token['content']!r} absorbs or requires white space around it; "
                "llama.cpp does not"
            )


def token_list(document: TokenizerJson, vocab_size: int) -> tuple[list[str], list[int]]:
    """The name and type of every row; rows without a token are unused."""
    names = [f"[PAD{token_id}]" for token_id in range(vocab_size)]
    kinds = [UNUSED] * vocab_size
    for name, token_id in document["model"]["vocab"].items():
        names[token_id], kinds[token_id] = name, NORMAL
    for token in document["added_tokens"]:
        names[token["id"]] = token["content"]
        kinds[token["id"]] = CONTROL if token["special"] else USER_DEFINED
    name, count = Counter(names).most_common(1)[0]
    if count > 1:  # llama.cpp aborts
        raise TokenizerError(f"GGUF: {count} of the model's rows have the name {name!r}; each needs a different one")
    return names, kinds


def find_split(document: TokenizerJson) -> str:
    """llama.cpp's name of this tokenizer's pre-tokenizer; `TokenizerError` if there is none."""
    model = document["model"]
    if not model["merges"]:
        return WITHOUT_MERGES
    ours = tokenizer_json.split_steps(document["pre_tokenizer"]), bool(model.get("ignore_merges"))
    for name, known in PRE_TOKENIZERS.items():
        if ours == (tokenizer_json.split_steps(known.document), known.takes_words):
            return name
    raise TokenizerError(
        "GGUF: the tokenizer splits text differently from all known pre-tokenizers of llama.cpp "
        f"({', '.join(PRE_TOKENIZERS)}), so llama.cpp would read other tokens; "
        "train one with --tokenizer.split qwen2 or gpt2"
    )


# --- reading ----------------------------------------------------------------------------------------------------------


def read_vocabulary(pairs: Mapping[str, Any]) -> Tokenizer | None:
    """The tokenizer of a file, with its chat template; None if there is none. Raises TokenizerError."""
    kind = pairs.get(MODEL, "none")
    if kind == "none":
        return None
    if not isinstance(kind, str) or kind not in READERS:
        raise TokenizerError(f"{MODEL} is {str(kind)[:40]!r}, which foretell cannot read; known: {', '.join(READERS)}")
    template = pairs.get(TEMPLATE)
    tokenizer = Tokenizer(tokenizer_document(pairs, READERS[kind]), "its vocabulary")
    return tokenizer.with_chat_template(template if isinstance(template, str) else None)


def tokenizer_document(pairs: Mapping[str, Any], read: Reader) -> TokenizerJson:
    """The content of a tokenizer.json built only from the pairs."""
    names, kinds = check_tokens(pairs)
    document, adds_start = read(pairs, names, kinds)
    start, ends = start_and_ends(pairs, names, kinds)
    special = {index for index, kind in enumerate(kinds) if kind in (CONTROL, UNKNOWN)} | {*start, *ends}
    document["added_tokens"] = [
        tokenizer_json.special_token(names[index], index) | {"special": index in special}
        for index, kind in enumerate(kinds)
        if index in special or kind == USER_DEFINED
    ]
    document |= {"normalizer": document.get("normalizer"), "post_processor": None}
    if start and pairs.get(ADDS_FIRST, adds_start):
        document = tokenizer_json.with_start(document, names[start[0]])
    return tokenizer_json.with_ends(document, [names[index] for index in ends]) if ends else document


def start_and_ends(pairs: Mapping[str, Any], names: Sequence[str], kinds: Sequence[int]) -> tuple[list[int], list[int]]:
    """The id of the start token, if there is one, and the ids of the end tokens."""
    start, named_ends = (token_ids(pairs, keys, len(names)) for keys in ((FIRST,), ENDS))
    ends = [*named_ends, *(index for index, name in enumerate(names) if name in END_NAMES and kinds[index] == CONTROL)]
    return start, [*dict.fromkeys(ends)]


def check_tokens(pairs: Mapping[str, Any]) -> tuple[list[str], list[int]]:
    """The names and types of the tokens, without unused ones at the end."""
    names, kinds = pairs.get(TOKENS), pairs.get(KINDS)
    kinds = [NORMAL] * len(names) if kinds is None and isinstance(names, list) else kinds
    if not is_list_of(names, str) or not is_list_of(kinds, int) or not len(names) == len(kinds) > 0:
        raise TokenizerError(f"{TOKENS} and {KINDS} are not names and types of tokens")
    if len(set(names)) < len(names):
        name, count = Counter(names).most_common(1)[0]
        raise TokenizerError(f"{count} tokens have the name {name[:60]!r}")
    used = max((index for index, kind in enumerate(kinds) if kind != UNUSED), default=-1) + 1
    return names[:used], kinds[:used]


def is_list_of(values: Any, kind: type[Item]) -> TypeGuard[list[Item]]:
    return isinstance(values, list) and all(type(value) is kind for value in values)


def token_ids(pairs: Mapping[str, Any], keys: Sequence[str], count: int) -> list[int]:
    """The ids under these keys that a vocabulary of this size has."""
    values = (pairs.get(key) for key in keys)
    return [value for value in values if type(value) is int and 0 <= value < count]


def byte_level_document(
    pairs: Mapping[str, Any], names: Sequence[str], kinds: Sequence[int]
) -> tuple[TokenizerJson, bool]:
    """Byte-level BPE, and whether a start token goes before every text by default."""
    name, merges = pairs.get(PRE), pairs.get(MERGES)
    pre_tokenizer = PRE_TOKENIZERS.get(ALIASES.get(str(name), str(name)))
    if pre_tokenizer is None:
        known = ", ".join((*PRE_TOKENIZERS, *ALIASES))
        raise TokenizerError(f"{PRE} is {str(name)[:40]!r}, a split that foretell does not know; known: {known}")
    if not is_list_of(merges, str):
        raise TokenizerError(f"{MERGES} is not a list of merges")
    vocabulary = {name: index for index, name in enumerate(names) if kinds[index] != UNUSED}
    pairs_of_tokens = [merge for merge in merges if merge.replace(" ", "") in vocabulary]
    document = tokenizer_json.byte_level_json(vocabulary, pairs_of_tokens, pre_tokenizer.document)
    document["model"]["ignore_merges"] = pre_tokenizer.takes_words
    return document, pre_tokenizer.adds_start


def sentencepiece_document(
    pairs: Mapping[str, Any], names: Sequence[str], kinds: Sequence[int]
) -> tuple[TokenizerJson, bool]:
    """SentencePiece's BPE: pieces are merged by score, unknown characters become bytes, a blank is U+2581."""
    scores = pairs.get(SCORES)
    if not is_list_of(scores, float) or len(scores) < len(names):
        raise TokenizerError(f"{SCORES} is not a list with a score for every token")
    vocabulary = {name: index for index, name in enumerate(names) if kinds[index] != UNUSED}
    unknown = next((name for name, index in vocabulary.items() if kinds[index] == UNKNOWN), None)
    has_prefix = pairs.get(f"{START}.add_space_prefix", True) is True
    merges = merges_by_score(mergeable_pieces(vocabulary, kinds), scores)
    return tokenizer_json.sentencepiece_json(vocabulary, merges, unknown, has_prefix), True


def mergeable_pieces(vocabulary: Mapping[str, int], kinds: Sequence[int]) -> dict[str, int]:
    return {name: index for name, index in vocabulary.items() if kinds[index] in (NORMAL, USER_DEFINED)}


def merges_by_score(vocabulary: Mapping[str, int], scores: Sequence[float]) -> list[tuple[str, str]]:
    """Every division of a piece into two pieces; the merge into the piece with the highest score comes first."""
    return [
        (first, second)
        for name in sorted(vocabulary, key=lambda name: -scores[vocabulary[name]])
        for cut in range(1, len(name))
        if (first := name[:cut]) in vocabulary and (second := name[cut:]) in vocabulary
    ]


Reader = Callable[[Mapping[str, Any], Sequence[str], Sequence[int]], tuple[TokenizerJson, bool]]
READERS: dict[str, Reader] = {"gpt2": byte_level_document, "llama": sentencepiece_document}
