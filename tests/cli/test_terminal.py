"""What reaches a terminal and what reaches a pipe: control characters, closed streams, unknown widths."""

from __future__ import annotations

import io
import itertools
import os
import pty
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from foretell.cli.terminal import (
    ProgressLine,
    QuietStream,
    fail,
    folded,
    messages,
    note,
    print_json,
    results,
    visible,
    write,
    write_document,
)

HOSTILE = "a\x1b]0;title\x07b\x9b31mc\rd\x7f\u202ee"
FORBIDDEN = {"\x1b", "\x07", "\x9b", "\r", "\x7f", "\u202e"}


@pytest.fixture
def terminal(monkeypatch) -> Iterator[None]:
    """Consoles that believe that they write to a terminal without colours."""
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    monkeypatch.setenv("TERM", "dumb")
    for console in (results, messages):
        console.cache_clear()
    yield
    for console in (results, messages):
        console.cache_clear()


def test_control_characters_become_visible_and_line_feeds_stay():
    assert visible("one\n\ttwo\x1b[31m\x00\x7f\x9b\u202e") == "one\n\ttwo\u241b[31m\u2400\u2421\\x9b\\u202e"
    assert visible("Grüße, 世界 🙂") == "Grüße, 世界 🙂"


@pytest.mark.parametrize(
    "show",
    [
        write,
        note,
        lambda text: fail(text, 1),
        lambda text: results().print(text),
        lambda text: print_json({"text": text}),
    ],
)
def test_no_control_character_reaches_a_terminal(show, terminal, capfd):
    show(HOSTILE)
    out, err = capfd.readouterr()
    assert out + err
    assert not FORBIDDEN & set(out + err)


@pytest.mark.parametrize("show", [note, lambda text: fail(text, 1)])
def test_no_control_character_reaches_redirected_messages(show, capfd):
    messages.cache_clear()
    show(HOSTILE)
    err = capfd.readouterr().err
    assert "title" in err
    assert not FORBIDDEN & set(err)


def test_piped_output_is_exact(capfd):
    results.cache_clear()
    write(HOSTILE)
    assert capfd.readouterr().out.encode() == (HOSTILE + "\n").encode()


def test_every_verb_shows_control_characters_of_its_argument_visibly(foretell, trained, terminal):
    for verb in (["next"], ["score"], ["generate", "--max-tokens", "2"], ["tokenize"], ["info"], ["evaluate"]):
        outcome = foretell(verb[0], trained, HOSTILE, *verb[1:])
        assert not FORBIDDEN & set(outcome.out + outcome.err.replace("\r", "")), verb


def test_a_message_that_cannot_be_written_is_dropped(monkeypatch):
    class Gone(io.StringIO):
        def write(self, text: str) -> int:
            raise OSError(5, "Input/output error")

    monkeypatch.setattr(sys, "stderr", Gone())
    replaced = []
    monkeypatch.setattr(os, "dup2", lambda source, target: replaced.append(target))
    stream = QuietStream()
    assert stream.write("a line") == 6
    stream.flush()
    assert (stream.failed, replaced) == (True, [2])


