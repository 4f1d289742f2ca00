"""Translation with an encoder-decoder, trained on pairs of sentences."""
