"""A server in a process of its own, with a small random model and a client for it."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import pytest

import foretell
from foretell.language_model import LanguageModel
from tests.toy import make_toy
from tests.warm import THREADS, Original, Warm

httpx = pytest.importorskip("httpx")
pytest.importorskip("starlette")

CONTEXT = 128
LONG = os.environ.get("FORETELL_LOAD") == "1"  # the long form of a test
PLACES = (Path(foretell.__file__).parents[2], Path.home(), Path(tempfile.gettempdir()))  # of this machine
LEAKS = re.compile(  # in no answer: addresses, tracebacks and paths
    rb"0x[0-9a-f]{6,}|Traceback|/home/|\.py\b|site-packages|"
    + b"|".join(re.escape(bytes(place)) for place in PLACES if place.name)
)


@dataclass
class Served:
    """A running server."""

    process: subprocess.Popen[bytes] | Warm
    address: str
    log: IO[str]
    client: Any = field(init=False)

    def __post_init__(self) -> None:
        self.client = httpx.Client(base_url=self.address, timeout=120)

    def post(self, path: str, **body: Any) -> Any:
        """Send a body in ASCII: httpx cannot write lone surrogates."""
        return self.client.post(path, content=json.dumps(body), headers={"content-type": "application/json"})

    def ask(self, path: str, **body: Any) -> Any:
        """The answer to a request that is served."""
        answer = self.post(path, **body)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def refuse(self, path: str, **body: Any) -> dict[str, Any]:
        """The error of a request that is refused with status 400."""
        return error_of(self.post(path, **body))

    def stream(self, path: str, **body: Any) -> list[Any]:
        """The values of a stream's data lines; the last one is checked to be [DONE] and left out."""
        with self.client.stream("POST", path, json={**body, "stream": True}) as answer:
            text = "".join(answer.iter_text())
        lines = [line for line in text.split("\n\n") if line]
        assert all(line.startswith("data: ") for line in lines)
        assert lines.count("data: [DONE]") == 1 and lines[-1] == "data: [DONE]"
        return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]

    def logged(self) -> str:
        """All that the server has written to stderr."""
        return Path(self.log.name).read_text(encoding="utf-8")

    def memory(self) -> int:
        """The kilobytes of memory and swap space of its own, on Linux; elsewhere 0."""
        status = Path(f"/proc/{self.process.pid}/status")
        text = status.read_text(encoding="utf-8") if status.exists() else ""
        return sum(map(int, re.findall(r"^(?:RssAnon|VmSwap):\s+(\d+) kB$", text, re.MULTILINE)))

    def metric(self, name: str) -> float:
        text = self.client.get("/metrics").text
        return float(re.findall(rf"^foretell_{name}(?:{{.*}})? (\S+)$", text, re.MULTILINE)[0])

    def close(self) -> None:
        self.process.wait()
        self.client.close()
        self.log.close()

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(60)


def start(original: Original, *arguments: str, program: Sequence[str] = ()) -> Served:
    """Start a server on a free port and wait until it is ready. program: arguments of a new Python; default: a fork."""
    words = ["serve", *arguments, "--port", "0"]
    log = tempfile.NamedTemporaryFile("w+", encoding="utf-8")  # noqa: SIM115 - deleted with the server
    if program:
        process = subprocess.Popen([sys.executable, *program, *words], stderr=log, env=os.environ | THREADS)
    else:
        process = original.start(words, Path(log.name))
    while process.poll() is None:
        text = Path(log.name).read_text(encoding="utf-8")
        if text.rstrip().endswith("ready"):
            return Served(process, re.findall(r"http://\S+(?=/v1)", text)[0], log)
        time.sleep(0.02)
    raise AssertionError(f"the server ended: {Path(log.name).read_text(encoding='utf-8')}")


@pytest.fixture(scope="session")
def run_async() -> Callable[[Coroutine[Any, Any, Any]], Any]:
    """`asyncio.run` in a thread: Playwright's tests leave a running event loop in the main one."""

    def call(work: Coroutine[Any, Any, Any]) -> Any:
        with ThreadPoolExecutor(1) as executor:
            return executor.submit(asyncio.run, work).result()

    return call


