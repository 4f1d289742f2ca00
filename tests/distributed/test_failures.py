"""A process that fails or is killed ends all others within seconds, with one line that says why."""

from __future__ import annotations

from pathlib import Path

import pytest

from foretell.runs.run import Run
from foretell.storage.manifest import Manifest
from tests.warm import Original

HERE = Path(__file__).parent


@pytest.fixture
def scenario(failures: dict[str, int], folder: Path):
    """The lines of standard error that foretell writes as errors in a scenario."""

    def call(name: str) -> list[str]:
        assert failures[name] != 0
        messages = (folder / f"{name}.messages").read_text(encoding="utf-8")
        assert "Traceback" not in messages
        return sorted(line for line in messages.splitlines() if line.startswith("foretell:"))

    return call


def test_a_rank_that_fails_gives_its_reason_and_the_first_one_says_how_to_resume(scenario, folder: Path) -> None:
    first, failed = scenario("a_data_error")
    assert failed == "foretell: rank 1: shard-00007.npy is cut short"
    assert first.startswith("foretell: rank 0: the process of rank 1 has failed; training ended after step 4, the ")
    assert "the checkpoint of step 4 is good; resume with: " in first
    assert Run.open(folder / "a_data_error").last_intact().step == 4


def test_a_killed_process_ends_the_run_with_one_line(scenario, folder: Path) -> None:
    (line,) = scenario("a_killed_process")
    assert line.startswith("foretell: rank 0: a process of the training was killed, or its connection is lost; ")
    assert Run.open(folder / "a_killed_process").last_intact().step == 4


def test_a_signal_to_one_process_stops_all_after_the_same_step(scenario, folder: Path) -> None:
    (line,) = scenario("a_stopped_process")
    assert line.startswith("foretell: rank 0: stopped after step 5, checkpoint saved; resume with: ")
    assert Run.open(folder / "a_stopped_process").last_intact().step == 5


def test_a_mistake_in_the_options_is_told_once(scenario, folder: Path) -> None:
    (line,) = scenario("a_bad_option")
    assert line.startswith("foretell: rank 0: ") and "steps" in line
    assert not (folder / "never").exists()


def test_torchrun_restarts_a_killed_run_which_resumes_exactly(results, folder: Path, original: Original) -> None:
    expected = results(2)["runs"]["fsdp"]["whole"]
    out = folder / "restarted"
    environment = {"FORETELL_TEST_FOLDER": str(folder)}
    done = original.run([str(out)], environment=environment, program=HERE / "restarted.py")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("restarted after the checkpoint of step 4") == 2  # one line per process
    actual = {name: entry["sha256"] for name, entry in Manifest.read(out / "checkpoints/step-000006").files.items()}
    assert {name for name in actual if name.endswith(".safetensors")} <= {
        name for name in actual if actual[name] == expected[name]
    }
