"""Tokenizers (text to token ids and back), and conversations as text and ids. docs/source-files.md lists the files."""

from foretell.text.streaming import StopStrings, StreamDecoder
from foretell.text.tokenizer import Tokenizer
from foretell.text.tokenizer_loading import gpt2_tokenizer, has_tokenizer, load_tokenizer
from foretell.text.tokenizer_training import id_tokenizer, train_lower_case_words, train_tokenizer, vocabulary_tokenizer

__all__ = [
    "StopStrings",
    "StreamDecoder",
    "Tokenizer",
    "gpt2_tokenizer",
    "has_tokenizer",
    "id_tokenizer",
    "load_tokenizer",
    "train_lower_case_words",
    "train_tokenizer",
    "vocabulary_tokenizer",
]
