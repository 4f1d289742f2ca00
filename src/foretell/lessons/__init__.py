"""Worked examples from five texts on decoders, with every number shown and every printed figure checked.

catalog.py   the lessons by name; imports no torch
lesson.py    what a lesson is: a document, checks of figures, a report
document.py  reads a lesson's text, with its values, into a document
registry.py  lessons from their names
practice.py  training a small decoder on a few rows

Each lesson has two files. `NAME.md` is the text to read. `NAME.py` has the figures that its source prints, computes the
values (by the model where possible, by the textbook, or by both), and checks them.
"""
