"""`foretell runs`: lists, curves in one plot, and the settings that differ."""

from __future__ import annotations

import importlib.util
import io
import json
import math
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from foretell.runs.lock import held
from foretell.runs.record import RunRecord, read_record, write_record
from foretell.runs.run import Run
from foretell.runs.summary import RunTable, Summary, values_by_path
from foretell.session import plots

QUICK = ["--size", "toy", "--model.width", "16", "--model.context-length", "32", "--training.batch-size", "4"]
QUICK += ["--kind", "bytes", "--steps", "3", "--training.evaluate-every", "1"]


@pytest.fixture(scope="module")
def two(corpus, tmp_path_factory) -> Path:
    """A folder with two runs that differ in one setting."""
    from foretell.cli.main import run

    folder = tmp_path_factory.mktemp("two") / "runs"
    for name, optimizer in (("first", "adamw"), ("second", "muon")):
        alike = ["--training.learning-rate", "1e-3", "--training.schedule", "cosine"]
        options = [*QUICK, *alike, "--training.optimizer", optimizer, "--out", str(folder / name)]
        assert run(["train", str(corpus), *options]) == 0
    return folder


@pytest.fixture
def here(two, foretell, tmp_path) -> Path:
    """The two as ./runs."""
    shutil.copytree(two, tmp_path / "runs")
    return tmp_path / "runs"


def rewrite(run: Path, record: dict[str, Any]) -> None:
    """Store a changed record as the program does."""
    values = {key: value for key, value in record.items() if key not in ("format", "sha256")}
    Run(run).replace_record(RunRecord.from_json(values))


def test_all_runs_here_are_listed_in_eighty_columns(foretell, here):
    outcome = foretell("runs").succeeds()
    header, _, first, second = outcome.out.splitlines()
    assert header.split() == ["run", "size", "weights", "steps", "tokens", "loss", "bits", "state", "changed"]
    assert first.split()[:2] == ["first", "toy"]
    assert second.split()[0] == "second"
    assert "done" in first
    assert all(len(line) <= 80 for line in outcome.out.splitlines())


