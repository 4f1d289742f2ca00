"""E4: a toy that learns to answer two prompts, trained in the lesson."""