def shell(command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """The outcome of a shell command in which $FORETELL is the command line."""
    variables = {**os.environ, **environment, "FORETELL": f"{sys.executable} -m foretell"}
    return subprocess.run(["sh", "-c", command], env=variables, capture_output=True, text=True, check=False)


NEXT = ["next", "primer", "The", "--top", "1"]


def test_verbs_start_without_standard_input_and_error():
    outcome = shell(f"$FORETELL {' '.join(NEXT)} 0<&- 2>&-")
    assert (outcome.returncode, outcome.stdout.splitlines()[0]) == (0, "after 'The'")


@pytest.mark.parametrize("streams", [{2: None}, {2: "/dev/full"}, {0: None, 2: None}])
def test_verbs_work_without_standard_error(original, streams):
    outcome = original.run(NEXT, streams)
    assert (outcome.returncode, outcome.stdout.splitlines()[0]) == (0, "after 'The'")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full, a disk that is always full")
def test_a_full_disk_behind_standard_output_is_named(original):
    outcome = original.run(NEXT, {1: "/dev/full"})
    assert outcome.returncode == 1
    assert outcome.stderr.splitlines()[-1] == "foretell: could not write to standard output: No space left on device"


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_disk_that_fills_during_a_long_result_is_named(tmp_path, unbuffered):
    """A limit of the size of files acts as a full disk: a part is written."""
    command = f"ulimit -f 1; $FORETELL tokenize primer '{'a b ' * 200}' --json > {tmp_path / 'out'}"
    outcome = shell(command, PYTHONUNBUFFERED=unbuffered)
    assert outcome.returncode == 1
    assert outcome.stderr == "foretell: could not write to standard output: File too large\n"


GENERATE = ["generate", "primer", "The", "--max-tokens", "2"]


@pytest.mark.parametrize(
    "verb", [NEXT, GENERATE, ["info", "primer", "--json"], ["tokenize", "primer", "a"], ["lesson"]]
)
def test_a_closed_standard_output_is_named(original, verb):
    outcome = original.run(verb, {1: None})
    assert (outcome.returncode, "Traceback" in outcome.stderr) == (1, False)
    assert outcome.stderr.splitlines()[-1] == "foretell: could not write to standard output: Bad file descriptor"


def test_a_width_of_zero_is_an_unknown_width(foretell, trained, monkeypatch):
    expected = foretell("next", trained, "The").out
    monkeypatch.setenv("COLUMNS", "0")
    results.cache_clear()
    assert foretell("next", trained, "The").out == expected
    results.cache_clear()


def test_a_model_cannot_write_escape_sequences_to_a_real_terminal(original):
    leader, follower = pty.openpty()
    process = original.copy(["generate", "primer", "a\x1b]0;title\x07", "--max-tokens", "1"], {1: follower})
    assert process.wait() == 0
    os.close(follower)
    assert "a\u241b]0;title\u2407".encode() in os.read(leader, 1000)
    os.close(leader)


def test_force_color_and_no_color_change_only_the_colours(trained: Path, tmp_path: Path):
    shutil.copytree(trained, tmp_path / "other")
    command = f'$FORETELL runs "{trained}" "{tmp_path / "other"}"'
    settings = {"TERM": "xterm-256color", "COLUMNS": "78", "FORCE_COLOR": "", "NO_COLOR": ""}
    values = ("FORCE_COLOR", "1"), ("NO_COLOR", "1"), ("FORCE_COLOR", "0")
    coloured, plain, unforced = (shell(command, **settings | {name: value}) for name, value in values)
    assert (coloured.returncode, plain.returncode) == (0, 0), coloured.stderr + plain.stderr
    assert "\x1b[" in coloured.stdout
    assert "\x1b" not in plain.stdout
    assert unforced.stdout == plain.stdout
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured.stdout) == plain.stdout


def test_a_long_computation_announces_its_duration_after_its_first_part(monkeypatch, capsys):
    now = itertools.count(0, 2)  # seconds: a part takes two
    monkeypatch.setattr("foretell.cli.terminal.time.monotonic", lambda: next(now))
    with ProgressLine("origins") as progress:
        for done in range(1, 10):
            progress(done, 100)
    first, second = capsys.readouterr().err.splitlines()
    assert first == "origins: 1 of 100 (1%), 3:18 left"
    assert second == "origins: 6 of 100 (6%), 3:08 left"


