"""Arguments of `foretell serve` that are refused before the server answers: one line each, and an exit code."""

from __future__ import annotations

import socket

import pytest

from foretell.cli.main import run

pytest.importorskip("starlette")

NOWHERE = ("--host", "192.0.2.1", "--port", "0")  # no server starts, also where the arguments are accepted


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["primer", "primer"], "two models are named primer; give one another name: NAME=MODEL"),
        (["a=primer", "a=other"], "two models are named a"),
        (["=primer"], "a model has no name"),
        (["primer", "a="], "a= names no model; give NAME=MODEL"),
        (["primer", "--max-requests", "0"], "--max-requests must be at least 1, not 0"),
        (["primer", "--port", "99999"], "--port must be 0 to 65535, not 99999"),
        (["primer", "--grace", "-1"], "--grace must be 0 or more, not -1"),
        (["primer", "--grace", "nan"], "--grace must be 0 or more"),
        (["primer", "--memory", "0"], "--memory must be more than 0, not 0"),
        (["primer", "--memory", "inf"], "--memory must be more than 0"),
        (["primer", "--memory", "0.0001"], "give a larger --memory"),
        (["primer", "--memory", "1000000"], "does not fit"),
        (["primer", "--look-budget", "0"], "--look-budget must be more than 0"),
        (["primer", "--host", "192.0.2.1"], "can be reached from other machines"),
        (["primer", "--host", "192.0.2.1", "--no-key"], "choose another --host"),
    ],
)
def test_arguments_that_are_refused(arguments, message, capfd):
    arguments = arguments if "--port" in arguments else [*arguments, "--port", "0"]
    assert run(["serve", *arguments]) in (1, 2)
    [line] = [line for line in capfd.readouterr().err.splitlines() if line.startswith("foretell: ")]
    assert message in line


def test_a_port_in_use(capfd):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert run(["serve", "primer", "--port", port]) == 1
    assert f"port {port}: Address already in use; choose another --port" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("# team", "line 2: the key has 6 characters; give at least 16"),
        ("pässword-of-the-team", "line 2: the key has characters beyond printable ASCII"),
        ("\x01control-characters", "line 2: the key has characters beyond printable ASCII"),
    ],
)
def test_a_key_that_cannot_be_used_is_named_by_its_line(line, message, tmp_path, capfd):
    file = tmp_path / "keys"
    file.write_text(f"a-key-of-enough-length\n{line}\n", encoding="utf-8")
    assert run(["serve", "primer", *NOWHERE, "--key-file", str(file)]) == 2
    [shown] = [line for line in capfd.readouterr().err.splitlines() if line.startswith("foretell: ")]
    assert f"--key-file {file}, {message}" in shown


def test_a_key_of_the_environment_that_cannot_be_used_is_named(monkeypatch, capfd):
    monkeypatch.setenv("FORETELL_API_KEY", "short")
    assert run(["serve", "primer", *NOWHERE]) == 2
    assert "FORETELL_API_KEY: the key has 5 characters; give at least 16" in capfd.readouterr().err
