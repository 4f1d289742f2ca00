"""Planned memory, arithmetic and time of a training or a generation, as ranges."""