@pytest.fixture(scope="session")
def toy_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A saved decoder on bytes with random weights."""
    path = tmp_path_factory.mktemp("toy") / "toy"
    make_toy(name="toy", context_length=CONTEXT).save(path)
    return path


@pytest.fixture(scope="module")
def model(toy_model: Path) -> LanguageModel:
    return foretell.load(toy_model)


@pytest.fixture(scope="module")
def start_server(original: Original) -> Iterator[Callable[..., Served]]:
    """Starts servers, which end with the tests of a file."""
    started: list[Served] = []

    def call(*arguments: str, program: Sequence[str] = ()) -> Served:
        started.append(start(original, *arguments, program=program))
        return started[-1]

    yield call
    for served in started:
        served.process.kill()
        served.close()


@pytest.fixture(scope="session")
def server(toy_model: Path, original: Original) -> Iterator[Served]:
    """One server for all tests that do not end it."""
    served = start(original, str(toy_model), "--memory", "0.05")
    yield served
    assert served.stop() == 0
    served.close()


def error_of(answer: Any, status: int = 400) -> dict[str, Any]:
    """The error of an answer, in OpenAI's shape and in one line, without anything about this machine."""
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert not LEAKS.search(answer.content)
    assert "\n" not in error["message"]
    return error


def settled(page: Any) -> None:
    """Wait until the live page shows a pass and nothing is asked for any more."""
    page.wait_for_selector("html[data-ready]")
    page.wait_for_selector("html[data-requests='0']")


def edit(page: Any, text: str) -> None:
    """Write another text, and wait for its pass; an answer to an earlier question may arrive before."""

    def has_text(answer: Any) -> bool:
        sent = answer.request.post_data_json if answer.url.endswith("/explore") else None
        return sent is not None and text in sent.values()

    with page.expect_response(has_text):
        page.locator("#text").fill(text)
    settled(page)


def click(page: Any, name: str, within: str = "body", exact: bool = False) -> None:
    button = page.locator(within).get_by_role("button", name=name, exact=exact)
    settled(page)  # what arrives draws its part again
    button.scroll_into_view_if_needed()
    settled(page)  # parts that come into view move the button when they arrive
    button.click()
    settled(page)


def click_on(part: Any) -> None:
    """Click on a part of the live page, and wait until the page shows what that asks for."""
    part.click()
    settled(part.page)


def scroll_to(part: Any) -> None:
    """Bring a part of the live page into view, and wait until it has its numbers."""
    part.scroll_into_view_if_needed()
    settled(part.page)


def show_part(page: Any, part: str, first: str) -> None:
    """Bring a part of the live page into view, and wait for the first of these elements and for all numbers."""
    page.locator(part).scroll_into_view_if_needed()
    page.locator(first).first.wait_for()
    settled(page)


def scroll_through(page: Any) -> None:
    """Bring each section of the live page into view."""
    for section in page.locator("main section:not([hidden])").all():
        scroll_to(section)


def open_address(page: Any, address: str) -> None:
    """Open a number of the live page by its address; the panel of numbers is open."""
    page.locator("#address").fill(address)
    page.locator("#address").press("Enter")
    settled(page)


def code_of(page: Any, name: str) -> str:
    """The text that a button of the exports shows; on a busy machine a part that comes late moves the button."""
    if page.locator("#export details").get_attribute("open") is None:
        page.locator("#export details").evaluate("details => details.open = true")
    click(page, name)
    if not page.locator("#export-code").count():
        click(page, name)
    return page.locator("#export-code").inner_text()


@pytest.fixture
def open_live(server: Served, browser: Any) -> Iterator[Callable[..., Any]]:
    """Open the live page, with options of a browser's context.

    In the end its console must not have complained, except in lines with one of the `expected` words.
    """
    contexts, complaints = [], []

    def open_page(fragment: str = "", expected: Sequence[str] = (), **options: Any) -> Any:
        def hear(text: str) -> None:
            complaints.extend([] if any(words in text for words in expected) else [text])

        contexts.append(browser.new_context(**options))
        page = contexts[-1].new_page()
        page.on("console", lambda line: line.type in ("error", "warning") and hear(line.text))
        page.on("pageerror", lambda error: hear(str(error)))
        page.goto(f"{server.address}/{fragment}")
        settled(page)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert complaints == []
