"""Training a forecaster, forecasting and evaluating on the command line."""

from __future__ import annotations

import csv
import io
import json
import re
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
from foretell.session.commands import resume_command

ROWS = ["unique_id,ds,y", *(f"a,2024-01-{day:02},{day % 7 + 0.1 * day:.1f}" for day in range(1, 31))]
OPTIONS = "--size toy --steps 2 --horizon 3 --series.cycle 1 --out runs/d"
TRAIN = ["train", "--task", "forecast", "days.csv", *OPTIONS.split()]


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    """A folder with days.csv and the run runs/d, trained on it by the command."""
    folder = tmp_path_factory.mktemp("forecast")
    (folder / "days.csv").write_text("\n".join(ROWS) + "\n", encoding="utf-8")
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(folder)
        assert run(TRAIN) == 0
    return folder


def test_files_and_folders_are_trained_on_and_copied(foretell):
    for name in ("one/days.csv", "two/other.csv"):
        Path(name).parent.mkdir()
        Path(name).write_text("\n".join(ROWS) + "\n", encoding="utf-8")
    given = ["one", "two/other.csv", "--out", "runs/f"]
    foretell(*TRAIN[:3], *given, *TRAIN[4:-2]).succeeds()
    record = Path("runs/f/run.json").read_text()
    assert json.loads(record)["data"] == given[:2]
    Path("one/days.csv").unlink()
    kept = ForecastTraining(ForecastRequest(out=Path("runs/f"))).reopen(
        Run.open(Path("runs/f")), Run.open(Path("runs/f")).record()
    )
    assert [each.unique_id for each in kept] == ["days/a", "other/a"]
    outcome = foretell("forecast", "runs/f", "two", "--horizon", "1", "--samples", "2").succeeds()
    assert [line.split(",")[0] for line in outcome.out.splitlines()] == ["unique_id", "a"]


def test_training_says_what_was_chosen_and_what_to_do_next(foretell, here, tmp_path):
    captured = foretell(*TRAIN[:-1], str(tmp_path / "run")).succeeds()
    for words in ("1 of 30 values, steps of 1 day", "season      7: the usual one", "rounding alone costs 0.0"):
        assert words in captured.err
    assert "validation loss" in captured.out
    assert "foretell forecast" in captured.out


def test_a_run_is_resumed_by_the_command_that_an_interruption_prints(foretell, here):
    command = shlex.split(resume_command(Run(Path("runs/d"))).partition("foretell ")[2])
    assert command[:3] == ["train", "--task", "forecast"]
    assert "finished    runs/d has all its 2 steps" in foretell(*command).succeeds().err
    assert foretell("train", "--task", "forecast", "--out", "new").code == 2


def test_a_forecast_is_a_table_on_standard_output(foretell, here):
    outcome = foretell("forecast", "d", "days.csv", "--samples", "4", "--levels", "50").succeeds()
    header, *rows = csv.reader(outcome.out.splitlines())
    assert header == ["unique_id", "ds", "mean", "median", "lo-50", "hi-50"]
    assert [row[:2] for row in rows] == [["a", "2024-01-31"], ["a", "2024-02-01"], ["a", "2024-02-02"]]
    assert all(np.isfinite(float(cell)) for row in rows for cell in row[2:])


def test_a_forecast_reports_that_its_intervals_are_calibrated(foretell, here):
    captured = foretell("forecast", "d", "days.csv", "--samples", "4", "--levels", "33.5").succeeds()
    assert "intervals are calibrated on 1 held-out window of" in captured.err
    assert captured.out.splitlines()[0].endswith("lo-33.5,hi-33.5")
    captured = foretell("evaluate", "d", "days.csv", "--samples", "4").succeeds()
    assert "quantiles of the paths would contain" in " ".join(captured.out.split())
    assert "its blend with a naive forecast and its intervals" in " ".join(captured.out.split())


