"""Text to token ids and back; the only place where the two meet.

tokenizer.py    Tokenizer: encode, decode, pieces, special tokens, fingerprint, save
train.py        make a tokenizer from texts: characters, words, bytes, byte-level BPE
load.py         read a tokenizer.json, a checkpoint directory, or a vocabulary and merges
files.py        read a tokenizer's files, each failure one line
families.py     what vocab.json and merges.txt mean, by the class that config files name
declared.py     what the files beside tokenizer.json say: start and end tokens, chat template
completed.py    tokenizer.json completed by it
stream.py       ids to text one at a time, never showing half a character
stops.py        end a stream of text at the first stop string
backend.py      build the `tokenizers` object from its JSON; its failures become one line
documents.py    the JSON of the tokenizers made here, and how they split text
structure.py    what the JSON says about itself: kind, special tokens, start and end
pieces.py       where a long text can be cut without changing a single id
coverage.py     name what a text contains that a vocabulary cannot write
byte_level.py   GPT-2's byte <-> printable character table
"""

from foretell.text.load import gpt2_tokenizer, load_tokenizer
from foretell.text.stops import StopStrings
from foretell.text.stream import StreamDecoder
from foretell.text.tokenizer import Tokenizer
from foretell.text.train import train_tokenizer, vocabulary_tokenizer

__all__ = [
    "StopStrings",
    "StreamDecoder",
    "Tokenizer",
    "gpt2_tokenizer",
    "load_tokenizer",
    "train_tokenizer",
    "vocabulary_tokenizer",
]
