"""Random clicks on all controls of the page of a hostile model, live and offline: nothing of it is executed.

FORETELL_CLICKS sets the number of clicks on each of the two pages (`make fuzz`).
"""

from __future__ import annotations

import json
import os
import random
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

import foretell
from foretell.insight.page.write_page import write_page
from foretell.text import train_tokenizer
from tests.serving.conftest import scroll_through, settled
from tests.toy import make_toy

CLICKS = int(os.environ.get("FORETELL_CLICKS", "25"))
HOSTILE = [
    "<img src=x onerror=window.ran=1>",
    "</script><script>window.ran=1</script>",
    "<svg onload=window.ran=1>",
    "'\"><b onmouseover=window.ran=1>${window.ran=1}{{window.ran=1}}",
    "javascript:window.ran=1",
]
TEXT = HOSTILE[0]
CHANGE = [{"value": "trunk.blocks.0.attention.core", "heads": [0], "scale": 0}]
WANTED = "a[href], button, input, select, textarea, summary, canvas[tabindex]"
# Uses the control at a share of the list: clicks it, or gives it another value or a hostile text
USE = """([wanted, share, text]) => {
  const isUsable = (e) => !e.disabled && e.checkVisibility({ visibilityProperty: true });
  const controls = [...document.querySelectorAll(wanted)].filter(isUsable);
  const e = controls[Math.floor(share * controls.length)];
  e.focus();
  if (e.matches("select")) e.selectedIndex = Math.floor(share * 9973) % Math.max(1, e.options.length);
  else if (e.matches("textarea, input[type=text]")) e.value = text;
  else if (e.matches("input")) e.value = Math.floor(share * 9973) % 12;
  else { e.dispatchEvent(new PointerEvent("pointermove", { bubbles: true })); e.click(); return; }
  for (const type of ["input", "change"]) e.dispatchEvent(new Event(type, { bubbles: true }));
}"""
STRANGERS = "document.querySelectorAll('img, svg[onload], b, body script:not([type]), [onerror], [onmouseover]').length"


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A model whose name, tokens and examples are hostile."""
    tokenizer = train_tokenizer("bpe", [text[1:] for text in HOSTILE] * 9, vocab_size=320, special=HOSTILE)
    path = tmp_path_factory.mktemp("hostile") / HOSTILE[0]
    make_toy(tokenizer, name=HOSTILE[0], context_length=64).save(path)
    examples = [{"title": text, "text": text, "layer": 0} for text in HOSTILE[:3]]
    (path / "examples.json").write_text(json.dumps({"examples": examples}), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def server(start_server, folder):
    return start_server(str(folder), "--memory", "0.05")


def use_all(page: Any, settle: Any) -> None:
    draw, dialogs = random.Random(1), []
    page.on("dialog", lambda dialog: (dialogs.append(dialog.message), dialog.dismiss()))
    for _ in range(CLICKS):
        page.evaluate(USE, [WANTED, draw.random(), draw.choice([*HOSTILE, TEXT])])
        settle(page)
        assert page.evaluate("window.ran") is None and page.evaluate(STRANGERS) == 0
    assert dialogs == []


def test_clicks_on_the_live_page_execute_nothing(open_live):
    state = {"text": TEXT, "change": json.dumps(CHANGE), "second": TEXT[::-1], "otherText": TEXT}
    fragment = "#" + "&".join(f"{name}={quote(value)}" for name, value in state.items())
    expected = ["400", "too frequent calls to print()"]  # refused requests, and Chromium's word about many clicks
    page = open_live(fragment, expected, permissions=["clipboard-read", "clipboard-write"])
    scroll_through(page)
    use_all(page, settled)


def test_clicks_on_the_page_in_a_file_execute_nothing(folder, browser, tmp_path):
    write_page(foretell.load(folder), TEXT, tmp_path / "page.html")
    context = browser.new_context(offline=True)
    page, complaints = context.new_page(), []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.goto((tmp_path / "page.html").as_uri())
    page.wait_for_selector("html[data-complete]")
    use_all(page, lambda _: None)
    assert complaints == []
    page.evaluate("text => document.body.insertAdjacentHTML('beforeend', text)", HOSTILE[0])
    assert page.evaluate(STRANGERS) == 1, "an element of a hostile text is detected"
    context.close()
