"""Formulas with their numbers, tables and heat maps, for a terminal, a web page or a notebook.

`expression` and `document` hold the content; `text`, `html` and `latex` render it. The package knows nothing of models.
"""
