"""Interpretability: recorded values, explanations, attribution, receipts of sampled tokens, and the HTML page.

`trace` records and replaces named values during the model's own forward. `explain` takes
one number apart into its operands, `attribution` a prediction into its causes, `receipt` a sampled token into the steps
of sampling; `page` draws one forward pass. Nothing here has a second forward: values are read from the running
model.
"""
