"""Seeing inside: `trace` records and replaces named values on the model that runs, `points` says which there are.

`explain` takes a number apart, `attribution` says what made a prediction, `receipt` what decided a token, and `page`
draws a pass. Nothing here runs a forward of its own; all is read from the calls that training and generation make.
"""
