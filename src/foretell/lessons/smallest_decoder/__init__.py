"""E1: a decoder so small that every number of its pass can be shown."""
