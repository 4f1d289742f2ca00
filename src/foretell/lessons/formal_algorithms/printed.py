"""The figures on the slides."""

from __future__ import annotations

QUERY = [11.0, 12.0]
KEYS = [[1.0, 2.0], [4.0, 5.0], [7.0, 8.0]]
DOT_PRODUCTS = [35, 104, 173]
LAST_SHARE = 0.999  # 0.999... of the softmax, without scaling

ASSOCIATIONS = [[11, 12, 13, 14], [21, 22, 23, 24], [31, 32, 33, 34], [41, 42, 43, 44]]
MASK = [[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [1, 1, 1, 1]]  # mask[tx, tz] = 1 if tz <= tx

WORDS, IDS = ("The", "cat", "sat"), [21, 11987, 5438]
P_CAT = 0.0041  # P[1, 11987], given The

GPT1 = {"num_layers": 12, "num_heads": 12, "width": 768, "norm_placement": "post"}
GPT2 = {"num_layers": 48, "width": 1600, "norm_placement": "pre"}
GPT2_PARAMETERS = 1.542e9  # the shape with its biases and positions counts 1.558e9; how the paper counted is not said
GPT3 = {"num_layers": 96, "width": 12288, "norm_placement": "pre"}
