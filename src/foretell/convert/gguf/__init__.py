"""GGUF, llama.cpp's file format: read as a MODEL, and written.

docs/convert.md lists the files.
"""
