"""Seeing inside: `trace` records and replaces named values on the model that runs, `points` says which there are.

Nothing here runs a forward of its own; everything is read from the calls that training and generation make anyway.
"""