def test_the_list_imports_no_heavy_modules_and_no_options_of_other_verbs(here):
    code = (
        "import sys\n"
        "from foretell.cli.main import run\n"
        "assert run(['runs']) == 0\n"
        "print([name for name in ('torch', 'numpy', 'matplotlib', 'foretell.cli.sampling') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=here.parent, check=True, capture_output=True, text=True)
    assert len(done.stdout.splitlines()) == 5
    assert done.stdout.splitlines()[-1] == "[]"


def test_the_list_agrees_with_the_metrics_of_the_run(foretell, here):
    listed = {listed["name"]: listed for listed in foretell("runs", "--json").json["runs"]}
    assert list(listed) == ["first", "second"]
    lines = [json.loads(line) for line in (here / "first" / "metrics.jsonl").read_text().splitlines()]
    best = min(line["validation_loss"] for line in lines)
    expected = {"size": "toy", "step": 3, "steps": 3, "tokens": 3 * 4 * 32, "state": "done"}
    assert listed["first"] == listed["first"] | expected | {"best_validation_loss": best}
    assert listed["first"]["parameters"] == foretell("info", "first", "--json").json["parameters"]


def test_runs_are_compared_by_curves_and_settings(foretell, here):
    outcome = foretell("runs", "first", here / "second").succeeds()
    assert "validation loss" in outcome.out
    assert [line.split() for line in outcome.out.splitlines() if line.startswith(("what", "training."))] == [
        ["what", "differs", "●", "○"],
        ["training.optimizer", "adamw", "muon"],
    ]
    assert all(len(line) <= 80 for line in outcome.out.splitlines())
    assert "\x1b" not in outcome.out
    told = foretell("runs", "first", "second", "--json").json
    assert told["differences"] == {"training.optimizer": ["adamw", "muon"]}


def test_losses_with_unequal_tokens_are_not_compared(foretell, here, corpus):
    assert "cannot be compared" not in foretell("runs", "first", "second").out
    other = ["characters" if option == "bytes" else option for option in QUICK]
    assert foretell("train", corpus, *other, "--out", "runs/third").code == 0
    outcome = foretell("runs", "first", "third")
    assert "these losses cannot be compared" in outcome.out and "do not compare" not in outcome.out
    assert outcome.out.count("validation loss, in nats per token") == 2  # each on its own axis


def test_a_run_does_not_differ_from_itself(foretell, here):
    assert "all settings are the same" in foretell("runs", "first", "first").out


def test_one_run_is_shown_with_its_curve(foretell, here):
    outcome = foretell("runs", "first").succeeds()
    assert "●" in outcome.out
    assert "differs" not in outcome.out


def test_another_folder_of_runs_can_be_listed(foretell, here):
    here.rename("elsewhere")
    for name in ("first-2", "first-10"):
        shutil.copytree("elsewhere/first", f"elsewhere/{name}")
    names = [listed["name"] for listed in foretell("runs", "elsewhere", "--json").json["runs"]]
    assert names == ["first", "first-2", "first-10", "second"]


def test_the_picture_is_a_png(foretell, here, pictures):
    assert foretell("runs", "first", "second", "--png", "both.png").code == 0
    assert Path("both.png").read_bytes().startswith(b"\x89PNG")


def test_a_picture_of_many_runs_has_the_last_eight(foretell, here, monkeypatch):
    for number in range(8):
        shutil.copytree(here / "second", here / f"copy-{number}")
    os.utime(here / "second" / "run.json", (2e9, 2e9))
    drawn: list[str] = []
    monkeypatch.setattr(plots, "write_png", lambda path, runs, *_: drawn.extend(name for name, _ in runs))
    outcome = foretell("runs", "--png", "all.png").succeeds()
    assert "the 8 of 10 runs that changed last" in outcome.err
    assert len(drawn) == len(plots.MARKS)
    assert "runs/second" in drawn


def test_a_picture_that_is_not_called_a_png_is_refused(foretell, here):
    foretell("runs", "first", "--png", "both.svg").fails(2, "both.svg: pictures are PNG; give a name that ends in .png")


def test_without_matplotlib_a_picture_is_refused_with_the_package_to_install(foretell, here, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    foretell("runs", "first", "second", "--png", "both.png").refuses(2, "pip install 'foretell[plot]'")


def test_a_damaged_run_is_named_and_the_others_are_listed(foretell, here):
    (here / "first" / "run.json").write_text("{")
    outcome = foretell("runs", "--json").succeeds()
    assert [listed["name"] for listed in outcome.json["runs"]] == ["second"]
    assert "left out: runs/first/run.json is not readable JSON" in outcome.err


def test_a_run_with_steps_left_is_unfinished(foretell, here):
    record = json.loads((here / "first" / "run.json").read_text())
    record["config"]["training"]["steps"] = 30
    rewrite(here / "first", record)
    assert [listed["state"] for listed in foretell("runs", "--json").json["runs"]] == ["unfinished", "done"]
    assert "3/30" in foretell("runs").out


def test_a_run_out_of_patience_stopped_early(foretell, corpus):
    options = ["--steps", "40", "--training.patience", "1", "--training.learning-rate", "3", "--out", "runs/x"]
    foretell("train", corpus, *QUICK[:-4], *options, "--training.warmup-steps", "0", "--training.evaluate-every", "1")
    assert [listed["state"] for listed in foretell("runs", "--json").json["runs"]] == ["stopped early"]


def test_a_run_of_an_older_version_is_listed_and_compared(foretell, here):
    """Settings that its record lacks have their defaults."""
    record = read_record(here / "first")
    for key in ("optimizer", "weight_decay_by_path", "momentum", "label_smoothing", "patience", "sample_prompts"):
        del record.section("training")[key]
    write_record(here / "first", record)
    told = foretell("runs", "first", "second", "--json").json
    assert told["differences"] == {"training.optimizer": ["adamw", "muon"]}
    assert foretell("train", "--out", "runs/first", "--resume", "auto").code == 0


def test_without_runs_the_list_is_empty(foretell):
    outcome = foretell("runs")
    assert (outcome.code, outcome.out) == (0, "")
    assert "foretell train DATA makes one" in outcome.err
    assert foretell("runs", "--json").json == {"runs": [], "differences": {}}


@pytest.mark.parametrize(("length", "num_lines"), [(12, 1), (40, 1), (68, 2), (150, 4)])
def test_a_long_name_stays_whole_and_other_columns_are_left_out(foretell, here, length, num_lines):
    name = "xy" * (length // 2)
    (here / "first").rename(here / name)
    outcome = foretell("runs", name, "second")
    lines = outcome.out.splitlines()
    cells = [line.split()[: 2 - bool(index)][-1] for index, line in enumerate(lines[2 : 2 + num_lines])]
    assert ("".join(cells), len(lines[0].split()) < 9) == (name, length > 12)
    assert [column for column in lines[0].split() if column not in ("weights", "tokens", "changed")] == [
        *("run", "size", "steps", "loss", "bits", "state")
    ]
    assert lines[2].split()[2] == "toy" and lines[2 + num_lines].split()[1] == "second"
    assert all(len(line) <= 80 for line in lines)


def answer(monkeypatch, text: str) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(text))


def test_a_question_without_an_answer_is_a_failure(foretell, here, monkeypatch):
    answer(monkeypatch, "")
    foretell("runs", "--delete", "first").fails(1, "no answer on standard input; nothing more is deleted")
    assert (here / "first" / "run.json").exists()


@pytest.mark.parametrize("text", ["\n", "n\n", "yess\n"])
def test_a_run_is_kept_without_a_yes(foretell, here, monkeypatch, text):
    answer(monkeypatch, text)
    outcome = foretell("runs", "--delete", "first").succeeds()
    assert "delete runs/first with all its checkpoints" in outcome.err
    assert "kept        runs/first" in outcome.err
    assert (here / "first" / "run.json").exists()


def test_runs_are_deleted_after_a_yes_to_each(foretell, here, monkeypatch):
    answer(monkeypatch, "y\nno\n")
    outcome = foretell("runs", "--delete", "first", "second").succeeds()
    assert "deleted     runs/first" in outcome.err
    assert [path.name for path in here.iterdir()] == ["second"]


def test_only_what_training_writes_is_deleted(foretell, here, monkeypatch):
    files = ["notes.txt", "samples/mine.txt", "samples/step-notes.txt", "checkpoints/step-notes.md", "tokens/mine.txt"]
    checkpoint = next((here / "first" / "checkpoints").glob("step-*")).name
    files += [f"checkpoints/{checkpoint}/notes.txt", "tokens/data/mine.csv", ".tmp-mine", "tensorboard/mine.txt"]
    folders = ["results", "checkpoints/best-of-all", f"checkpoints/{checkpoint}-keep", f"checkpoints/{checkpoint}.mine"]
    folders += ["empty", "checkpoints/step-4", "checkpoints/step-000004-keep"]
    for name in folders:
        (here / "first" / name).mkdir()
    for name in (*files, *(f"{folder}/run.json" for folder in folders if folder != "empty")):
        (here / "first" / name).parent.mkdir(exist_ok=True)
        (here / "first" / name).write_text("{}")
    answer(monkeypatch, "y\n")
    outcome = foretell("runs", "--delete", "first").succeeds()
    listed = {line.split()[1].rstrip(",") for line in outcome.err.splitlines() if line.endswith("no training writes")}
    kept = {*files, *folders} - {"tokens/data/mine.csv", "tensorboard/mine.txt"} | {"tokens/data", "tensorboard"}
    assert listed == {f"runs/first/{name}" for name in kept}
    left = {path.relative_to(here / "first").as_posix() for path in (here / "first").rglob("*") if path.is_file()}
    assert left == {*files, *(f"{folder}/run.json" for folder in folders if folder != "empty")}
    assert (here / "first" / "empty").is_dir()


def test_the_files_of_a_run_of_an_earlier_version_are_known_by_their_times(foretell, here, monkeypatch):
    run = Run(here / "first")
    record = run.record()
    run.replace_record(record.model_copy(update={"files_in_tokens": None}))
    (run.tokens / "mine.txt").write_text("mine")
    os.utime(run.tokens / "mine.txt", (2**31, 2**31))
    answer(monkeypatch, "y\n")
    foretell("runs", "--delete", "first").succeeds()
    assert [path.name for path in run.directory.rglob("*")] == ["tokens", "mine.txt"]


def test_a_link_in_place_of_a_folder_of_a_run_is_not_followed(foretell, here, monkeypatch):
    shutil.move(here / "first" / "checkpoints", here / "elsewhere")
    (here / "first" / "checkpoints").symlink_to(here / "elsewhere")
    before = sorted(path.name for path in (here / "elsewhere").rglob("*"))
    answer(monkeypatch, "y\n")
    assert "first/checkpoints, which no training writes" in foretell("runs", "--delete", "first").succeeds().err
    assert sorted(path.name for path in (here / "elsewhere").rglob("*")) == before


def test_a_folder_with_some_run_json_is_not_deleted(foretell, tmp_path, monkeypatch):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "run.json").write_text("{}")
    answer(monkeypatch, "y\n")
    foretell("runs", "--delete", tmp_path / "mine").fails(1, "does not match its own SHA-256")
    assert (tmp_path / "mine" / "run.json").exists()


def test_the_folder_that_the_shell_is_in_can_be_deleted(foretell, here, monkeypatch):
    monkeypatch.chdir(here / "first")
    answer(monkeypatch, "y\n")
    assert foretell("runs", "--delete", ".").code == 0
    assert not (here / "first").exists()


def test_a_run_that_is_training_is_not_deleted(foretell, here, monkeypatch):
    answer(monkeypatch, "y\n")
    with held(here / "first"):
        foretell("runs", "--delete", "first").fails(1, "another process is training")
    assert (here / "first" / "run.json").exists()


@pytest.mark.parametrize("arguments", [["--delete"], ["--delete", "first", "--json"]])
def test_delete_needs_names_and_nothing_else(foretell, here, arguments):
    assert foretell("runs", *arguments).code == 2
    assert (here / "first").exists()


def test_losses_that_do_not_compare_are_marked_in_the_list(foretell, here, corpus):
    assert "do not compare" not in foretell("runs").out
    other = ["characters" if option == "bytes" else option for option in QUICK]
    assert foretell("train", corpus, *other, "--out", "runs/third").code == 0
    outcome = foretell("runs")
    assert [line.split()[5][-1] for line in outcome.out.splitlines()[2:5]] == ["a", "a", "b"]
    assert "losses with different letters do not compare" in outcome.out
    assert all(len(line) <= 80 for line in outcome.out.splitlines())


def test_bits_per_byte_are_those_of_the_loss_on_bytes(foretell, here):
    first = foretell("runs", "--json").json["runs"][0]
    index = json.loads((here / "first" / "tokens" / "index.json").read_text())["splits"]["validation"]
    expected = first["best_validation_loss"] / math.log(2) * index["tokens"] / index["bytes"]
    assert first["bits_per_byte"] == pytest.approx(expected)


def test_listing_runs_does_not_import_torch(here):
    code = "import sys; from foretell.cli.main import run; run(['runs']); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
    code = code.replace("'runs'", "'runs', 'first', 'second'")
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_columns_without_a_value_make_room_and_settings_of_other_tasks_have_rows():
    values: dict[str, Any] = {"directory": "", "size": "almanac", "parameters": 2, "data": [], "step": 3, "steps": 3}
    values |= {"tokens": 9, "best_step": 3, "best_validation_loss": 0.5, "held_out": "x", "state": "done", "changed": 0}
    plain = Summary(name="a", **values, bits_per_byte=None)
    header, _, row = str(RunTable([plain], ["a-name-of-20-letters"])).splitlines()[:3]
    assert header.split() == ["run", "size", "weights", "steps", "tokens", "loss", "state", "changed"]
    assert row.split()[1] == "almanac" and len(row) <= 80
    assert "bits" in str(RunTable([plain, replace(plain, bits_per_byte=1.5)], ["a", "b"]))
    assert values_by_path({"head": {"columns": {"texts": ["t"]}, "mean": 0.0}, "lora": None}) == {
        "head.columns.texts": ["t"],
        "head.mean": 0.0,
    }
