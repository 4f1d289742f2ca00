"""The literature's algorithms in NumPy, in the order and with the symbols of their sources.

The code is written to be read and to be compared with the model, which must give the same numbers. It is slow, and no
training or generation uses it.

vectors.py          softmax, norms, activations, and the array types
embedding.py        token and position embeddings, unembedding
attention.py        single-query, masked and multi-head attention
parameters.py       the parameters theta, by the paper's symbols
transformer.py      the decoder-only transformer in two forms, and the probability of a sequence
encoder_decoder.py  the encoder-decoder and the encoder-only transformer
gradients.py        the gradient of every part, written out
training.py         gradient descent on next tokens
encoder_training.py gradient descent on pairs of sequences and on masked tokens
inference.py        generation with a temperature, and translation
family.py           the forward pass of every decoder that `ModelConfig` describes
family_weights.py   its weights by module path: shapes, checks, reading from disk

All files but the last two hold Phuong and Hutter 2022, "Formal Algorithms for Transformers" (arXiv 2207.09238), in that
paper's convention: vectors are columns, a sequence X (d, l) has one column per token, and weights multiply from the
left, W X. The paper counts tokens and positions from 1, the code from 0.
"""
