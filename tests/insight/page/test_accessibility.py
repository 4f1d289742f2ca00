"""The page of a pass keeps the rules of axe-core that `accessibility_problems` checks."""

from __future__ import annotations

import pytest


@pytest.mark.parametrize(
    ("width", "scheme"),
    [
        (400, "dark"),
        (1024, "light"),
        pytest.param(400, "light", marks=pytest.mark.long),
        pytest.param(1024, "dark", marks=pytest.mark.long),
    ],
)
def test_the_page_is_accessible(primer, open_page, accessibility_problems, scheme, width):
    page = open_page(*primer, viewport={"width": width, "height": 800}, color_scheme=scheme).page
    page.locator("#sampling summary").click()
    assert accessibility_problems(page) == []
    page.evaluate("document.querySelector('#temperature').labels[0].remove()")
    assert len(accessibility_problems(page)) == 1, "a control without a name is detected"
