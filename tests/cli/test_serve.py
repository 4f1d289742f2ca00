"""Arguments of `foretell serve` that are refused before the server answers: one line each, and an exit code."""

from __future__ import annotations

import socket

import pytest

from foretell.cli.main import run

pytest.importorskip("starlette")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["primer", "primer"], "two models are named primer; give one another name: NAME=MODEL"),
        (["a=primer", "a=other"], "two models are named a"),
        (["=primer"], "a model has no name"),
        (["primer", "--max-requests", "0"], "--max-requests must be at least 1, not 0"),
        (["primer", "--grace", "-1"], "--grace must be 0 or more, not -1"),
        (["primer", "--grace", "nan"], "--grace must be 0 or more"),
        (["primer", "--memory", "0"], "--memory must be more than 0, not 0"),
        (["primer", "--memory", "inf"], "--memory must be more than 0"),
        (["primer", "--memory", "0.0001"], "give a larger --memory"),
        (["primer", "--memory", "1000000"], "does not fit"),
        (["primer", "--look-budget", "0"], "--look-budget must be more than 0"),
        (["primer", "--host", "192.0.2.1"], "can be reached from other machines"),
        (["primer", "--host", "192.0.2.1", "--no-key"], "choose another --host"),
        (["primer", "--port", "70000"], "ports are 0 to 65535; choose another --port"),
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
