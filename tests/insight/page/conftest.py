"""Fixtures of the page tests: models with a tokenizer, and one Chromium for all tests."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from foretell.config.model import ModelConfig
from foretell.insight.page.write_page import write_page
from foretell.language_model import LanguageModel, load_model
from foretell.lessons.smallest import draw_weights, make_smallest
from foretell.model.decoder import Decoder
from foretell.text import Tokenizer
from foretell.text.tokenizer_training import train_tokenizer

LETTERS = "abcdefghij"  # with the end token, as many as the tiny configurations have
READY_MILLISECONDS = 300_000  # on a machine with other work

MakeModel = Callable[..., LanguageModel]


@pytest.fixture(scope="session")
def make_model(make_decoder: Callable[..., Decoder]) -> MakeModel:
    """A model with a tokenizer of letters: `make_model("gpt2", width=16)`."""
    letters = train_tokenizer("characters", [LETTERS])

    def make(config: ModelConfig | str, tokenizer: Tokenizer = letters, name: str = "model", **changes: Any):
        return LanguageModel(make_decoder(config, vocab_size=tokenizer.vocab_size, **changes).eval(), tokenizer, name)

    return make


@pytest.fixture(scope="session")
def smallest() -> LanguageModel:
    """One layer, one head, no residual, no norm: the decoder of the first lesson."""
    model = make_smallest(draw_weights())
    model.decoder.float()
    return model


class OpenedPage:
    """A page in the browser, with its console errors and requests."""

    def __init__(self, page: Any):
        self.page, self.complaints, self.requests = page, [], []
        page.on("console", self._hear)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("request", lambda request: self.requests.append(request.url))

    def _hear(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(message.text)

    def goto(self, path: Path, choice: str = "") -> None:
        self.page.goto(f"{path.as_uri()}{choice}")

    def wait(self) -> None:
        self.page.wait_for_selector("html[data-complete]", timeout=READY_MILLISECONDS)

    def wait_for_frames(self) -> None:
        """Until the browser has painted what events so far have changed."""
        self.page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def text(self, selector: str) -> str:
        return self.page.locator(selector).inner_text()

    def ask(self, script: str, *arguments: Any) -> Any:
        return self.page.evaluate(script, list(arguments))

    def point_at(self, query: int, key: int) -> None:
        """Move the pointer to the middle of a cell of the large map."""
        canvas = self.page.locator("#map-canvas")
        canvas.scroll_into_view_if_needed()
        box = canvas.bounding_box()
        cells = canvas.evaluate("canvas => ({...canvas.dataset})")
        left, top, cell = (float(cells[name]) for name in ("left", "top", "cell"))
        self.page.mouse.move(box["x"] + left + (key + 0.5) * cell, box["y"] + top + (query + 0.5) * cell)


OpenPage = Callable[..., OpenedPage]


@pytest.fixture
def open_page(browser: Any, tmp_path: Path) -> Iterator[OpenPage]:
    """Write the page of a text, open it from disk, and wait until it is complete."""
    shared, contexts, count = browser.new_context(offline=True), [], itertools.count()

    def open_text(model: LanguageModel, text: str, choice: str = "", **options: Any) -> OpenedPage:
        path = tmp_path / f"page{next(count)}.html"
        budget = {"budget_bytes": options.pop("budget_bytes")} if "budget_bytes" in options else {}
        write_page(model, text, path, **budget)
        return open_file(path, choice, **options)

    def open_file(path: Path, choice: str = "", wait: bool = True, **options: Any) -> OpenedPage:
        opened = OpenedPage((browser.new_context(offline=True, **options) if options else shared).new_page())
        contexts.append(opened.page.context)
        opened.goto(path, choice)
        if wait:
            opened.wait()
        return opened

    open_text.file = open_file  # pyrefly: ignore[missing-attribute]
    yield open_text
    for context in {shared, *contexts}:
        context.close()


@pytest.fixture(scope="session")
def primer() -> tuple[LanguageModel, str]:
    """The primer model, and a text."""
    directory = Path(str(files("foretell.included") / "primer"))
    return load_model(directory, name="primer"), "The return value of the function is"


@pytest.fixture(scope="module")
def primer_page(browser: Any, primer: tuple[LanguageModel, str], tmp_path_factory: Any) -> Iterator[OpenedPage]:
    """The page of the primer, opened once per test file."""
    path = tmp_path_factory.mktemp("primer") / "primer.html"
    write_page(*primer, path)
    context = browser.new_context(offline=True)
    opened = OpenedPage(context.new_page())
    opened.goto(path)
    opened.wait()
    yield opened
    context.close()
