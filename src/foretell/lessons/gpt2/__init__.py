"""E2: a sentence of news, read by GPT-2 where its weights are at hand."""
