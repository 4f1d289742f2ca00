"""Translations, forecasts and predictions over HTTP are those of their verbs."""

from __future__ import annotations

import contextlib
import io
import json

import pytest

from foretell.cli.main import run

SERIES = [float(hour % 5) for hour in range(60)]


def output(*arguments):
    """The lines that a command prints."""
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        assert run([*map(str, arguments)]) == 0
    return [json.loads(line) for line in printed.getvalue().splitlines()]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tasks")
    pairs = [f"a cat number {n}\tun chat numéro {n}" for n in range(40)]
    (folder / "pairs.tsv").write_text("\n".join(pairs), encoding="utf-8")
    (folder / "series.csv").write_text("y\n" + "\n".join(map(str, SERIES)) + "\n", encoding="utf-8")
    labels = [f"text {n} is {word},{word}" for n in range(20) for word in ("good", "bad")]
    (folder / "labels.csv").write_text("text,label\n" + "\n".join(labels) + "\n", encoding="utf-8")
    commands = [
        ["train", "--task", "translate", "pairs.tsv", "--size", "toy", "--steps", "3", "--batch-tokens", "128"],
        ["train", "--task", "forecast", "series.csv", "--size", "toy", "--steps", "3", "--training.batch-size", "4"],
        ["finetune", "primer", "labels.csv", "--task", "classify", "--steps", "1"],
    ]
    with contextlib.chdir(folder):
        assert [run([*command, "--out", name]) for command, name in zip(commands, "tfc", strict=True)] == [0, 0, 0]
    return folder


@pytest.fixture(scope="module")
def server(folder, start_server):
    return start_server(*(str(folder / name) for name in "tfc"), "--memory", "0.1")


def test_a_translation(server, folder):
    answer = server.ask("/v1/translate", model="t", input=["a cat", "a number"])
    for row, expected in zip(
        answer["data"], output("translate", folder / "t", "a cat\na number", "--json"), strict=True
    ):
        assert row["translation"] == expected["translation"]
        assert row["score"] == pytest.approx(expected["score"], rel=1e-5)  # the verb translates both in one batch


def test_all_models_are_listed(server):
    assert {model["id"] for model in server.client.get("/v1/models").json()["data"]} == {"t", "f", "c"}
    assert server.client.get("/v1/models/t").json()["object"] == "model"


def test_a_forecast(server, folder):
    answer = server.ask("/v1/forecast", model="f", series=[SERIES], horizon=3, samples=20, levels=[80, 95])
    [expected] = output(
        "forecast",
        folder / "f",
        folder / "series.csv",
        "--horizon",
        "3",
        "--samples",
        "20",
        "--levels",
        "80,95",
        "--json",
    )
    assert answer["data"][0]["median"] == expected["median"]
    assert answer["data"][0]["intervals"] == expected["intervals"]


def test_a_prediction(server, folder):
    answer = server.ask("/v1/predict", model="c", input="it is good")
    assert answer["data"] == output("predict", folder / "c", "it is good", "--json")


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/translate", {"model": "c", "input": "x"}),
        ("/v1/forecast", {"model": "x", "series": [[1]]}),
        ("/v1/completions", {"model": "t", "prompt": "x"}),
    ],
)
def test_a_model_without_the_task(server, path, body):
    answer = server.post(path, **body)
    assert answer.status_code == 404 and answer.json()["error"]["code"] == "model_not_found"


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/translate", {"model": "t", "input": []}),
        ("/v1/translate", {"model": "t", "input": "x", "beam": 1000}),
        ("/v1/forecast", {"model": "f", "series": [[]]}),
        ("/v1/forecast", {"model": "f", "series": [[None]]}),
        ("/v1/forecast", {"model": "f", "series": [SERIES], "samples": 1000, "horizon": 10_000}),
        ("/v1/forecast", {"model": "f", "series": [["1"]]}),
        ("/v1/forecast", {"model": "f", "series": [SERIES], "levels": [100]}),
        ("/v1/predict", {"model": "c", "input": ""}),
        ("/v1/predict", {"model": "c", "input": [["a", "b"]]}),
    ],
)
def test_inputs_out_of_bounds(server, path, body):
    assert server.post(path, **body).status_code == 400