def test_a_name_with_a_comma_is_quoted_on_standard_output(foretell, here, tmp_path):
    rows = "\n".join(row.replace("a,", '"a,b",', 1) if row[0] == "a" else row for row in ROWS)
    (tmp_path / "named.csv").write_text(rows, encoding="utf-8")
    outcome = foretell("forecast", "d", str(tmp_path / "named.csv"), "--samples", "4", "--levels", "50").succeeds()
    _, *table = csv.reader(outcome.out.splitlines())
    assert {(row[0], len(row)) for row in table} == {("a,b", 6)}


def test_every_output_is_written(foretell, here, tmp_path):
    files = {"--out": "o.csv", "--paths": "p.csv", "--plot": "o.png", "--html": "o.html"}
    options = [word for option, name in files.items() for word in (option, str(tmp_path / name))]
    outcome = foretell("forecast", "d", "days.csv", "--samples", "2", *options).succeeds()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["o.csv", "o.html", "o.png", "p.csv"]
    assert outcome.out == ""


def test_a_hyphen_as_the_output_is_standard_output(foretell, here):
    command = ["forecast", "d", "days.csv", "--samples", "2"]
    shown = foretell(*command).succeeds().out
    assert shown.startswith("unique_id,ds,")
    assert foretell(*command, "--out", "-").succeeds().out == shown
    assert not Path("-").exists() and not Path("<stdin>").exists()


def test_notes_from_loading_a_forecaster_are_shown(foretell, here, monkeypatch):
    monkeypatch.setattr("foretell.loading.absurd_weights", lambda model: ["the weights are absurd"])
    lines = foretell("forecast", "d", "days.csv", "--samples", "2", "--quantize", "int8").succeeds().err.splitlines()
    assert lines[:2] == ["loading d", "the weights are absurd"]
    assert "float32, weights in int8 in groups of" in lines[2]


def test_a_run_remembers_how_its_file_writes_series(foretell):
    rows = ["area;day;price;size", *(f"7;{day:02}/01/2024;{day % 5},{day:03};1" for day in range(1, 31))]
    Path("first.csv").write_text("\n".join(rows), encoding="utf-8")
    options = ["--id-column", "area", "--target-column", "price", "--decimal", ","]
    command = ["train", "--task", "forecast", "first.csv", *TRAIN[4:-1], "run", *options]
    outcome = foretell(*command).succeeds()
    assert "layout      long: area, day, price; 1 series, 1 day apart; dates as %d/%m/%Y" in outcome.err
    Path("second.csv").write_text("\n".join(rows[:13]), encoding="utf-8")  # up to 12/01/2024
    captured = foretell("forecast", "run", "second.csv", "--samples", "2").succeeds()
    row = captured.out.splitlines()[1]
    assert re.fullmatch(r"7;13/01/2024(;\d+(,\d+)?)+", row) and "," in row
    assert "left out: size" in captured.err
    outcome = foretell("evaluate", "run", "second.csv", "--samples", "2", "--date-format", "%m/%d/%Y").succeeds()
    assert "1 series, 1 month apart; dates as %m/%d/%Y" in outcome.err
    foretell(*command, "--resume", "auto").succeeds()


def test_the_first_clipped_value_is_named(foretell, here, tmp_path):
    path = tmp_path / "spike.csv"
    path.write_text("y\n" + "".join(f"{1e6 if index == 300 else index % 7}\n" for index in range(400)))
    outcome = foretell("forecast", "almanac", path, "--samples", "2", "--horizon", "1").succeeds()
    assert (
        "standard deviations out, read as if nearer, in 1 of 1 series; the first is 1e+06 of 'y' at 301" in outcome.err
    )


def test_json_is_one_object_per_series(foretell, here):
    made = foretell("forecast", "d", "days.csv", "--samples", "2", "--json", "--series", "a").succeeds().json
    assert list(made) == ["unique_id", "ds", "mean", "median", "intervals"]
    assert list(made["intervals"]) == ["80", "95"]


def test_a_long_horizon_rolls_aloud(foretell, here):
    captured = foretell("forecast", "d", "days.csv", "--samples", "2", "--horizon", "40").succeeds()
    assert "last half is read again" in " ".join(captured.err.split())
    assert len(captured.out.splitlines()) == 41


