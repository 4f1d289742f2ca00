"""Regression tests of the command line: help, signals, closed streams, encodings."""

from __future__ import annotations

import io
import os
import shlex
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from rich.console import Console

from foretell.cli.demo import say_goodbye
from foretell.cli.demo_display import DemoReporter
from foretell.cli.query import read_texts
from foretell.cli.terminal import library_notes_on_stderr
from foretell.errors import Interrupted
from foretell.inference.query import NextTokens
from foretell.language_model import TokenProbability
from foretell.session.failures import StopSignal
from foretell.text.untrusted_tokenizer import rust_failures
from foretell.typesetting.text import shorten


def test_help_shows_examples_and_explains_model(foretell):
    out = foretell("--help").out
    assert 'foretell explain primer "The cat sat"' in out
    assert "A MODEL is a path" in out


def test_the_help_of_a_verb_is_its_whole_docstring(foretell):
    assert "Sections of the configuration: model, tokenizer, data, training." in foretell("train", "--help").out
    assert "Make a tokenizer from text." in foretell("tokenizer", "--help").out
    assert "Without data, the text is" in foretell("tokenizer", "train", "--help").out


def test_ctrl_c_in_a_verb_is_one_line_and_exits_130(foretell, monkeypatch):
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("foretell.cli.query.read_texts", stop)
    outcome = foretell("embed", "primer", "text")
    assert (outcome.code, outcome.last_line) == (130, "foretell: stopped by Ctrl-C")


@pytest.mark.parametrize("module", ["cyclopts", "torch"])  # before `run` can catch anything, and in a verb
@pytest.mark.parametrize("is_script", [True, False])
def test_ctrl_c_during_an_import_is_one_line_and_exits_130(module, is_script, tmp_path):
    slow = "import time\nprint('importing', flush=True)\ntry:\n    time.sleep(60)\nexcept BaseException:\n    pass\n"
    (tmp_path / f"{module}.py").write_text(slow)
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text("utf-8"))["project"]
    home, _, function = project["scripts"]["foretell"].partition(":")
    start = ["-c", f"from {home} import {function}; {function}()"] if is_script else ["-m", "foretell"]
    command = [sys.executable, *start, "next", "primer", "text"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "importing\n"
        process.send_signal(signal.SIGINT)
        _, error = process.communicate(timeout=60)
    assert (process.returncode, error.removeprefix("loading primer\n")) == (130, "foretell: stopped by Ctrl-C\n")


def test_a_signal_while_tokenizing_is_not_a_tokenizer_error():
    with pytest.raises(Interrupted), rust_failures("text"):
        raise Interrupted("stopped by SIGTERM", 143)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_while_a_folder_is_written_leaves_nothing(number, code, tmp_path):
    program = """
import sys, time
from pathlib import Path
from foretell.cli import main
from foretell.storage.files import new_directory
def write(words, **_):
    with new_directory(Path(words[0])):
        print("writing", flush=True)
        time.sleep(60)
main.make_app = lambda words: write
main.main()
"""
    command = [sys.executable, "-c", program, str(tmp_path / "out")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert len(list(tmp_path.iterdir())) == 1
        process.send_signal(number)
        _, error = process.communicate(timeout=60)
    assert (process.returncode, error) == (code, f"foretell: stopped by {number.name}\n")
    assert list(tmp_path.iterdir()) == []


def test_the_first_signal_is_acknowledged_and_a_second_sigterm_exits_143(capfd):
    with library_notes_on_stderr(), StopSignal():
        signal.raise_signal(signal.SIGTERM)
        assert "stopping after this step" in capfd.readouterr().err
        with pytest.raises(Interrupted) as caught:
            signal.raise_signal(signal.SIGTERM)
    assert caught.value.exit_code == 143


WITHOUT_OUTPUT = "foretell: could not write to standard output: Bad file descriptor\n"


@pytest.mark.parametrize(
    ("closed", "expected"),
    [("<&-", (0, "")), (">&-", (1, WITHOUT_OUTPUT)), ("2>&-", (0, "")), ("<&- >&- 2>&-", (1, ""))],
)
def test_closed_standard_streams_give_no_traceback(closed, expected):
    command = f"{sys.executable} -m foretell --help {closed}"
    outcome = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)
    assert (outcome.returncode, outcome.stderr) == expected


def test_an_encoding_that_lacks_a_character_does_not_stop_a_verb(trained, original):
    done = original.run(["next", str(trained), "The cat"], environment={"PYTHONIOENCODING": "latin-1"})
    assert done.returncode == 0, done.stderr


def test_the_probabilities_of_next_end_in_one_column():
    tokens = [TokenProbability(1, "a", probability, 0.0) for probability in (0.9, 1.1e-5)]
    *_, first, second = str(NextTokens("x", tokens)).splitlines()
    assert first.index("%") == second.index("%")


def test_the_demos_commands_can_be_pasted(capsys):
    say_goodbye(Console(width=200), Path("runs/demo"))
    commands = [line.strip() for line in capsys.readouterr().out.splitlines() if " next " in line or " train " in line]
    assert [shlex.split(command, comments=True)[-1] for command in commands] == ["If the object is", "my.txt"]
    assert all("(" not in command.partition("#")[0] for command in commands)


def test_a_row_of_the_demo_fits_80_columns():
    reporter = DemoReporter(Console(file=io.StringIO()), 2.0, "")
    reporter.bits_per_byte = lambda loss: loss
    row = reporter.row({"step": 7, "loss": 10.5, "validation_loss": 10.5}, 12345)
    assert row.cell_len <= 80


def test_a_sample_is_shown_on_one_even_line():
    assert shorten("a\tb  c\r\nd\x1b[2Je", 40) == "a b c ⏎d [2Je"


def test_a_text_too_long_for_a_file_name_is_embedded_as_a_text():
    texts = read_texts("cat " * 75)
    assert texts == {1: "cat " * 75}


def test_training_continues_when_nobody_reads_its_messages(corpus, tmp_path, original):
    reading, writing = os.pipe()
    os.close(reading)
    small = ["--size", "toy", "--model.width", "16", "--model.context-length", "32", "--training.batch-size", "4"]
    arguments = [str(corpus), *small, "--kind", "bytes", "--steps", "2", "--out", str(tmp_path / "run")]
    process = original.copy(["train", *arguments], {2: writing})
    os.close(writing)
    assert process.wait() == 0
