"""Interpretability: recorded values, explanations, attribution, receipts of sampled tokens, and the HTML page.

`trace` records and replaces named values during the model's own forward. `explain` shows the operands of one number,
`attribution` the causes of a prediction, `receipt` the steps that sampled a token, and `page` a whole forward pass.
Nothing here has a second forward: values are read from the running model.
"""