def test_evaluate_shows_the_model_next_to_the_naive_forecast(foretell, here, monkeypatch):
    monkeypatch.setattr("foretell.forecasting.metrics.has_peer", lambda: False)  # its error of 1e-15 is a wide cell
    options = ["--samples", "4", "--windows", "2", "--stride", "2", "--contexts", "7"]
    captured = foretell("evaluate", "d", "days.csv", *options).succeeds()
    names = [line[:14].strip() for line in captured.out.splitlines()]
    assert names[2:5] == ["model", "seasonal naive", "naive"]
    assert "context 7" in names
    assert captured.out.splitlines()[0].split()[:6] == ["MASE", "median", "sMAPE", "WQL", "MAE", "RMSE"]
    assert "2 origins in 1 series, stride 2" in " ".join(captured.out.split())
    assert "of the values trained this model" in " ".join(captured.out.split())
    assert all(len(line) < 80 for line in captured.out.splitlines()[:4])


def test_evaluate_names_series_without_an_origin_and_writes_like_the_file(foretell, here, tmp_path):
    rows = [
        "unique_id;ds;y",
        *(f"{name};2024-01-{day:02};{day % 7},5" for name, last in (("a", 30), ("b", 2)) for day in range(1, last + 1)),
    ]
    (two := tmp_path / "two.csv").write_text("\n".join(rows) + "\n", encoding="utf-8")
    out = tmp_path / "out.csv"
    captured = foretell("evaluate", "d", str(two), "--samples", "2", "--out", str(out)).succeeds()
    assert "1 origin in 1 series, stride 3" in " ".join(captured.out.split())
    assert "left out, because they are too short: b" in captured.err
    header, row = csv.reader(out.read_text("utf-8").splitlines(), delimiter=";")
    assert len(header) == len(row) > 5
    assert "," in "".join(row)
    assert "." not in "".join(row)


def test_evaluate_states_what_was_held_out_and_how_many_origins_fit(foretell):
    days = np.datetime64("2024-01-01") + np.arange(62)
    Path("days.csv").write_text("\n".join(["ds,y", *(f"{day},{n % 7}" for n, day in enumerate(days))]), "utf-8")

    def told(name: str, windows: int) -> tuple[str, str]:
        outcome = foretell("evaluate", name, "days.csv", "--samples", "2", "--windows", str(windows)).succeeds()
        return " ".join(outcome.out.split()), " ".join(outcome.err.split())

    for command in (TRAIN, [*TRAIN[:-1], "runs/all", "--no-hold-out"]):  # two windows of 3 values, and none
        foretell(*command).succeeds()
    assert "already used: 100% of the values chose its checkpoint" in told("runs/d", 2)[0]
    shown, notes = told("runs/d", 30)
    assert "90% of the values trained this model and 10% of the values chose its checkpoint" in shown
    assert "only 20 of 30 origins have values before them and 3 to forecast after them" in notes
    shown, notes = told("runs/all", 1)
    assert "already used: 100% of the values trained this model, so" in shown
    assert "origins have" not in notes


def test_evaluate_writes_a_row_for_each_series(foretell, here, tmp_path, monkeypatch):
    monkeypatch.setattr("foretell.forecasting.metrics.has_peer", lambda: False)
    command = ["evaluate", "d", "days.csv", "--samples", "2", "--per-series"]
    captured = foretell(*command, "--out", str(tmp_path / "series.csv")).succeeds()
    assert "AutoETS is not compared; it needs a package: pip install 'foretell[forecast]'" in captured.err
    assert captured.out.splitlines()[-1].split()[0] == "a"
    header, row = csv.reader((tmp_path / "series.csv").read_text().splitlines())
    assert (header[0], header[6:8], row[0]) == ("unique_id", ["mae", "rmse"], "a")
    made = foretell(*command, "--json").succeeds().json
    assert made["by_series"]["a"]["model"]["mae"] == made["model"]["mae"]


