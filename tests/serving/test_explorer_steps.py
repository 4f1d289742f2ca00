"""The live page goes through the steps of a run."""

from __future__ import annotations

from urllib.parse import quote

import pytest

import foretell
from tests.serving.conftest import settled

TEXT = "the cat sat on a mat"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("steps")
    (folder / "cats.txt").write_text("the cat sat on a mat. the dog sat on a log. " * 60, encoding="utf-8")
    training = {"checkpoint_every": 2, "keep_checkpoints": 3, "learning_rate": 0.05}
    foretell.train(folder / "cats.txt", folder / "cats", size="toy", steps=6, training=training, progress=False)
    return folder / "cats"


@pytest.fixture(scope="module")
def server(start_server, run):
    return start_server("primer", f"{run}@step-*", f"{run}@step-1", "--memory", "0.2")


def test_a_slider_goes_through_the_served_steps(open_live, server):
    names = [model["id"] for model in server.client.get("/v1/models").json()["data"]]
    assert names == ["primer", "cats@step-2", "cats@step-4", "cats@step-6", "cats@step-1"]
    page = open_live(f"#model=cats%40step-6&text={quote(TEXT)}&head=1")
    slider = page.locator("#step")
    seen = {}
    for at, step in enumerate((1, 2, 4, 6)):
        slider.fill(str(at))
        settled(page)
        assert page.locator(".steps").inner_text().split() == ["After", "step", str(step)]
        assert page.locator("#model").input_value() == f"cats@step-{step}"
        assert page.locator("#text").input_value() == TEXT and "head=1" in page.url
        seen[step] = page.locator("#next-section").inner_text()
    assert len(set(seen.values())) == 4
    page.locator("#model").select_option("primer")
    settled(page)
    assert page.locator(".steps").is_hidden()
