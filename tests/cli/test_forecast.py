"""Training a forecaster, forecasting and evaluating on the command line."""

from __future__ import annotations

import csv
import io
import json
import shlex
from pathlib import Path

import numpy as np
import pytest

from foretell.cli.main import run
from foretell.forecasting.forecaster import as_forecaster
from foretell.forecasting.series_file import read_series
from foretell.forecasting.train import ForecastRequest, ForecastTraining
from foretell.loading import load
from foretell.runs.run import Run
from foretell.session.failures import resume_command

ROWS = ["unique_id,ds,y", *(f"a,2024-01-{day:02},{day % 7 + 0.1 * day:.1f}" for day in range(1, 31))]
TRAIN = [
    "train",
    "--task",
    "forecast",
    "days.csv",
    "--size",
    "toy",
    "--steps",
    "2",
    "--horizon",
    "3",
    "--series.cycle",
    "1",
    "--out",
    "runs/d",
]


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    """A folder with days.csv and the run runs/d, trained on it by the command."""
    folder = tmp_path_factory.mktemp("forecast")
    (folder / "days.csv").write_text("\n".join(ROWS) + "\n", encoding="utf-8")
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(folder)
        assert run(TRAIN) == 0
    return folder


@pytest.fixture
def here(directory, monkeypatch):
    monkeypatch.chdir(directory)
    return directory


