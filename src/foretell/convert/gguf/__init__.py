"""GGUF, the one-file format of llama.cpp: written from a model, and read back for the parity check.

architectures.py  the tables: our module paths and fields, and GGUF's names for them; a `ModelConfig` as key-value pairs
vocabulary.py     a tokenizer as key-value pairs and back, and the pre-tokenizer of llama.cpp that matches it
writer.py         the precision of each tensor, and the file
export_gguf.py    write, read back, check parity, report
"""
