"""Explanations of a forward pass: a number with its operands, a summary of all layers, a check with the textbook.

    explain_value(model, text, "head[4,17]")   the formula, the operands, the stored and the recomputed number
    walk(model, text)                          every layer in a few lines
    check(model, text)                         the model's logits compared with the textbook's

Operands are recorded by a trace of the running model; each explanation recomputes one step of the pass in float64.
"""
