"""Measure the small world's model on combinations that it never read: `python bench/atlas.py`."""

from __future__ import annotations

import random

from foretell.evaluation.multiple_choice import evaluate_endings
from foretell.included.atlas.world import KINDS, WORDS, questions
from foretell.insight.attribution.head_patterns import HeadPatterns, head_patterns
from foretell.language_model import LanguageModel
from foretell.loading import load
from foretell.typesetting.document import DocumentSection, Table
from foretell.typesetting.text import document_text

SEED, QUESTIONS, LISTED = 1, 500, 25


def share_right(model: LanguageModel, count: int = QUESTIONS) -> dict[str, float]:
    """For each kind of story, the share of questions whose whole answer is the most likely one."""
    return {kind.__name__: evaluate_endings(model, questions(kind, SEED, count)).accuracy for kind in KINDS}


def repeated_words() -> str:
    """Different words in random order, twice."""
    words = random.Random(SEED).sample(WORDS, LISTED)
    return " ".join([*words, *words])


def best_heads(patterns: HeadPatterns) -> dict[str, tuple[int, int, float]]:
    """Layer, head and mean weight of the head that most reads the previous token, and of the best induction head."""
    best = {}
    for name in ("previous", "induction"):
        layer, head = divmod(int(patterns.measured(name).argmax()), patterns.weights.shape[1])
        best[name] = layer, head, float(patterns.measured(name)[layer, head])
    return best


def main() -> None:
    model = load("atlas", "cpu", "float32")
    right = [(name, f"{100 * share:.1f}") for name, share in share_right(model).items()]
    heads = best_heads(head_patterns(model, repeated_words()))
    rows = [(name, f"{layer}.{head}", f"{share:.2f}") for name, (layer, head, share) in heads.items()]
    tables = [Table(("questions about", "right, in %"), right), Table(("head that reads", "head", "mean weight"), rows)]
    print(document_text(DocumentSection("", tables)))


if __name__ == "__main__":
    main()
