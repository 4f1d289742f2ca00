"""Conversion to and from other programs: Hugging Face directories, export to GGUF, downloads from the Hub.

docs/convert.md lists the files.
"""
