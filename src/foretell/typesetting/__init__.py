"""Formulas with their numbers, tables and pictures: written once, shown in a terminal, on a page and in a notebook.

`expression` and `document` are what is said; `text`, `html` and `latex` how it looks. Nothing here knows of models.
"""
