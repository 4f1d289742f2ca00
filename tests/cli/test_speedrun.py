"""`foretell speedrun`: against the clock, as a record that another machine repeats."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from foretell.errors import ConfigError, DataError, OutputError
from foretell.model.init import make_decoder
from foretell.pretraining.speedrun import Characters, iter_runs, make_settings
from foretell.pretraining.speedrun_record import SeedRun, SpeedrunRecord

SMALL = ["--size", "toy", "--model.width", "16", "--model.context-length", "16"]
STEPS = [*SMALL, "--steps", "3", "--training.evaluate-every", "2"]


def read_record(path: Path) -> dict:
    return json.loads(path.read_text("utf-8"))


@pytest.fixture(scope="module")
def record(corpus) -> SpeedrunRecord:
    """Two seeds of three steps."""
    text = Characters.of(corpus.read_text("utf-8"))
    shape = {"model": {"width": 16, "context_length": 16}, "training": {"steps": 3, "evaluate_every": 2}}
    settings = make_settings(text, "toy", shape, target=1.0)
    return SpeedrunRecord.of(settings, list(iter_runs(text, settings, [1, 2], lambda seed_run: None)))


def test_a_speedrun_prints_a_line_per_seed_and_writes_a_record(foretell, corpus):
    outcome = foretell("speedrun", corpus, *STEPS, "--seed", "1", "--seed", "2", "--target", "4").succeeds()
    assert outcome.out.split("\n")[0].split()[:5] == ["seed", "minutes", "to", "4.0", "tokens"]
    assert "repeat it with" in outcome.last_line
    record = read_record(Path("speedrun.json"))
    assert [each["seed"] for each in record["runs"]] == [1, 2]
    assert [point["step"] for point in record["runs"][0]["curve"]] == [0, 2, 3]
    assert max(map(len, outcome.err.splitlines()[:3])) <= 80


def test_a_full_disk_does_not_cost_the_measurement(foretell, corpus, monkeypatch):
    def refuse(path: Path, value: object) -> None:
        raise OutputError(f"could not write {path}: No space left on device")

    monkeypatch.setattr("foretell.cli.speedrun.write_json", refuse)
    outcome = foretell("speedrun", corpus, *STEPS)
    assert (outcome.code, outcome.last_line) == (1, "foretell: could not write speedrun.json: No space left on device")
    assert outcome.out.split("\n")[0].split()[:2] == ["seed", "minutes"]


def test_ended_seeds_are_kept_after_a_stop_next_to_the_record_of_another_speedrun(foretell, corpus, monkeypatch):
    def stop_at_the_second_seed(run: SeedRun) -> None:
        if run.seed == 2:
            Path("speedrun.json").write_text("of another speedrun", "utf-8")
            raise KeyboardInterrupt

    monkeypatch.setattr("foretell.cli.speedrun.show_point", stop_at_the_second_seed)
    assert foretell("speedrun", corpus, *STEPS, "--seed", "1", "--seed", "2").code == 130
    assert Path("speedrun.json").read_text("utf-8") == "of another speedrun"
    assert [each["seed"] for each in read_record(Path("speedrun-2.json"))["runs"]] == [1]


@pytest.mark.parametrize("length", [["--steps", "3"], ["--minutes", "0.05"]])
def test_a_record_is_repeated_bit_identically(foretell, corpus, length):
    assert foretell("speedrun", corpus, *SMALL, *length).code == 0
    steps = [point["step"] for point in read_record(Path("speedrun.json"))["runs"][0]["curve"]]
    again = foretell("speedrun", corpus, "--verify", "speedrun.json", "--json").succeeds()
    assert again.json["identical"] is True
    assert again.json["largest_difference"] == 0
    assert f"step {steps[-1]:>5,}" in again.err  # a limit of time is repeated with its number of steps


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda values: values["runs"][0]["curve"][1].update(loss=1.0), "losses differ by at most"),
        (lambda values: values["runs"][0].update(weights_sha256="0" * 64), "losses differ by at most 0 nats"),
        (lambda values: values["runs"][0].update(curve=values["runs"][0]["curve"][:2]), "differ by at most inf"),
        (lambda values: values["runs"][0]["curve"][2].update(tokens=1), "differ by at most inf"),
        (lambda values: values["settings"]["training"].update(learning_rate=1e-3), "losses differ by at most"),
    ],
)
def test_a_false_record_is_found(foretell, corpus, record, change, message):
    values = record.model_dump(mode="json")
    change(values)
    values["sha256"] = SpeedrunRecord.model_validate(values).expected_sha256()
    Path("forged.json").write_text(json.dumps(values), "utf-8")
    outcome = foretell("speedrun", corpus, "--verify", "forged.json")
    assert outcome.code == 1
    assert message in outcome.out
    assert outcome.last_line == "foretell: forged.json is not repeated bit-identically; the machine is of the same kind"


def test_a_record_that_was_changed_or_is_malformed_is_refused(record):
    values = record.model_dump(mode="json")
    assert SpeedrunRecord.from_json(values) == record
    with pytest.raises(DataError, match="changed after it was written"):
        SpeedrunRecord.from_json({**values, "settings": {**values["settings"], "target": 2.0}})
    with pytest.raises(ConfigError, match=r"record\.runs"):
        SpeedrunRecord.from_json({**values, "runs": []})
    with pytest.raises(ConfigError, match="curve"):
        SpeedrunRecord.from_json({**values, "runs": [{**values["runs"][0], "curve": []}]})


def test_the_loss_is_the_mean_over_all_held_out_windows(corpus, record):
    """Recomputed from logits, window by window, for the weights of step 0."""
    text = Characters.of(corpus.read_text("utf-8"))
    length = record.settings.model.context_length
    decoder = make_decoder(record.settings.model, 1).eval()
    ids = torch.from_numpy(text.held_out.astype(np.int64))
    losses = []
    for start in range(0, len(ids) - length, length):
        with torch.no_grad():
            logits = decoder(ids[None, start : start + length])[0].double()  # (T, V)
        targets = ids[start + 1 : start + length + 1]
        losses.append(torch.nn.functional.cross_entropy(logits, targets).item())
    assert record.runs[0].curve[0].loss == pytest.approx(np.mean(losses), rel=1e-6)


def test_the_target_is_reached_at_the_first_point_at_or_below_it(record):
    points = [{"step": step, "tokens": step, "seconds": 60.0 * step, "loss": 4.0 - step} for step in range(4)]
    seed_run = SeedRun.model_validate({"seed": 1, "curve": points})
    reached = seed_run.reached(2.0)
    assert reached is not None
    assert (reached.step, reached.seconds) == (2, 120.0)
    assert seed_run.reached(0.5) is None
    assert seed_run.best == 1.0


def test_bits_per_byte_count_the_bytes_of_the_held_out_text():
    text = Characters.of("ab" * 90 + "ä" * 20)
    assert (len(text.held_out), text.held_out_bytes, text.vocab_size) == (20, 40, 3)
    assert text.bits_per_byte(math.log(2)) == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["cats.txt", "--steps", "2", "--minutes", "1"], "minutes and steps both set the length"),
        (["cats.txt", "--data.rows", "true"], "unknown section of a speedrun: 'data'"),
        (["cats.txt", "--target", "-1"], "target"),
        (["cats.txt", "--training.label-smoothing", "0.1"], "training.label_smoothing has no effect in a speedrun"),
        (["cats.txt", "--training.seed", "5"], "training.seed has no effect in a speedrun; give --seed"),
        (["cats.txt", *STEPS, "--seed", "1", "--seed", "9" * 30], "training.seed = 9"),
        (["cats.txt", "--size", "gigantic"], "gigantic"),
        (["cats.txt", "--out", "cats.txt"], "cats.txt exists; name another file with --out"),
        (["cats.txt", "--out", "no/where.json"], "there is no folder no"),
        (["cats.txt", "--model.width", "65536", "--model.num-layers", "512"], "memory"),
        (["short.txt"], "the text has 9 characters to train on and 1 held out"),
        (["missing.txt"], "TEXT missing.txt"),
        (["cats.txt", "--verify", "missing.json"], "missing.json"),
        (["cats.txt", "--verify", "record.json", "--steps", "2"], "--verify repeats the settings of the record"),
        (["cats.txt", "--verify", "record.json", "--size", "toy"], "--verify repeats the settings of the record"),
        (["short.txt", "--verify", "record.json"], "the record is for another text"),
    ],
)
def test_bad_input_is_one_line(foretell, corpus, record, arguments, message):
    Path("cats.txt").write_bytes(corpus.read_bytes())
    Path("short.txt").write_text("a few char", "utf-8")
    Path("record.json").write_text(json.dumps(record.model_dump(mode="json")), "utf-8")
    outcome = foretell("speedrun", *arguments)
    assert outcome.code in (1, 2)
    assert message in outcome.last_line
    assert outcome.out == ""
    assert not Path("speedrun.json").exists()
