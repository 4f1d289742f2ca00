"""What a launcher's variables say, and what is refused."""

from __future__ import annotations

import pytest

from foretell.distributed.launch import VARIABLES, Launch, read_launch
from foretell.errors import UsageError


def set_launch(monkeypatch: pytest.MonkeyPatch, **values: str) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    for name, value in values.items():
        monkeypatch.setenv(name, value)


def test_without_a_launcher_there_is_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    set_launch(monkeypatch)
    assert read_launch() == Launch()


def test_processes_are_on_one_machine_unless_the_launcher_says_how_many_are(monkeypatch: pytest.MonkeyPatch) -> None:
    set_launch(monkeypatch, RANK="1", WORLD_SIZE="4", LOCAL_RANK="1")
    assert read_launch() == Launch(1, 4, 1, 4)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"RANK": "4", "WORLD_SIZE": "4"}, "RANK 4 is not below WORLD_SIZE 4"),
        (
            {"RANK": "1", "WORLD_SIZE": "4", "LOCAL_RANK": "2", "LOCAL_WORLD_SIZE": "2"},
            "LOCAL_RANK 2 is not below LOCAL",
        ),
        ({"WORLD_SIZE": "4"}, "RANK is 'missing'"),
        ({"RANK": "-1", "WORLD_SIZE": "4"}, "RANK is '-1'"),
    ],
)
def test_a_launch_that_cannot_be_is_refused(
    values: dict[str, str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_launch(monkeypatch, **values)
    with pytest.raises(UsageError, match=message):
        read_launch()
