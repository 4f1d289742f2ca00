"""Formulas with their numbers, tables and heat maps, for a terminal, a web page or a notebook.

`expression` and `document` hold the content, `text` and `html` render documents. The package does not depend on models.
"""
