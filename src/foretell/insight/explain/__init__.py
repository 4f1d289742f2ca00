"""One number of the pass down to its operands, and the walk through the whole of it.

    explain_value(model, text, "head[4,17]")   the formula, the operands, the steps, the stored and the recomputed value
    walk(model, text)                          every layer in a few lines
    check(model, text)                         the textbook's pass beside the model's

Operands are read by a trace from the running model; what is done here, in float64, is one step of the pass at a time.
"""
