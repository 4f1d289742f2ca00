"""`foretell explain --html`: the page, its report, and bad input."""

from __future__ import annotations

import pytest


def test_a_page_is_written_and_described_in_one_line(foretell, trained, tmp_path):
    outcome = foretell("explain", trained, "The cat", "--html", "page.html")
    assert outcome.code == 0
    size = (tmp_path / "page.html").stat().st_size
    assert outcome.out == f"page.html: 7 tokens, 2 layers, 2 heads per layer, {size / 1000:.0f} kB\n"


def test_the_report_is_also_there_as_json(foretell, trained, tmp_path):
    report = foretell("explain", trained, "The cat", "--html", "page.html", "--json").json
    size = (tmp_path / "page.html").stat().st_size
    assert report == {"path": "page.html", "bytes": size, "tokens": 7, "layers": 2, "heads": 2, "cut": []}


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["The", "--html", "p.html", "--at", "1"], 2, ["--at", "--lens"]),
        (["", "--html", "p.html"], 2, ["empty"]),
        (["x" * 33, "--html", "p.html"], 1, ["33", "32"]),
        (["The", "--html", "nowhere/p.html"], 1, ["nowhere", "folder"]),
        (["The", "--html", "."], 1, ["folder"]),
        (["The", "--html", "/proc/p.html"], 1, ["/proc/p.html"]),
    ],
)
def test_bad_input_to_html_is_one_line_and_writes_nothing(foretell, trained, tmp_path, arguments, code, words):
    outcome = foretell("explain", trained, *arguments)
    assert outcome.code == code
    assert all(word in outcome.last_line for word in words)
    assert outcome.out == ""
    assert list(tmp_path.iterdir()) == []
