"""GGUF, llama.cpp's file format: read as a MODEL, and written.

docs/source-files.md lists the files.
"""
