"""Worked examples from five texts on decoders, with every number shown and every printed figure checked.

catalog.py       the lessons by name; imports no torch
lesson.py        what a lesson is: a document, checks of figures, a report
registry.py      lessons from their names
practice.py      training a small decoder on a few rows

Each lesson has two files. `<name>_values.py` has the figures that its source prints and computes the values: by the
model where possible, by the textbook, or by both. `<name>_lesson.py` has the text to read and the checks.
"""
