"""Text to token ids and back; the only place where the two meet.

tokenizer.py            Tokenizer: encode, decode, pieces, special tokens, fingerprint, save
tokenizer_loading.py    read a tokenizer.json, a directory as transformers writes it, or a vocabulary and merges
tokenizer_training.py   make a tokenizer from texts: characters, words, bytes, byte-level BPE
streaming.py            ids to text one at a time, never showing half a character; stop strings
encoding_pool.py        encode many texts in several processes, in their order
long_text.py            where a long text can be cut without changing an id
tokenizer_json.py       the content of a tokenizer.json: write it, read what it states, start and end tokens
tokenizer_files.py      parse the files that a tokenizer comes in, each failure one line
tokenizer_bounds.py     refuse a tokenizer.json that costs memory or time out of proportion
backend.py              the `tokenizers` object: its failures as one line, text that it would drop refused
byte_level.py           GPT-2's table between bytes and printable characters
"""

from foretell.text.streaming import StopStrings, StreamDecoder
from foretell.text.tokenizer import Tokenizer
from foretell.text.tokenizer_loading import gpt2_tokenizer, has_tokenizer, load_tokenizer
from foretell.text.tokenizer_training import id_tokenizer, train_tokenizer, vocabulary_tokenizer

__all__ = [
    "StopStrings",
    "StreamDecoder",
    "Tokenizer",
    "gpt2_tokenizer",
    "has_tokenizer",
    "id_tokenizer",
    "load_tokenizer",
    "train_tokenizer",
    "vocabulary_tokenizer",
]