def test_the_time_left_is_without_the_start_and_follows_the_share_of_the_work(monkeypatch, capsys):
    times = iter([0, 0, 60, 70, 90])
    monkeypatch.setattr("foretell.cli.terminal.time.monotonic", lambda: next(times))
    monkeypatch.setattr(ProgressLine, "__exit__", lambda *_: None)
    with ProgressLine("texts") as progress:
        progress(0, 4, 0.0)
        progress(0, 4, 0.1)  # after a minute of compiling
        progress(0, 4, 0.2)
        progress(3, 4, 0.8)
    lines = capsys.readouterr().err.splitlines()
    assert lines[-2:] == ["texts: 0 of 4 (20%), 1:20 left", "texts: 3 of 4 (80%), 0:09 left"]


def test_a_short_computation_announces_nothing(capsys):
    with ProgressLine("origins") as progress:
        for done in range(1, 10):
            progress(done, 10)
    assert not capsys.readouterr().err


# Ends where torch would be imported, so that all that it has printed was printed before
TOKENS = """
import os, sys
import foretell
class Torch:
    def find_spec(self, name, *_):
        if name == "torch":
            sys.stderr.flush()
            os._exit(7)
sys.meta_path.insert(0, Torch())
from foretell.cli import terminal
loading = terminal.show_loading
terminal.show_loading = lambda argument: (print("loads", file=sys.stderr), loading(argument))
from foretell.cli.main import run
run(sys.argv[1:])
"""


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["next", "primer", "The value"], "2 tokens: 'The' ' value'"),
        (["generate", "primer", "The", "--max-tokens", "1"], "1 token: 'The'"),
        (["next", "primer", "The value" * 20], "40 tokens, the last: ' value' 'The' ' value'"),
        (["next", "primer", "The value", "--json"], ""),
        (["generate", "primer", "The", "The value", "--max-tokens", "1"], ""),
        (["next", "primer", "338 393", "--ids"], ""),
    ],
)
@pytest.mark.parametrize("is_terminal", [True, False])
def test_the_tokens_of_a_prompt_are_shown_on_a_terminal_before_torch_is_loaded(arguments, line, is_terminal):
    leader, follower = pty.openpty()
    out = follower if is_terminal else subprocess.DEVNULL
    command = [sys.executable, "-c", TOKENS, *arguments]
    done = subprocess.run(command, stdout=out, stderr=subprocess.PIPE, text=True, check=False)
    os.close(follower)
    os.close(leader)
    assert done.returncode == 7, done.stderr
    shown, before = done.stderr.partition("loads\n")[::2]
    assert "loading primer" in before
    assert "token" not in before
    assert shown.startswith(line) if line and is_terminal else shown == ""
    assert max(map(len, done.stderr.splitlines())) <= 78


def test_long_lines_of_the_log_go_on_below_their_text():
    line = "size        small, since " + "it fits; " * 9
    assert folded(line, 60).split("\n")[1].startswith(" " * 12 + "it")
    assert max(map(len, folded(line, 60).split("\n"))) <= 60
    assert folded("one word\nand  more", 60) == "one word\nand  more"


def test_help_fits_80_columns(foretell, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    for verb in ("train", "finetune", "forecast", "chat", "serve"):
        lines = foretell(verb, "--help").out.split("\n")
        assert max(map(len, lines)) <= 80, verb
        begun = {
            len(line) - len(line.lstrip()) for line in lines[lines.index("Parameters:") + 1 :] if line.startswith(" ")
        }
        assert len(begun) <= 4, begun


def test_a_document_has_colours_on_a_terminal_alone(monkeypatch, capsys):
    document = "after 'a'\n═════════\n\ntoken  share\n─────  ─────\nb      ██\nc      ████████"
    results.cache_clear()
    monkeypatch.setenv("FORCE_COLOR", "1")
    write_document(document)
    coloured = capsys.readouterr().out
    assert "\x1b[1mafter 'a'\x1b[0m" in coloured and "\x1b[2;36m██\x1b[0m" in coloured
    assert "\x1b[1;36m████████\x1b[0m" in coloured
    monkeypatch.delenv("FORCE_COLOR")
    results.cache_clear()
    write_document(document)
    assert capsys.readouterr().out == f"{document}\n"
