"""Settings for all tests."""

from __future__ import annotations

import fcntl
import gc
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, settings

from tests.warm import Original

# The collection of tests makes millions of objects and no garbage
COLLECT = gc.get_threshold()
gc.set_threshold(100_000, 50, 1000)

# The models here are so small that handing work to a second thread takes longer than doing it, and far longer on a
# machine with other work.
torch.set_num_threads(1)

# Generations wait for their kernels, and leave no process behind that compiles.
os.environ.setdefault("FORETELL_KERNELS", "wait")

# No limits by the clock: a shared machine can stop any test for a second. The same examples in every run: red means
# changed code.
settings.register_profile("foretell", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("foretell")

# `nohup make test &` starts the tests with SIGINT and SIGHUP ignored, and children inherit that. A handler, unlike
# "ignored", is reset to the default in a program that a test starts; this one keeps the tests running at a hangup.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:
    signal.signal(signal.SIGHUP, lambda *_: None)


def pytest_collection_finish() -> None:
    """From here on there is garbage; the modules and tests are not looked through for it."""
    gc.freeze()
    gc.set_threshold(*COLLECT)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Let one process at a time into the block."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # released when the file is closed
        yield


@pytest.fixture(scope="session")
def shared_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for all processes of pytest-xdist."""
    base = tmp_path_factory.getbasetemp()
    return base.parent if "PYTEST_XDIST_WORKER" in os.environ else base


@pytest.fixture(scope="session")
def made_once(shared_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """`made_once(name, make)`: this process's copy of a folder that `make(folder)` makes, once for all processes."""

    def copy(name: str, make: Callable[[Path], object]) -> Path:
        original, done = shared_folder / "made-once" / name, shared_folder / "made-once" / f"{name}.done"
        original.parent.mkdir(exist_ok=True)
        with locked(original.with_name(f"{name}.lock")):
            if not done.exists():
                make(original)
                done.touch()
        return shutil.copytree(original, tmp_path_factory.mktemp("copies") / name)

    return copy


@pytest.fixture
def without_collections() -> Iterator[None]:
    """Only objects without cycles are freed."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.fixture(scope="session")
def original() -> Iterator[Original]:
    """The process whose copies run the command line."""
    started = Original()
    yield started
    started.close()


PNG = bytes.fromhex(  # of one pixel
    "89504e470d0a1a0a0000000d49484452000000010000000108000000003a7e9b55"
    "0000000a49444154789c636000000002000148afa4710000000049454e44ae426082"
)


@pytest.fixture(scope="session", autouse=True)
def real_savefig() -> Iterator[Any]:
    """matplotlib's `savefig`, replaced by one that writes one pixel: drawing takes longer than a tiny training."""
    from matplotlib.figure import Figure

    drawing = Figure.savefig
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Figure, "savefig", lambda _, path, **__: Path(path).write_bytes(PNG))
        yield drawing


@pytest.fixture
def pictures(real_savefig: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a test with this fixture pictures are drawn."""
    monkeypatch.setattr("matplotlib.figure.Figure.savefig", real_savefig)


@pytest.fixture(scope="session", autouse=True)
def _short_samples() -> Iterator[None]:
    """Trainings continue their prompts by a few tokens: by all, samples took half of the time of a tiny training."""
    with pytest.MonkeyPatch.context() as patch:
        for task in ("pretraining.task", "finetuning.chat_task"):
            patch.setattr(f"foretell.{task}.SAMPLE_TOKENS", 6)
        yield


# The first has no window and takes a quarter of the processor time of the second
CHROMIUM_NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
PATIENCE = 120_000  # milliseconds until an answer is missed, on a machine with much other work
CHROMIUM_FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """The system's Chromium, started once."""
    executable = next((path for path in map(shutil.which, CHROMIUM_NAMES) if path), None)
    if executable is None:
        pytest.skip("Chromium not found: none of " + ", ".join(CHROMIUM_NAMES))
    sync_api = pytest.importorskip("playwright.sync_api")
    with sync_api.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=executable, args=CHROMIUM_FLAGS, timeout=PATIENCE)
        started.on("context", lambda context: context.set_default_timeout(PATIENCE))
        yield started
        started.close()


