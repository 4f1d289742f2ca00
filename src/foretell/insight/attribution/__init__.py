"""Attribution of a prediction: logit lens, direct logit attribution, attention patterns of heads, ablation.

Every number is read from the running model by a trace, or computed from recorded values.
"""
