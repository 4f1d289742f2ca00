"""Documents as pages in a real browser: accessible, nothing cut on a laptop's screen or on paper."""

from __future__ import annotations

import numpy as np
import pytest

from foretell.typesetting.document import DocumentSection, Formula, HeatMap, Paragraph, Table
from foretell.typesetting.expression import Matrix, Number, Symbol, row
from foretell.typesetting.html import page

LABELS = ["financial", "data", "analytics", "is", "awesome"]
MATRIX = Matrix(np.linspace(-0.9, 0.9, 15).reshape(5, 3), row_labels=LABELS)
VECTOR = Matrix(np.array([-0.1537, -0.4681, -0.5867]))
WEIGHTS = np.tril(np.linspace(1, 0, 25).reshape(5, 5))
DOCUMENT = DocumentSection(
    "A document",
    [
        Paragraph("Some words."),
        DocumentSection(
            "A part",
            [
                Formula(row(Symbol("X"), "=", MATRIX, "+", MATRIX, "=", MATRIX), "two sums"),
                Formula(row(Number(0.4841), VECTOR, "+", Number(0.5159), VECTOR, "=", VECTOR)),
                HeatMap(WEIGHTS, LABELS, LABELS, "attention weights"),
                Table(["", *LABELS, "!"], [[label, *["0.132031"] * 6] for label in LABELS]),
            ],
        ),
    ],
)
CUT = """() => [...document.querySelectorAll(".scroll")].filter((element) => element.scrollWidth > element.clientWidth)
    .map((element) => element.textContent.slice(0, 60))"""


@pytest.fixture
def open_document(browser):
    contexts = []

    def open_with(**options):
        contexts.append(browser.new_context(**options))
        opened = contexts[-1].new_page()
        opened.set_content(page("A document", DOCUMENT))
        return opened

    yield open_with
    for context in contexts:
        context.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [400, 1024])
def test_a_document_is_accessible(open_document, accessibility_problems, scheme, width):
    opened = open_document(viewport={"width": width, "height": 800}, color_scheme=scheme)
    assert accessibility_problems(opened) == []


def test_no_formula_or_table_is_cut_at_1024_pixels(open_document):
    assert open_document(viewport={"width": 1024, "height": 800}).evaluate(CUT) == []


def test_a_printed_document_is_light_and_fits_the_paper(open_document):
    opened = open_document(viewport={"width": 718, "height": 1000}, color_scheme="dark")
    opened.emulate_media(media="print")
    assert opened.evaluate(CUT) == []
    assert opened.evaluate("document.documentElement.scrollWidth") <= 718
    assert opened.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    shade = "getComputedStyle(document.querySelector('td[title]')).printColorAdjust"
    assert opened.evaluate(shade) == "exact"


def test_numbers_of_a_matrix_are_aligned_to_the_right(open_document):
    ends = """() => [...document.querySelectorAll("mtable mtable mtr")].slice(5, 10)
        .map((line) => line.querySelector("mtd mn").getBoundingClientRect().right)"""
    opened = open_document(viewport={"width": 1024, "height": 800})
    assert np.ptp(opened.evaluate(ends)) < 0.5
