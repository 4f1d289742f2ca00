"""The website: docs/index.md lists every page in the format of llms.txt, and mkdocs.yml has the same order."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
INDEX = (DOCS / "index.md").read_text(encoding="utf-8")
LINK = re.compile(r"- \[(?P<title>[^\]]+)\]\((?P<page>[\w.-]+)\): (?P<about>.+)")


def listed() -> dict[str, dict[str, str]]:
    """Title to page, by section of the index."""
    sections = {}
    for part in INDEX.split("\n## ")[1:]:
        title, _, body = part.partition("\n")
        sections[title] = {match["title"]: match["page"] for match in LINK.finditer(body)}
    return sections


def test_the_index_lists_every_page_once():
    pages = [page for section in listed().values() for page in section.values()]
    assert sorted(pages) == sorted(path.name for path in DOCS.glob("*.md") if path.name != "index.md")


def test_the_index_has_the_format_of_llms_txt():
    """A title, a summary as a quotation, prose without headings, then sections of links with notes (llmstxt.org)."""
    head, *sections = INDEX.split("\n## ")
    assert re.match(r"# \w+\n\n(> .+\n)+\n", head) and head.count("\n#") == 0
    for section in sections:
        _, *lines = filter(None, section.splitlines())
        assert lines
        assert [line for line in lines if not LINK.fullmatch(line)] == []


def test_the_navigation_has_the_order_of_the_index():
    first, *sections = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]
    navigation = {title: pages for section in sections for title, pages in section.items()}
    assert first == "index.md"
    assert [(title, [page.popitem() for page in pages]) for title, pages in navigation.items()] == [
        (title, list(pages.items())) for title, pages in listed().items()
    ]


def test_the_gallery_shows_every_picture():
    gallery = (DOCS / "gallery.md").read_text(encoding="utf-8")
    shown = re.findall(r"!\[[^\]]+\]\(pictures/([\w.-]+)\)", gallery)
    assert sorted(shown) == sorted(path.name for path in (DOCS / "pictures").iterdir())
