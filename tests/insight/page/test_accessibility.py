"""The page of a pass keeps the rules of axe-core that `accessibility_problems` checks."""

from __future__ import annotations

import pytest

from foretell.insight.page.write_page import write_page


@pytest.mark.parametrize(
    ("width", "scheme"),
    [
        (400, "dark"),
        (1024, "light"),
        pytest.param(400, "light", marks=pytest.mark.long),
        pytest.param(1024, "dark", marks=pytest.mark.long),
    ],
)
def test_the_page_is_accessible(primer, browser, tmp_path, accessibility_problems, scheme, width):
    model, text = primer
    write_page(model, text, tmp_path / "page.html")
    context = browser.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme)
    page = context.new_page()
    page.goto((tmp_path / "page.html").as_uri())
    page.wait_for_selector("html[data-complete]")
    assert accessibility_problems(page) == []
    context.close()
