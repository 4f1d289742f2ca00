"""What made a prediction: the stream read by layer, what each part added, where heads looked, what is lost without.

Every number is read by a trace from the model that runs, or computed from what one recorded.
"""
