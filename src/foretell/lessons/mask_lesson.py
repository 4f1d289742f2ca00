"""The lesson on the mask: what it is, how it is tested, and a model without one."""

from __future__ import annotations

import numpy as np

from foretell.lessons.lesson import FigureCheck, Lesson, lesson_document, same
from foretell.lessons.mask_values import (
    FIRST_CHANGED,
    LEAK,
    OTHER_FUTURE,
    ROW,
    VOCABULARY,
    WATCHED_MODULES,
    MaskTest,
    example_masks,
    make_correct,
    make_peeking,
    run_mask_test,
)
from foretell.model.decoder import Decoder
from foretell.typesetting.document import DocumentSection, Formula, Paragraph, Table
from foretell.typesetting.expression import Matrix, Symbol, row

TWO_DOCUMENTS = [[1, 0, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 1, 1]]
WINDOW = [[1, 0, 0, 0], [1, 1, 0, 0], [0, 1, 1, 0], [0, 0, 1, 1]]
WORDS = [VOCABULARY[token] for token in ROW[:-1]]


class MaskLesson(Lesson):
    """A correct model and one that sees the future. `broken` shows the second one; the checks always test both."""

    def __init__(self, broken: bool = False, correct: Decoder | None = None, peeking: Decoder | None = None):
        self.broken = broken
        self.correct = run_mask_test(correct or make_correct())
        self.peeking = run_mask_test(peeking or make_peeking())

    def document(self) -> DocumentSection:
        last = peeking_model(self.peeking) if self.broken else invitation()
        return lesson_document("mask", [introduction(), three_masks(), mask_comparison(self.correct), last])

    def checks(self) -> list[FigureCheck]:
        causal, window, documents = example_masks().values()
        return [
            same("the causal mask", np.tril(np.ones((4, 4), dtype=int)), causal),
            same("a window of 2", WINDOW, window),
            same("two documents in a row", TWO_DOCUMENTS, documents),
            *check_correct(self.correct),
            *check_peeking(self.peeking),
        ]


def check_correct(test: MaskTest) -> list[FigureCheck]:
    """Only outputs from the first replaced word on change, and training starts."""
    return [
        same("correct model: modules that see the future", [], test.leaking),
        same("correct model: logits change with their own words", True, all(test.changed["head"][FIRST_CHANGED:])),
        same("correct model: training error", None, test.error),
    ]


def check_peeking(test: MaskTest) -> list[FigureCheck]:
    """Earlier outputs change in every module after the missing mask, and training names the module."""
    message = (test.error or "none").partition(",")[0]
    after_leak = list(WATCHED_MODULES[WATCHED_MODULES.index(LEAK) :])
    return [
        same("model without a mask: modules that see the future", after_leak, test.leaking),
        same("model without a mask: training error", f"{LEAK} sees the future", message),
    ]


def introduction() -> Paragraph:
    return Paragraph(
        "A model that sees the word it should predict learns to copy it. Its loss is very low, and it cannot write a "
        "sentence. The mistake is easy to make and causes no error. So foretell tests every model before the first "
        "step of its training."
    )


def three_masks() -> DocumentSection:
    first, second, third = (Matrix(values) for values in example_masks().values())
    return DocumentSection(
        "1. Three masks",
        [
            Paragraph(
                "Rows are queries, columns are keys, and 1 means that the query may see the key. The first mask shows "
                "only the past. The second shows a window of two tokens. The third is for two texts packed into one "
                "row, which do not see each other."
            ),
            Formula(row(first, Symbol("  "), second, Symbol("  "), third)),
            Paragraph(
                "Where the mask is 0, the attention score becomes -∞, and its weight after the softmax is exactly 0."
            ),
        ],
    )


def mask_comparison(test: MaskTest) -> DocumentSection:
    return DocumentSection(
        "2. Change the future, compare the past",
        [
            Paragraph(
                f"A new model of two layers reads '{' '.join(WORDS)}'. Then it reads the same with other words from "
                f"the {FIRST_CHANGED + 1}th on: '{' '.join(VOCABULARY[token] for token in OTHER_FUTURE)}'. The table "
                "shows, for each module and word, whether any bits of its output differ:"
            ),
            change_table(test),
            Paragraph(
                "Outputs before the first changed word are bit-identical: a masked key adds 0 times its value, which "
                f"changes no sum. The check before training says: {verdict(test)}"
            ),
        ],
    )


def invitation() -> DocumentSection:
    return DocumentSection(
        "3. A model that peeks",
        [Paragraph("foretell lesson mask --break removes the mask from one layer and tries to train that model.")],
    )


def peeking_model(test: MaskTest) -> DocumentSection:
    return DocumentSection(
        "3. A model that peeks",
        [
            Paragraph(
                f"This is the same model, but {LEAK} does not use its mask. The bug is one missing argument in one "
                "function call."
            ),
            change_table(test),
            Paragraph(
                "From that module on, every output depends on the future, the logits too. All shapes are correct, so a "
                "test of shapes does not fail. Training does: foretell train prints this line before the first step "
                "and stops with exit code 1:"
            ),
            Paragraph(verdict(test)),
        ],
    )


def change_table(test: MaskTest) -> Table:
    """One row per module: which words' outputs changed."""
    rows = [(name, *("differ" if change else "same" for change in line)) for name, line in test.changed.items()]
    return Table(("", *WORDS), rows)


def verdict(test: MaskTest) -> str:
    """The result of the check before training, as the command line shows it."""
    return "the mask is correct." if test.error is None else f"foretell: {test.error}"
