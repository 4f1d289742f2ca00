"""foretell: a decoder (GPT) that you can see through.

    import foretell

    model = foretell.train("my.txt", out="runs/my", minutes=5)
    model = foretell.load("runs/my")                     # or "primer", which is inside
    foretell.generate(model, "Once upon a time", 50)[0].text

The names below are loaded when they are first used, so that `import foretell` costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from foretell.config import Config
    from foretell.inference.completion import generate
    from foretell.inference.query import embed, next_tokens, score
    from foretell.insight.explain.explain import explain
    from foretell.insight.trace import Trace
    from foretell.loading import load
    from foretell.model.decoder import Decoder
    from foretell.pretraining.train import train
    from foretell.text import Tokenizer

_HOMES = {
    "Config": "foretell.config",
    "Decoder": "foretell.model.decoder",
    "Tokenizer": "foretell.text",
    "Trace": "foretell.insight.trace",
    "embed": "foretell.inference.query",
    "explain": "foretell.insight.explain.explain",
    "generate": "foretell.inference.completion",
    "load": "foretell.loading",
    "next_tokens": "foretell.inference.query",
    "score": "foretell.inference.query",
    "train": "foretell.pretraining.train",
}
__all__ = [
    "Config",
    "Decoder",
    "Tokenizer",
    "Trace",
    "embed",
    "explain",
    "generate",
    "load",
    "next_tokens",
    "score",
    "train",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'foretell' has no attribute '{name}'")
    return getattr(importlib.import_module(_HOMES[name]), name)
