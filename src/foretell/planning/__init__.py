"""Planned memory, arithmetic, time and money of a training or a generation, as ranges."""
