"""What is public as `foretell.explain`: the walk through a pass, or one number of it."""

from __future__ import annotations

from foretell.insight.explain.explanation import Explanation, explain_value
from foretell.insight.explain.walk import Walk, walk
from foretell.language_model import LanguageModel


def explain(model: LanguageModel, text: str, address: str | None = None) -> Explanation | Walk:
    """The walk through the pass over a text; with an address, that number down to its operands: see `explain_value`.

        foretell.explain(model, "The return value of the", "trunk.blocks.0.attention.core.weights[1,3,2]")

    Both show themselves in a notebook, print as text and have `to_json()`.
    """
    return walk(model, text) if address is None else explain_value(model, text, address)
