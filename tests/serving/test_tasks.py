"""Translations, forecasts and predictions over HTTP are those of their verbs."""

from __future__ import annotations

import contextlib
import io
import json
import re
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import pytest

from foretell.cli.main import run
from foretell.finetuning.head import with_truncation
from foretell.loading import load
from foretell.saved_model.config_file import NO_TOKENIZER
from foretell.serving.models import ModelSettings, serve_model
from foretell.serving.tasks import prediction_task
from tests.serving.conftest import error_of

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
        ["finetune", "primer", "labels.csv", "--task", "classify", "--steps", "1", "--truncate", "never"],
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
    for name, path in (("t", "translate"), ("f", "forecast"), ("c", "predict")):
        assert f"{name} was trained for a task; requests to /v1/{path} are answered" in server.logged()


def test_a_forecast(server, folder):
    answer = server.ask("/v1/forecast", model="f", series=[SERIES], horizon=3, samples=20)
    options = ["--horizon", "3", "--samples", "20", "--json"]
    [expected] = output("forecast", folder / "f", folder / "series.csv", *options)
    assert answer["data"][0]["median"] == expected["median"]
    assert answer["data"][0]["intervals"] == expected["intervals"]


def test_several_series_have_numbers(server):
    answer = server.ask("/v1/forecast", model="f", series=[SERIES, SERIES], horizon=1, samples=2)
    assert [row["unique_id"] for row in answer["data"]] == ["series 1", "series 2"]
    one = server.ask("/v1/forecast", model="f", series=[SERIES], horizon=1, samples=2)
    assert one["data"][0]["unique_id"] == "series"
    error = server.post("/v1/forecast", model="f", series=[SERIES, [None, None]]).json()["error"]
    assert error["message"] == "series: series 2: all values are missing, so there is nothing to continue"


def test_a_forecaster_asked_for_a_text_names_its_route(server):
    assert "f answers at /v1/forecast" in server.refuse("/v1/completions", model="f", prompt="a text")["message"]
    error = server.refuse("/v1/chat/completions", model="f", messages=[{"role": "user", "content": "a text"}])
    assert "f answers at /v1/forecast" in error["message"] and error["param"] == "messages"


@pytest.mark.parametrize("name", ["f", "c"])
def test_a_model_for_a_task_needs_no_template(folder, name, caplog):
    model = load(folder / name)
    assert not any(NO_TOKENIZER in line for line in model.notes)
    with caplog.at_level("INFO"):
        serve_model(name, model, ModelSettings(2**24))
    assert "no chat template" not in caplog.text


@pytest.mark.parametrize(
    ("name", "advice"), [("f", "foretell forecast {} DATA"), ("t", "foretell translate {} TEXT"), ("c", "")]
)
def test_predict_names_the_verb_of_a_model(folder, name, advice, capfd):
    assert (run(["predict", str(folder / name), "it is good"]) == 0) == (name == "c")
    assert advice.format(folder / name) in capfd.readouterr().err


def test_a_text_that_is_too_long_for_a_prediction(server):
    error = server.refuse("/v1/predict", model="c", input=["short", "words " * 500])
    assert (error["param"], error["code"]) == ("input", "context_length_exceeded")
    assert re.fullmatch(
        r"input: the text has [0-9,]+ tokens more than fit the context of 128; shorten it", error["message"]
    )


def test_an_answer_about_a_cut_text_has_the_number_of_tokens_that_are_left_out(folder):
    task = prediction_task("c", with_truncation(load(folder / "c"), "tail"), 2**20)
    short, long = (next(task.answer(cast("Any", None), text)) for text in ("it is good", "words " * 500))
    assert short is not None and "cut" not in short
    assert long is not None and long["cut"] > 300 and long.keys() - short.keys() == {"cut"}


@pytest.mark.parametrize(("path", "name"), [("/v1/predict", "c"), ("/v1/translate", "t")])
def test_an_invalid_text_of_a_task_is_an_error_of_its_field(server, path, name):
    assert server.refuse(path, model=name, input="\ud800")["param"] == "input"


@pytest.mark.parametrize(("path", "name"), [("/v1/predict", "c"), ("/v1/translate", "t")])
def test_a_header_has_the_names_of_special_tokens_in_an_input(server, path, name):
    for given in ("it <|endoftext|>", ["it", "is <|endoftext|>"]):
        answer = server.post(path, model=name, input=given)
        assert answer.status_code == 200 and answer.headers["x-foretell-special"] == "<|endoftext|>"
    assert "x-foretell-special" not in server.post(path, model=name, input="it is good").headers


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
    error = error_of(server.post(path, **body), 404)
    assert error["code"] == "model_not_found"
    assert body["model"] != "t" or error["message"] == "t answers only at /v1/translate"


@pytest.mark.parametrize("series", [[[1e308, -1e308, 1e308]], [SERIES, [None, -1e151]], [[1e308] * 3]])
def test_values_too_large_to_compute_with(server, series):
    error = server.refuse("/v1/forecast", model="f", series=series, horizon=3)
    assert error["param"] == "series"
    assert error["message"].endswith("is beyond 1e+150, too large to compute with; rescale it")
    assert "RuntimeWarning" not in server.logged()


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/translate", {"model": "t", "input": []}),
        ("/v1/translate", {"model": "t", "input": " "}),
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
    server.refuse(path, **body)


TASKS = {
    "/v1/translate": {"model": "t", "input": [f"a cat number {n}" for n in range(8)], "beam": 2},
    "/v1/forecast": {"model": "f", "series": [SERIES] * 2, "horizon": 50, "samples": 60},
    "/v1/predict": {"model": "c", "input": [f"text {n} is good" for n in range(32)]},
}


@pytest.mark.parametrize(("path", "body"), TASKS.items())
def test_a_text_grows_while_clients_ask_for_a_task(server, path, body):
    """Once it waited until no client asked any more."""
    alone = server.ask(path, **body)
    with ThreadPoolExecutor(4) as clients:
        answers = [clients.submit(server.ask, path, **body) for _ in range(12)]
        text = server.ask("/v1/completions", model="c", prompt="x", max_tokens=20, ignore_eos=True)
        num_waiting = sum(not answer.done() for answer in answers)
    assert text["usage"]["completion_tokens"] == 20
    assert num_waiting >= 4  # each client was being answered
    assert all(answer.result() == alone for answer in answers)
