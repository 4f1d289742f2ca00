"""Conversion to and from other programs: Hugging Face directories, export to GGUF, downloads from the Hub.

docs/source-files.md lists the files.
"""
