"""The walk through the decoder of an encoder-decoder."""

from __future__ import annotations

import numpy as np

from foretell.lessons.catalog import find_lesson
from foretell.lessons.encoder_decoder.printed import CROSS, HEAD_WIDTH, TARGET
from foretell.lessons.encoder_decoder.values import Everything
from foretell.typesetting.document import DocumentSection, Formula, Paragraph, Table
from foretell.typesetting.expression import Call, Fraction, Matrix, Number, Root, Symbol, row, script

SCALED = Fraction(row(Symbol("Q"), script("K", above="T")), Root(Symbol("d")))
HIDDEN = ("nothing is hidden yet", "<sos> must not see what it is to predict", "nor Je", "nor vais; bien sees all")


def make_page(found: Everything) -> DocumentSection:
    """Input, masked attention, heads, attention to the source, the whole layer."""
    parts = [masking(found), shares(found), heads(found), across(found), layer(found), left_out()]
    return DocumentSection(find_lesson("translation").title, [introduction(), *parts])


def introduction() -> Paragraph:
    return Paragraph(
        "'I am good' becomes '<sos> Je vais bien', one word at a time. A decoder reads its own words so far, each "
        "embedded, with its position added, as in every GPT. Then it reads the source, through the encoder. The notes "
        "print some of the numbers; with dots in most tables, the others cannot be computed again."
    )


def masking(found: Everything) -> DocumentSection:
    steps = [
        part
        for said, scores in zip(HIDDEN, found.masked, strict=True)
        for part in (Paragraph(f"{said[0].upper()}{said[1:]}:"), Formula(Matrix(scores, digits=3, row_labels=TARGET)))
    ]
    first, *others = steps
    return DocumentSection("1. Masked attention, one row at a time", [first, steps[1], note(found), *others[1:]])


def note(found: Everything) -> Paragraph:
    numbers = ", ".join(f"{value:.0f}" for value in found.dot_products[0])
    return Paragraph(
        f"These are scores Q Kᵀ / √d as printed. They give away the width of a head: times 8 they are whole numbers "
        f"(first row: {numbers}), cut after two digits, so d is {HEAD_WIDTH}."
    )


def shares(found: Everything) -> DocumentSection:
    return DocumentSection(
        "2. Shares",
        [
            Formula(row(Call("softmax", SCALED), "=", Matrix(found.weights, row_labels=TARGET))),
            Paragraph("Each word looks mostly at itself. Times the values, which the notes do not print, this is Z."),
        ],
    )


def heads(found: Everything) -> DocumentSection:
    layer = found.layer
    stacked = np.concatenate(layer.heads).T
    joined = row(Symbol("M"), "=", Call("Concat", row(script("Z", "1"), ",", script("Z", "2"))), script("W", "0"))
    return DocumentSection(
        "3. Several heads side by side",
        [
            Paragraph("Each head has its Z. They are put side by side and projected. On random numbers of our own:"),
            Formula(
                row(
                    *joined.items,
                    "=",
                    Matrix(stacked, digits=2),
                    Matrix(layer.output_weight.T, digits=2),
                    "=",
                    Matrix(layer.M.T, digits=2, row_labels=TARGET),
                )
            ),
        ],
    )


def across(found: Everything) -> DocumentSection:
    moved = [f"{distance:.2f}" for distance in found.moved_by_source]
    held = [f"{distance:.2f}" for distance in found.moved_by_target]
    return DocumentSection(
        "4. Attention to the other sentence",
        [
            Paragraph(
                "Queries come from the decoder's M, four rows; keys and values from the encoder's output R, three "
                "rows. So the product is four by three. This is the printed one, with a column each for I, am, good:"
            ),
            Formula(
                row(Symbol("Q"), script("K", above="T"), "=", Matrix(np.array(CROSS), row_labels=TARGET)),
            ),
            Formula(
                row(
                    Call("softmax", Fraction(row(Symbol("Q"), script("K", above="T")), Number(8))),
                    "=",
                    Matrix(found.cross_weights, row_labels=TARGET),
                )
            ),
            Paragraph(
                "No mask: the source is all there before the first word is written. To see it, exchange the last word "
                "of each sentence, and watch how far each word's attention output moves (on random numbers):"
            ),
            Table(
                ("exchanged", *TARGET), [("bien, in masked attention", *held), ("good, in attention across", *moved)]
            ),
        ],
    )


def layer(found: Everything) -> DocumentSection:
    found_layer = found.layer
    rows = [
        ("embedding + position", "X", shape(found_layer.embedded)),
        ("masked multi-head attention", "M", shape(found_layer.M)),
        ("the encoder's output", "R", shape(found_layer.R)),
        ("encoder-decoder attention", "queries of M, keys and values of R", shape(found_layer.cross)),
        ("feed-forward", "each word for itself", shape(found_layer.fed)),
    ]
    return DocumentSection(
        "5. The layer in its order",
        [
            Table(("step", "", "words x width"), rows),
            Paragraph("Every step adds to the stream; a norm stands at each. Layers like this one are stacked."),
        ],
    )


def shape(columns: np.ndarray) -> str:
    """Words first, as on the page."""
    return f"{columns.shape[1]} x {columns.shape[0]}"


def left_out() -> DocumentSection:
    return DocumentSection(
        "What could not be computed again",
        [
            Paragraph(
                "The input X, the query and key matrices of the second attention and their 4 x 3 product are printed "
                "with dots in place of columns: the figures 91, 60, 77, ... are shown, not checked. In one of its two "
                "places a key's second entry is 18.71, in the other 16.71. Checked are the shapes, the mask, the "
                "softmax of what is whole, the projection, and who moves when a word is exchanged."
            )
        ],
    )
