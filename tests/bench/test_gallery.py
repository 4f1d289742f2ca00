"""bench/gallery.py: docs/gallery.md has six pages, and the page of an included model is written and photographed."""

from __future__ import annotations

import re

import gallery
import pytest

LINK = re.compile(r"\]\((gallery/[^)]+)\)")


@pytest.fixture(scope="module")
def pages() -> dict[str, gallery.GalleryPage]:
    return {page.file.removesuffix(".html"): page for page in gallery.read_gallery()}


def test_the_gallery_has_six_pages_that_their_last_command_writes(pages):
    assert set(pages) == {"atlas", "primer", "sort", "label", "forecast", "translation"}
    for page in pages.values():
        assert page.commands[-1].endswith(f"--html {page.file}")
        assert (gallery.PICTURES / page.picture).exists()


def test_links_to_pages_of_the_gallery_open_what_their_picture_shows(pages):
    choices = {f"gallery/{page.file}{page.choice}" for page in pages.values()}
    links = {path.name: set(LINK.findall(path.read_text(encoding="utf-8"))) for path in gallery.DOCS.glob("*.md")}
    assert links["index.md"] == links["gallery.md"] == choices
    assert all(named <= choices for named in links.values())


def test_a_page_is_one_file_and_opens_with_the_choice_of_its_link(pages, browser, tmp_path):
    atlas = pages["atlas"]
    gallery.write_pages([atlas], tmp_path)
    page = tmp_path / atlas.file
    assert page.stat().st_size < gallery.MAX_BYTES / 6
    assert re.findall(r'\b(?:src|href)="(?!data:|#)', page.read_text(encoding="utf-8")) == []
    picture = tmp_path / "picture.png"
    gallery.photograph(browser, f"{page.as_uri()}{atlas.choice}", "html[data-complete]", picture)
    assert picture.read_bytes().startswith(b"\x89PNG")
    with pytest.raises(SystemExit, match="which this pass does not have"):
        gallery.photograph(browser, f"{page.as_uri()}#layer=4", "html[data-complete]", picture)
