"""What the notes print. Dots stand in most of their tables; those that are whole are here."""

from __future__ import annotations

SOURCE = ("I", "am", "good")
TARGET = ("<sos>", "Je", "vais", "bien")

SCALED = [  # Q Kᵀ / √d of the decoder's own words, two digits; 12.37, 10.37, 1.37, 1.87 and 3.12 are cut, not rounded
    [9.125, 7.5, 1.25, 5.625],
    [5.0, 12.37, 3.12, 8.75],
    [7.25, 5.0, 10.37, 1.25],
    [1.5, 1.37, 1.87, 10.0],
]
HEAD_WIDTH = 64  # of the paper that introduced this model; the notes do not say
CROSS = [[91, 60, 77], [96, 63, 12], [41, 111, 48], [36, 45, 65]]  # Q Kᵀ of the decoder's words and the encoder's
