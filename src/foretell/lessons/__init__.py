"""Worked examples from five texts on decoders, with every number shown and every printed figure checked.

registry.py  the lessons by name; imports no torch
lesson.py    what lessons share: checks of figures, the document of a text with values, training on a few rows
trained.py   lessons about a decoder that is trained when they are made

Each lesson has two files. `NAME.md` is the text to read. `NAME.py` has the figures that its source prints, computes the
values (by the model where possible, by the textbook, or by both), and checks them.
"""
