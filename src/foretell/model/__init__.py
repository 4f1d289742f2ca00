"""The model: ids to logits, one forward for everything. Start with `decoder`, then `transformer`, then `attention`."""