# Rules of axe-core: color-contrast, scrollable-region-focusable, empty-table-header, scope, aria names, heading-order,
# duplicate-id, document-title, html-has-lang, landmark-one-main
ACCESSIBILITY_PROBLEMS = """() => {
    const problems = [], all = [...document.querySelectorAll("body *")].filter((element) => element.checkVisibility());
    const report = (rule, element, detail = "") =>
        problems.push(`${rule} ${detail}: ${element.outerHTML.slice(0, 90)}`);
    const parts = (color) => { const [r, g, b, a = 1] = color.match(/[\\d.]+/g).map(Number); return [r, g, b, a]; };
    const over = ([r, g, b, a], under) => [r, g, b].map((part, i) => a * part + (1 - a) * under[i]);
    const backgrounds = new Map([[null, [255, 255, 255]]]);
    const background = (element) => {
        if (!backgrounds.has(element)) {
            const own = parts(getComputedStyle(element).backgroundColor);
            backgrounds.set(element, own[3] === 1 ? own.slice(0, 3) : over(own, background(element.parentElement)));
        }
        return backgrounds.get(element);
    };
    const light = (color) => {
        const [r, g, b] = color.map((part) => part / 255)
            .map((part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4));
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const contrast = (element) => {
        const under = background(element), text = over(parts(getComputedStyle(element).color), under);
        const [low, high] = [light(under), light(text)].sort((a, b) => a - b);
        return (high + 0.05) / (low + 0.05);
    };
    for (const element of all) {
        const style = getComputedStyle(element);
        const hasText = [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
        if (hasText && !element.closest("svg, option, noscript")) {
            const size = parseFloat(style.fontSize);
            const least = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700) ? 3 : 4.5;
            if (contrast(element) < least) report("color-contrast", element, contrast(element).toFixed(2));
        }
        const scrolls = /auto|scroll/.test(style.overflowX + style.overflowY)
            && (element.scrollWidth > element.clientWidth + 1 || element.scrollHeight > element.clientHeight + 1);
        const focusable = () => [element, ...element.querySelectorAll("*")].some((inner) => inner.tabIndex >= 0);
        if (scrolls && !focusable()) report("scrollable-region-focusable", element);
        const isControl = element.matches("button, select, input, canvas, [role=img], [tabindex='0']");
        const name = () => element.labels?.length || element.ariaLabel || element.ariaLabelledByElements?.length
            || element.innerText?.trim();
        if (isControl && !element.closest("[aria-hidden]") && !name()) report("aria-name", element);
        if (element.matches("th") && !element.innerText.trim()) report("empty-table-header", element);
        if (element.matches("th") && !element.scope) report("scope", element);
    }
    const levels = all.filter((element) => /^H[1-6]$/.test(element.tagName))
        .map((element) => Number(element.tagName[1]));
    levels.forEach((level, i) => {
        if (level > (levels[i - 1] ?? 0) + 1) problems.push(`heading-order: h${level} after h${levels[i - 1] ?? 0}`);
    });
    const ids = [...document.querySelectorAll("[id]")].map((element) => element.id);
    if (new Set(ids).size < ids.length) problems.push("duplicate-id");
    if (!document.title || !document.documentElement.lang) problems.push("document-title or html-has-lang");
    if (document.querySelectorAll("main").length !== 1) problems.push("landmark-one-main");
    return problems;
}"""


@pytest.fixture(scope="session")
def accessibility_problems() -> Callable[[Any], list[str]]:
    """The places of an open browser page that break one of axe-core's rules above."""
    return lambda page: page.evaluate(ACCESSIBILITY_PROBLEMS)
