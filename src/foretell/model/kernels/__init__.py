"""Faster forms of layers for a device or precision, each equal to its plain form within a tested bound."""
