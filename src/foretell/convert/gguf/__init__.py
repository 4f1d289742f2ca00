"""GGUF, the one-file layout of llama.cpp and what is built on it: written from a model, and read again for the proof.

architectures.py  the tables: our module paths and fields, and GGUF's names for them
metadata.py       a `ModelConfig` as key-value pairs, and back
vocabulary.py     a tokenizer as key-value pairs, and back
splits.py         which of llama.cpp's pre-tokenizers cuts text as a tokenizer does
precision.py      f32, f16, q8_0: what each tensor is stored as
write.py          a model as one file
reading.py        the file, read by the `gguf` package
export.py         write, prove, report; nothing is left where the proof fails
package.py        the `gguf` package, which not everyone needs
"""