def test_files_and_folders_are_trained_on_and_copied(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    for name in ("one/days.csv", "two/other.csv"):
        Path(name).parent.mkdir()
        Path(name).write_text("\n".join(ROWS) + "\n", encoding="utf-8")
    given = ["one", "two/other.csv", "--out", "runs/f"]
    assert run([*TRAIN[:3], *given, *TRAIN[4:-2]]) == 0
    record = Path("runs/f/run.json").read_text()
    assert json.loads(record)["data"] == given[:2]
    Path("one/days.csv").unlink()
    kept = ForecastTraining(ForecastRequest(out=Path("runs/f"))).reopen(Run.open(Path("runs/f")), json.loads(record))
    assert [each.unique_id for each in kept] == ["days/a", "other/a"]
    capfd.readouterr()
    assert run(["forecast", "runs/f", "two", "--horizon", "1", "--samples", "2"]) == 0
    assert [line.split(",")[0] for line in capfd.readouterr().out.splitlines()] == ["unique_id", "a"]


def test_training_says_what_was_chosen_and_what_to_do_next(here, tmp_path, capfd):
    assert run([*TRAIN[:-1], str(tmp_path / "run")]) == 0
    captured = capfd.readouterr()
    for words in ("1 of 30 values, steps of 1 day", "season      7: the usual one", "rounding alone costs 0.0"):
        assert words in captured.err
    assert "validation loss" in captured.out
    assert "foretell forecast" in captured.out


def test_a_run_is_resumed_by_the_command_that_an_interruption_prints(here, capfd):
    command = shlex.split(resume_command(Run(Path("runs/d"))).partition("foretell ")[2])
    assert command[:3] == ["train", "--task", "forecast"]
    assert run(command) == 0
    assert "finished    runs/d has all its 2 steps" in capfd.readouterr().err
    assert run(["train", "--task", "forecast", "--out", "new"]) == 2


def test_a_forecast_is_a_table_on_standard_output(here, capfd):
    assert run(["forecast", "d", "days.csv", "--samples", "4", "--levels", "50"]) == 0
    header, *rows = csv.reader(capfd.readouterr().out.splitlines())
    assert header == ["unique_id", "ds", "mean", "median", "lo-50", "hi-50"]
    assert [row[:2] for row in rows] == [["a", "2024-01-31"], ["a", "2024-02-01"], ["a", "2024-02-02"]]
    assert all(np.isfinite(float(cell)) for row in rows for cell in row[2:])


def test_a_forecast_reports_that_its_intervals_are_calibrated(here, capfd):
    assert run(["forecast", "d", "days.csv", "--samples", "4", "--levels", "33.5"]) == 0
    captured = capfd.readouterr()
    assert "intervals are calibrated on 1 held-out windows" in captured.err
    assert captured.out.splitlines()[0].endswith("lo-33.5,hi-33.5")
    assert run(["evaluate", "d", "days.csv", "--samples", "4"]) == 0
    captured = capfd.readouterr()
    assert "quantiles of the paths would contain" in " ".join(captured.out.split())
    assert "measure their coverage on other data" in " ".join(captured.err.split())


def test_a_name_with_a_comma_is_quoted_on_standard_output(here, tmp_path, capfd):
    rows = "\n".join(row.replace("a,", '"a,b",', 1) if row[0] == "a" else row for row in ROWS)
    (tmp_path / "named.csv").write_text(rows, encoding="utf-8")
    assert run(["forecast", "d", str(tmp_path / "named.csv"), "--samples", "4", "--levels", "50"]) == 0
    _, *table = csv.reader(capfd.readouterr().out.splitlines())
    assert {(row[0], len(row)) for row in table} == {("a,b", 6)}


def test_every_output_is_written(here, tmp_path, capfd):
    files = {"--out": "o.csv", "--paths": "p.csv", "--plot": "o.png", "--html": "o.html"}
    options = [word for option, name in files.items() for word in (option, str(tmp_path / name))]
    assert run(["forecast", "d", "days.csv", "--samples", "2", *options]) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["o.csv", "o.html", "o.png", "p.csv"]
    assert capfd.readouterr().out == ""


def test_a_hyphen_as_the_output_is_standard_output(here, tmp_path, capfd):
    command = ["forecast", "d", "days.csv", "--samples", "2"]
    assert run(command) == run([*command, "--out", "-"]) == 0
    shown = capfd.readouterr().out.splitlines()
    assert shown[0].startswith("unique_id,ds,")
    assert shown[: len(shown) // 2] == shown[len(shown) // 2 :]
    assert not Path("-").exists() and not Path("<stdin>").exists()


def test_notes_from_loading_a_forecaster_are_shown(here, monkeypatch, capfd):
    monkeypatch.setattr("foretell.loading.absurd_weights", lambda model: ["the weights are absurd"])
    assert run(["forecast", "d", "days.csv", "--samples", "2", "--quantize", "int8"]) == 0
    lines = capfd.readouterr().err.splitlines()
    assert lines[:2] == ["loading d", "the weights are absurd"]
    assert "float32, weights in int8 in groups of" in lines[2]


def test_a_run_remembers_how_its_file_writes_series(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    rows = ["area;day;price;size", *(f"7;{day:02}/01/2024;{day % 5},{day:03};1" for day in range(1, 31))]
    Path("first.csv").write_text("\n".join(rows), encoding="utf-8")
    options = ["--id-column", "area", "--target-column", "price", "--decimal", ","]
    command = ["train", "--task", "forecast", "first.csv", *TRAIN[4:-1], "run", *options]
    assert run(command) == 0
    assert "layout      long: area, day, price; 1 series, 1 day apart; dates as %d/%m/%Y" in capfd.readouterr().err
    Path("second.csv").write_text("\n".join(rows[:13]), encoding="utf-8")  # up to 12/01/2024
    assert run(["forecast", "run", "second.csv", "--samples", "2"]) == 0
    captured = capfd.readouterr()
    assert captured.out.splitlines()[1].startswith("7,13/01/2024,")
    assert "left out: size" in captured.err
    assert run(["evaluate", "run", "second.csv", "--samples", "2", "--date-format", "%m/%d/%Y"]) == 0
    assert "1 series, 1 month apart; dates as %m/%d/%Y" in capfd.readouterr().err
    assert run([*command, "--resume", "auto"]) == 0


def test_json_is_one_object_per_series(here, capfd):
    assert run(["forecast", "d", "days.csv", "--samples", "2", "--json", "--series", "a"]) == 0
    made = json.loads(capfd.readouterr().out)
    assert list(made) == ["unique_id", "ds", "mean", "median", "intervals"]
    assert list(made["intervals"]) == ["80", "95"]


def test_a_long_horizon_rolls_aloud(here, capfd):
    assert run(["forecast", "d", "days.csv", "--samples", "2", "--horizon", "40"]) == 0
    captured = capfd.readouterr()
    assert "last half is read again" in " ".join(captured.err.split())
    assert len(captured.out.splitlines()) == 41


def test_evaluate_shows_the_model_next_to_the_naive_forecast(here, capfd, monkeypatch):
    monkeypatch.setattr("foretell.forecasting.metrics.has_peer", lambda: False)  # its error of 1e-15 is a wide cell
    assert (
        run(["evaluate", "d", "days.csv", "--samples", "4", "--windows", "2", "--stride", "2", "--contexts", "7"]) == 0
    )
    captured = capfd.readouterr()
    names = [line[:14].strip() for line in captured.out.splitlines()]
    assert names[2:5] == ["model", "seasonal naive", "naive"]
    assert "context 7" in names
    assert captured.out.splitlines()[0].split()[:6] == ["MASE", "median", "sMAPE", "WQL", "MAE", "RMSE"]
    assert "2 origins in 1 series, stride 2" in " ".join(captured.out.split())
    assert "was trained on some of the values that it forecasts" in " ".join(captured.err.split())
    assert all(len(line) < 80 for line in captured.out.splitlines()[:4])


def test_evaluate_knows_what_was_held_out_and_says_how_many_origins_fit(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    days = np.datetime64("2024-01-01") + np.arange(62)
    Path("days.csv").write_text("\n".join(["ds,y", *(f"{day},{n % 7}" for n, day in enumerate(days))]), "utf-8")

    def notes_of(name: str, windows: int) -> str:
        assert run(["evaluate", name, "days.csv", "--samples", "2", "--windows", str(windows)]) == 0
        return " ".join(capfd.readouterr().err.split())

    assert run(TRAIN) == run([*TRAIN[:-1], "runs/all", "--no-hold-out"]) == 0  # two windows of 3 values, and none
    assert "was trained on some" not in notes_of("runs/d", 2)
    assert "held out the last 6 values of series 'y': if this is" in (all_that_fit := notes_of("runs/d", 30))
    assert "only 20 of 30 origins have values before them and 3 to forecast after them" in all_that_fit
    assert "held out the last 0 values" in (first := notes_of("runs/all", 1))
    assert "origins have" not in first


def test_evaluate_writes_a_row_for_each_series(here, tmp_path, monkeypatch, capfd):
    monkeypatch.setattr("foretell.forecasting.metrics.has_peer", lambda: False)
    command = ["evaluate", "d", "days.csv", "--samples", "2", "--per-series"]
    assert run([*command, "--out", str(tmp_path / "series.csv")]) == 0
    captured = capfd.readouterr()
    assert "AutoETS is not compared; it needs a package: pip install 'foretell[forecast]'" in captured.err
    assert captured.out.splitlines()[-1].split()[0] == "a"
    header, row = csv.reader((tmp_path / "series.csv").read_text().splitlines())
    assert (header[0], header[6:8], row[0]) == ("unique_id", ["mae", "rmse"], "a")
    assert run([*command, "--json"]) == 0
    made = json.loads(capfd.readouterr().out)
    assert made["by_series"]["a"]["model"]["mae"] == made["model"]["mae"]


def test_evaluate_measures_what_follows_in_another_file(here, tmp_path, capfd):
    (tmp_path / "next.csv").write_text("unique_id,ds,y\na,2024-01-31,6\na,2024-02-01,7\n", encoding="utf-8")
    assert run(["evaluate", "d", "days.csv", "--test", str(tmp_path / "next.csv"), "--samples", "4", "--json"]) == 0
    made = json.loads(capfd.readouterr().out)
    assert (made["horizon"], made["season"], made["origins"]) == (2, 7, 1)
    assert set(made["model"]["coverage"]) == {"80", "95"}
    assert "coverage" not in made["seasonal_naive"]


def test_standard_input_is_a_table(here, capfd, monkeypatch):
    content = (here / "days.csv").read_bytes()
    for command in (["forecast", "d", "-", "--samples", "2"], ["evaluate", "d", "-", "--samples", "2"]):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(content)))
        assert run(command) == 0, capfd.readouterr().err


def test_runs_lists_forecasters_next_to_other_runs(here, capfd):
    assert run(["runs", "--json"]) == 0
    (listed,) = json.loads(capfd.readouterr().out)["runs"]
    assert (listed["name"], listed["state"], listed["steps"]) == ("d", "done", 2)
    assert run(["runs", "d", "d"]) == 0


REFUSED = {
    "another kind of model": (["forecast", "primer", "days.csv"], 1, "not trained on series"),
    "no file": (["forecast", "d", "day.csv"], 1, "did you mean 'days.csv'"),
    "a date format without a code": (["forecast", "d", "days.csv", "--date-format", "day"], 2, "--date-format 'day'"),
    "a decimal mark": (["forecast", "d", "days.csv", "--decimal", ";"], 2, "--decimal"),
    "no such series": (["forecast", "d", "days.csv", "--series", "b"], 1, "no series 'b'; there is a"),
    "horizon": (["forecast", "d", "days.csv", "--horizon", "0"], 2, "0 is less than 1"),
    "endless horizon": (["forecast", "d", "days.csv", "--horizon", "100000000000"], 2, "from 1 to 100,000"),
    "endless samples": (["forecast", "d", "days.csv", "--samples", "1000000000"], 2, "samples from 1 to 10,000"),
    "samples": (["forecast", "d", "days.csv", "--samples", "0"], 2, "0 is less than 1"),
    "long season": (["forecast", "d", "days.csv", "--season", "999"], 2, "the length of the longest series, not 999"),
    "no season": (["forecast", "d", "days.csv", "--season", "0"], 2, "0 is less than 1"),
    "levels": (["forecast", "d", "days.csv", "--levels", "80,x"], 2, "--levels '80,x'"),
    "level": (["forecast", "d", "days.csv", "--levels", "100"], 2, "between 0 and 100"),
    "json and out": (["forecast", "d", "days.csv", "--json", "--out", "x.csv"], 2, "--json"),
    "no folder": (["forecast", "d", "days.csv", "--out", "none/x.csv"], 1, "no folder"),
    "test and stride": (["evaluate", "d", "days.csv", "--test", "days.csv", "--stride", "2"], 2, "--test"),
    "contexts": (["evaluate", "d", "days.csv", "--contexts", "a"], 2, "--contexts 'a'"),
    "season": (["evaluate", "d", "days.csv", "--season", "0"], 2, "--season"),
    "long horizon": (["evaluate", "d", "days.csv", "--horizon", "30"], 1, "horizon of 30"),
    "unknown option of the task": (["train", "--task", "forecast", "days.csv", "--kind", "bpe"], 2, "--kind"),
    "unknown size": ([*TRAIN[:4], "--size", "huge", "--out", "x"], 2, "huge"),
}


@pytest.mark.parametrize(("command", "code", "words"), REFUSED.values(), ids=REFUSED)
def test_a_mistake_is_one_line(command, code, words, here, capfd):
    assert run(command) == code
    lines = [line for line in capfd.readouterr().err.splitlines() if line.startswith("foretell: ")]
    assert len(lines) == 1
    assert words in lines[0]
    assert sorted(path.name for path in here.iterdir()) == ["days.csv", "runs"]


def test_a_minimum_is_reported_and_can_be_changed(here, capfd):
    command = ["forecast", "runs/d", "days.csv", "--horizon", "2", "--samples", "3"]
    assert run(command) == 0
    captured = capfd.readouterr()
    assert "minimum 0 for 1 of 1 series, which were never negative" in " ".join(captured.err.split())
    assert run([*command, "--minimum", "1e6"]) == 0
    captured = capfd.readouterr()
    assert "never negative" not in captured.err
    assert all(float(row["median"]) == 1e6 for row in csv.DictReader(captured.out.splitlines()))


@pytest.mark.parametrize("text", ["low", "1,2", "nan"])
def test_a_minimum_that_is_no_number_is_refused(text, here, capfd):
    assert run(["forecast", "runs/d", "days.csv", "--minimum", text]) != 0
    assert f"--minimum '{text}' is not" in capfd.readouterr().err


def test_explain_shows_the_spans_that_moved_a_forecast(here, capfd):
    assert run(["explain", "d", "days.csv", "--spans", "3", "--json"]) == 0
    found = json.loads(capfd.readouterr().out)
    assert (found["unique_id"], found["ds"], len(found["spans"])) == ("a", "2024-01-31", 3)
    assert found["effects"]["empty"] + sum(span["effect"] for span in found["spans"]) == pytest.approx(
        found["forecast"]
    )
    assert run(["explain", "d", "days.csv", "--context", "8"]) == 0
    assert "a: expected value of 2024-01-31" in capfd.readouterr().out


def test_explain_answers_the_other_questions_about_the_context(here, capfd):
    assert run(["explain", "d", "days.csv", "--context", "5", "--heads", "--json"]) == 0
    assert len(json.loads(capfd.readouterr().out)["tokens"]) == 5
    assert run(["explain", "d", "days.csv", "--layer", "1"]) == 2


def test_a_trace_of_a_forecaster_reads_values(here, tmp_path, capfd):
    command = [
        "trace",
        "d",
        "days.csv",
        "--context",
        "5",
        "--select",
        "head",
        "--out",
        str(tmp_path / "x.st"),
        "--json",
    ]
    assert run(command) == 0
    found = json.loads(capfd.readouterr().out)
    forecaster = as_forecaster(load("runs/d"))
    (series,) = read_series(Path("days.csv"))
    assert found["ids"] == forecaster.prompt(series.values, 5).ids
    assert found["values"][0]["shape"][:2] == [1, len(found["ids"])]
    assert run(["trace", "d", "--list", "--select", "head"]) == 0
    assert capfd.readouterr().out == "head\n"
    assert run(["trace", "d", "days.csv", "--list"]) == 2
    assert "give DATA and --out FILE" in capfd.readouterr().err
    assert run(["trace", "d", "nothing.csv", "--out", str(tmp_path / "y.st")]) == 1
    assert "nothing.csv" in capfd.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["x.st"]
