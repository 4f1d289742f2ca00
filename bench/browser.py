"""The system's Chromium, for benchmarks and pictures of pages."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]


@contextmanager
def chromium() -> Iterator[Any]:
    """A started browser of Playwright."""
    from playwright.sync_api import sync_playwright

    executable = next((path for path in map(shutil.which, NAMES) if path), None)
    if executable is None:
        raise SystemExit(f"Chromium not found: none of {', '.join(NAMES)}")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=FLAGS)
        yield browser
        browser.close()
