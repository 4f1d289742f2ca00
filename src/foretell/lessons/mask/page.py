"""The walk around the mask, and into it."""

from __future__ import annotations

from foretell.lessons.catalog import find_lesson
from foretell.lessons.mask.values import BORDER, LEAK, OTHER_FUTURE, ROW, VOCABULARY, Trial, masks
from foretell.typesetting.document import DocumentSection, Formula, Paragraph, Table
from foretell.typesetting.expression import Matrix, Symbol, row

WORDS = [VOCABULARY[token] for token in ROW[:-1]]


def make_page(sound: Trial, peeking: Trial | None) -> DocumentSection:
    """What the mask is, how it is tried, and what a model gets that peeks."""
    last = [broken(peeking)] if peeking is not None else [invitation()]
    return DocumentSection(find_lesson("mask").title, [introduction(), what_it_is(), tried(sound), *last])


def introduction() -> Paragraph:
    return Paragraph(
        "A model that sees the word it is to predict learns to copy. Its loss is wonderful and it cannot write a line. "
        "The mistake is easily made, and nothing crashes. So before the first step of every training, foretell tries."
    )


def what_it_is() -> DocumentSection:
    first, second, third = (Matrix(values) for values in masks().values())
    return DocumentSection(
        "1. Who may see whom",
        [
            Paragraph(
                "Rows look, columns are looked at, 1 means yes: nothing but the past; the past no further back than a "
                "window of two; two texts packed into one row, which do not see each other."
            ),
            Formula(row(first, Symbol("  "), second, Symbol("  "), third)),
            Paragraph("Where there is a 0, the score becomes -∞ and the softmax makes exactly 0 of it."),
        ],
    )


def tried(sound: Trial) -> DocumentSection:
    return DocumentSection(
        "2. Change the future; the past must not move",
        [
            Paragraph(
                f"A new model of two layers reads '{' '.join(WORDS)}', and then the same with other words from the "
                f"{BORDER + 1}th on: '{' '.join(VOCABULARY[token] for token in OTHER_FUTURE)}'. For each module and "
                "word: is any bit of what it hands out another one?"
            ),
            movement(sound),
            Paragraph(
                "What comes before the change stays as it was, not nearly, but to the bit: a hidden key adds 0 times "
                f"its value, and that changes no sum. The trainer says: {verdict(sound)}"
            ),
        ],
    )


def invitation() -> DocumentSection:
    return DocumentSection(
        "3. And one that peeks?",
        [Paragraph("foretell lesson mask --break takes the mask away from one layer, and tries to train that.")],
    )


def broken(peeking: Trial) -> DocumentSection:
    return DocumentSection(
        "3. One that peeks",
        [
            Paragraph(
                f"Now the same model, but {LEAK} forgets its mask: one argument fewer in one call, which any hand "
                "could leave out."
            ),
            movement(peeking),
            Paragraph(
                "Everything from there on knows the future, the logits too. No test of shapes would notice. Training "
                "does; this is what foretell train prints, before it takes a step, and leaves with exit code 1:"
            ),
            Paragraph(verdict(peeking)),
        ],
    )


def movement(trial: Trial) -> Table:
    """Which words' values moved, module by module."""
    rows = [(name, *("moved" if moved else "same" for moved in line)) for name, line in trial.moved.items()]
    return Table(("", *WORDS), rows)


def verdict(trial: Trial) -> str:
    """The trainer's line, as the command line shows it."""
    return "nothing to object to." if trial.refusal is None else f"foretell: {trial.refusal}"
