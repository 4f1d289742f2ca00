"""E6: the decoder of an encoder-decoder, as far as its source's numbers go."""
