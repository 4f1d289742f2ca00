"""Translation with an encoder-decoder: pairs of sentences in, a model that translates out."""
