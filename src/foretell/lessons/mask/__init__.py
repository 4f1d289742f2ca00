"""The mask: who may see whom, and the refusal of a model that peeks."""
