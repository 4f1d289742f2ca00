"""The configuration in frozen sections. TOML comes in, JSON goes out; nothing here imports torch.

Each section checks itself when it is made: unknown keys, contradictions between fields and values out of range are a
`ConfigError` of one line. Names that nanoGPT and Hugging Face use for the same field are accepted (`own_names`).

The letters for sizes, used in every comment of the package:
    B rows, T query positions, S key positions, D width, H query heads, G key/value heads, E head width,
    F feed-forward width, V vocabulary, L layers
"""