def test_evaluate_measures_what_follows_in_another_file(foretell, here, tmp_path):
    (tmp_path / "next.csv").write_text("unique_id,ds,y\na,2024-01-31,6\na,2024-02-01,7\n", encoding="utf-8")
    options = ["--test", tmp_path / "next.csv", "--samples", "4", "--json"]
    made = foretell("evaluate", "d", "days.csv", *options).succeeds().json
    assert (made["horizon"], made["season"], made["origins"]) == (2, 7, 1)
    assert set(made["model"]["coverage"]) == {"80", "95"}
    assert "coverage" not in made["seasonal_naive"]


def test_standard_input_is_a_table(foretell, here, monkeypatch):
    content = (here / "days.csv").read_bytes()
    for command in (["forecast", "d", "-", "--samples", "2"], ["evaluate", "d", "-", "--samples", "2"]):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(content)))
        foretell(*command).succeeds()


def test_runs_lists_forecasters_next_to_other_runs(foretell, here):
    (listed,) = foretell("runs", "--json").succeeds().json["runs"]
    assert (listed["name"], listed["state"], listed["steps"]) == ("d", "done", 2)
    foretell("runs", "d", "d").succeeds()


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
def test_a_mistake_is_one_line(foretell, command, code, words, here):
    outcome = foretell(*command).fails(code, words)
    assert [line for line in outcome.err.splitlines() if line.startswith("foretell: ")] == [outcome.last_line]
    assert sorted(path.name for path in here.iterdir()) == ["days.csv", "runs"]


def test_a_minimum_is_reported_and_can_be_changed(foretell, here):
    command = ["forecast", "runs/d", "days.csv", "--horizon", "2", "--samples", "3"]
    captured = foretell(*command).succeeds()
    assert "minimum 0 for 1 of 1 series, which were never negative" in " ".join(captured.err.split())
    captured = foretell(*command, "--minimum", "1e6").succeeds()
    assert "never negative" not in captured.err
    assert all(float(row["median"]) == 1e6 for row in csv.DictReader(captured.out.splitlines()))


@pytest.mark.parametrize("text", ["low", "1,2", "nan"])
def test_a_minimum_that_is_no_number_is_refused(foretell, text, here):
    foretell("forecast", "runs/d", "days.csv", "--minimum", text).fails(2, f"--minimum '{text}' is not")


def test_explain_shows_the_spans_that_moved_a_forecast(foretell, here):
    found = foretell("explain", "d", "days.csv", "--spans", "3", "--json").succeeds().json
    assert (found["unique_id"], found["ds"], len(found["spans"])) == ("a", "2024-01-31", 3)
    assert all(span["effect"] == found["forecast"] - span["without"] for span in found["spans"])
    assert "a: expected value of 2024-01-31" in foretell("explain", "d", "days.csv", "--context", "8").succeeds().out


def test_explain_answers_the_other_questions_about_the_context(foretell, here):
    outcome = foretell("explain", "d", "days.csv", "--context", "5", "--heads", "--json").succeeds()
    assert len(outcome.json["tokens"]) == 5
    assert foretell("explain", "d", "days.csv", "--layer", "1").code == 2


def test_a_trace_of_a_forecaster_reads_values(foretell, here, tmp_path):
    options = ["--context", "5", "--select", "head", "--out", tmp_path / "x.st", "--json"]
    found = foretell("trace", "d", "days.csv", *options).succeeds().json
    forecaster = as_forecaster(load("runs/d"))
    (series,) = read_series(Path("days.csv"))
    assert found["ids"] == forecaster.prompt(series.values, 5).ids
    assert found["values"][0]["shape"][:2] == [1, len(found["ids"])]
    assert foretell("trace", "d", "--list", "--select", "head").succeeds().out == "head\n"
    foretell("trace", "d", "days.csv", "--list").fails(2, "give DATA and --out FILE")
    foretell("trace", "d", "nothing.csv", "--out", str(tmp_path / "y.st")).fails(1, "nothing.csv")
    assert [path.name for path in tmp_path.iterdir()] == ["x.st"]
