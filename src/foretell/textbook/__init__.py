"""The literature's algorithms as running code, in NumPy and in the order and symbols of their sources.

Nothing here is fast, and nothing else in foretell computes with it. It is there to be read, and to be compared: the
model must give the same numbers.

The package itself holds Phuong and Hutter 2022, "Formal Algorithms for Transformers" (arXiv 2207.09238), in that
paper's convention: vectors are columns, a sequence X (d, l) has one column a token, and weights stand on the left, W X.
Where the paper counts tokens and positions from 1, the code counts from 0. Read `embedding`, `attention`, `layer_norm`,
`transformer`, `training`, `inference` in this order.

`family` holds the forward pass of every decoder that `ModelConfig` describes, one vector at a time.
"""
