"""Models of other programs: Hugging Face directories in and out, GGUF files out, downloads from the Hub.

docs/convert.md lists the files.
"""
