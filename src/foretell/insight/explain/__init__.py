"""Explanations of a forward pass: one number with its operands, a summary of all layers, a check with the textbook.

    explain_value(model, text, "head[4,17]")   the formula, the operands, the stored and the recomputed number
    walk(model, text)                          every layer in a few lines
    check(model, text)                         the model's logits compared with the textbook's

Operands are read from the running model by a trace; each explanation recomputes one step of the pass in float64.
"""
