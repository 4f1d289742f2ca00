"""The literature's algorithms in NumPy, in the order and with the symbols of their sources.

The code is for reading and for comparison with the model, which must give the same numbers. It is slow, and training
and generation do not use it.

attention.py    array types, softmax; single-query, masked, multi-head and cross-attention
transformer.py  the parameters theta by the paper's symbols, embedding, layers, the decoder in two forms, inference
training.py     gradient descent on next tokens, with the gradient of every part
family.py       the forward pass of every decoder that `ModelConfig` describes, and its weights by module path

All files but the last hold Phuong and Hutter 2022, "Formal Algorithms for Transformers" (arXiv 2207.09238), in that
paper's convention: vectors are columns, a sequence X (d, l) has one column per token, and weights multiply from the
left, W X. The paper counts tokens and positions from 1, the code from 0. Its algorithms for the encoder-decoder are in
`tests/textbook/encoder_decoder.py`.
"""
