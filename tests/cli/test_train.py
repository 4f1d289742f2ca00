"""`foretell train`: kinds of data, run directories, resuming, interruption."""

from __future__ import annotations

import csv
import io
import json
import os
import signal
import sys
import time
from pathlib import Path

import pytest

from foretell.errors import OutputError
from tests.warm import Warm

TOY = ["--size", "toy", "--model.width", "16", "--model.context-length", "32", "--training.batch-size", "4"]
QUICK = [*TOY, "--kind", "bytes", "--steps", "3"]
LONG = 600  # seconds; an upper bound for another process on a loaded machine
METRICS = [
    *("step", "tokens", "loss", "validation_loss", "learning_rate", "gradient_norm", "tokens_per_second", "seconds"),
    *("mfu", "peak_memory_bytes"),
]


def test_a_run_has_all_its_files(trained):
    names = {path.name for path in trained.iterdir()}
    assert {"run.json", "metrics.jsonl", "samples", "environment.json", "checkpoints", "loss.png"} <= names
    checkpoint = trained / "checkpoints" / "step-000012"
    assert {path.name for path in checkpoint.iterdir()} == {
        *("model.safetensors", "optimizer.safetensors"),
        *("config.json", "tokenizer.json", "training.json", "manifest.json", "data_use.safetensors"),
    }
    lines = [json.loads(line) for line in (trained / "metrics.jsonl").read_text().splitlines()]
    assert list(lines[0]) == METRICS
    assert lines[-1]["step"] == 12
    assert lines[-1]["loss"] < lines[0]["loss"]


def test_memory_is_always_measured_and_mfu_only_in_longer_runs(trained):
    lines = [json.loads(line) for line in (trained / "metrics.jsonl").read_text().splitlines()]
    assert all(line["peak_memory_bytes"] > 2**20 for line in lines)
    assert {line["mfu"] for line in lines} == {None}


def test_a_run_is_named_once_its_data_is_read(foretell):
    Path("empty.txt").touch()
    lines = foretell("train", "empty.txt", *QUICK).err.splitlines()
    assert [line.split()[0] for line in lines] == ["reading", "foretell:"]
    Path("empty.txt").write_text("a text. " * 200)
    assert "run         runs/empty" in foretell("train", "empty.txt", *QUICK).err.splitlines()


def test_a_picture_that_cannot_be_written_does_not_fail_a_finished_run(foretell, corpus, monkeypatch):
    def refuse(*_: object, **__: object) -> None:
        raise OutputError("could not write loss.png: no space")

    monkeypatch.setattr("foretell.session.plots.write_png", refuse)
    outcome = foretell("train", corpus, *QUICK, "--out", "x").succeeds()
    assert "could not write loss.png: no space" in outcome.err
    assert "Traceback" not in outcome.err


def test_the_progress_of_tokenizing_is_shown(foretell, corpus, monkeypatch):
    monkeypatch.setattr("foretell.session.display.PLAIN_SECONDS", -1.0)
    assert "tokenizing  " in foretell("train", corpus, *QUICK, "--out", "x").err


# A learning rate so large that nothing improves after the first steps
WORSE = ["--steps", "60", "--training.evaluate-every", "2", "--training.patience", "3", "--checkpoint-every", "1000"]
WORSE += ["--training.learning-rate", "10", "--training.warmup-steps", "20"]  # better at first, then worse


def test_training_stops_without_improvement_and_the_run_means_its_best_model(foretell, corpus):
    outcome = foretell("train", corpus, *TOY, "--kind", "bytes", *WORSE, "--out", "x").succeeds()
    lines = [json.loads(line) for line in Path("x/metrics.jsonl").read_text().splitlines()]
    losses = {line["step"]: line["validation_loss"] for line in lines if line["validation_loss"] is not None}
    best, last = min(losses, key=lambda step: losses[step]), max(losses)
    assert last == best + 6 < 60
    assert f"after step {last} of 60: no validation loss below {losses[best]:.3f} in 3 evaluations" in outcome.err
    assert f"best        step {best}: validation loss {losses[best]:.3f}" in outcome.out
    kept = sorted(path.name for path in Path("x/checkpoints").iterdir())
    assert {f"step-{best:06d}", f"step-{last:06d}"} <= set(kept)
    before = Path("x/metrics.jsonl").read_text()
    again = foretell("train", "--out", "x", "--resume", "auto")  # it has nothing left to do, and says why
    assert (again.code, Path("x/metrics.jsonl").read_text()) == (0, before)
    assert f"after step {last} of 60" in again.err


def test_a_resumed_run_stops_early_where_the_uninterrupted_one_does(foretell, corpus):
    for name in ("whole", "cut"):
        foretell("train", corpus, *TOY, "--kind", "bytes", *WORSE, "--training.keep-checkpoints", "9", "--out", name)
    *_, last = sorted(Path("cut/checkpoints").iterdir())
    remove_tree(last)
    foretell("train", "--out", "cut", "--resume", "auto")
    assert losses_of("cut") == losses_of("whole")


def test_patience_without_held_out_text_is_refused(foretell, corpus):
    outcome = foretell("train", corpus, *QUICK, "--training.patience", "2", "--data.validation-fraction", "0")
    assert outcome.code == 2
    assert "data.validation_fraction" in outcome.last_line


def test_given_prompts_are_continued_during_training(foretell, corpus):
    prompts = ["--sample-prompt", "The cat", "--sample-prompt", "A dog\n"]
    outcome = foretell("train", corpus, *QUICK, *prompts, "--out", "x").succeeds()
    assert "The cat" in outcome.err
    assert "A dog⏎" in outcome.err
    first, second = Path("x/samples/step-000003.txt").read_text().split(f"\n\n{'-' * 40}\n\n")
    assert first.startswith("The cat")
    assert second.startswith("A dog\n")
    assert foretell("train", "--out", "x", "--resume", "auto").code == 0
    assert foretell("train", "--out", "x", "--resume", "auto", "--sample-prompt", "Other").code == 2


def test_training_logs_its_choices_and_how_validation_was_split(foretell, corpus):
    outcome = foretell("train", corpus, *QUICK).succeeds()
    for word in ("held out", "vocabulary 257", "ln(257) = 5.55", "parameters", "bits per byte", "runs/cats"):
        assert word in outcome.err + outcome.out


def test_size_and_steps_are_chosen_and_the_reason_is_logged(foretell, corpus):
    outcome = foretell("train", corpus, "--minutes", "0.02", "--kind", "bytes").succeeds()
    assert "size        toy" in outcome.err
    assert "0.02 minutes at" in outcome.err


def test_a_second_run_on_the_same_data_gets_a_number(foretell, corpus):
    for _ in range(2):
        assert foretell("train", corpus, *QUICK).code == 0
    assert sorted(path.name for path in Path("runs").iterdir()) == ["cats", "cats-2"]


def make_folder(folder: Path) -> str:
    (folder / "deep").mkdir(parents=True)
    for number in range(25):
        (folder / "deep" / f"{number}.txt").write_text(f"Number {number} has its own story to tell here. " * 5)
    return str(folder)


def make_jsonl(folder: Path) -> str:
    folder.mkdir()
    lines = [json.dumps({"body": f"Story {number} of many, told at length. " * 5}) for number in range(25)]
    (folder / "stories.jsonl").write_text("\n".join(lines))
    return str(folder / "stories.jsonl")


def make_csv(folder: Path) -> str:
    folder.mkdir()
    with (folder / "stories.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["id", "body"], *([n, f"Story {n}, told, with commas. " * 5] for n in range(25))])
    return str(folder / "stories.csv")


@pytest.mark.parametrize("make", [make_folder, make_jsonl, make_csv])
def test_folders_and_tables_train_with_the_same_verb(foretell, tmp_path, make):
    data, field = make(tmp_path / "data"), [] if make is make_folder else ["--text-field", "body"]
    outcome = foretell("train", data, *QUICK, *field, "--out", "x").succeeds()
    assert "one whole document in every 10" in outcome.err


def test_piped_text_trains_with_the_same_verb(foretell, corpus, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(corpus.read_bytes()), encoding="utf-8"))
    assert foretell("train", "-", *QUICK).code == 0
    assert Path("runs/stdin/run.json").exists()


def test_the_tokens_of_a_run_can_be_data(foretell, trained):
    outcome = foretell("train", trained / "tokens", *TOY, "--steps", "3", "--out", "again").succeeds()
    assert "validation is the last 0.1" in outcome.err


def test_tokens_of_another_tokenizer_are_refused(foretell, trained, corpus):
    foretell("tokenizer", "train", corpus, "--kind", "characters", "--out", "tok")
    outcome = foretell("train", trained / "tokens", *TOY, "--steps", "3", "--tokenizer", "tok", "--out", "again")
    assert outcome.code == 1
    assert "tokenizer" in outcome.last_line
    assert not Path("again").exists()


def test_a_configuration_file_is_overridden_by_options(foretell, corpus, tmp_path):
    (tmp_path / "x.toml").write_text("[model]\nwidth = 32\nn_layer = 1\n[training]\nsteps = 2\nbatch_size = 2\n")
    options = ["--config", "x.toml", "--model.width", "16", "--model.context-length", "32", "--kind", "bytes"]
    assert foretell("train", corpus, "--size", "toy", *options, "--out", "x").code == 0
    config = json.loads(Path("x/run.json").read_text())["config"]
    assert config["model"]["width"] == 16
    assert config["model"]["num_layers"] == 1
    assert config["training"]["steps"] == 2


def losses_of(run: str) -> list[tuple[int, float]]:
    lines = map(json.loads, Path(run, "metrics.jsonl").read_text().splitlines())
    return [(line["step"], line["loss"]) for line in lines]


def remove_tree(path: Path) -> None:
    for file in path.iterdir():
        file.unlink()
    path.rmdir()


def test_resume_auto_starts_a_run_that_does_not_exist(foretell, corpus):
    assert foretell("train", corpus, *QUICK, "--out", "new", "--resume", "auto").code == 0


def test_a_run_without_a_checkpoint_is_resumed_from_its_start(foretell, corpus):
    for name in ("whole", "cut"):
        assert foretell("train", corpus, *QUICK, "--out", name).code == 0
    remove_tree(Path("cut/checkpoints/step-000003"))
    for leftover in Path("cut/checkpoints").iterdir():
        remove_tree(leftover)
    outcome = foretell("train", "--out", "cut", "--resume", "auto")
    assert "from the start" in outcome.err
    assert losses_of("cut") == losses_of("whole")


def test_a_folder_that_is_not_a_run_is_neither_used_nor_resumed(foretell, corpus, tmp_path):
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "mine.txt").write_text("precious")
    foretell("train", corpus, *QUICK, "--out", "x", "--resume", "auto").fails(1, "it is not a run")
    assert (tmp_path / "x" / "mine.txt").read_text() == "precious"


def test_a_damaged_checkpoint_is_named_and_the_one_before_is_used(foretell, corpus):
    foretell("train", corpus, *TOY, "--kind", "bytes", "--steps", "4", "--checkpoint-every", "2", "--out", "x")
    weights = Path("x/checkpoints/step-000004/model.safetensors")
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    outcome = foretell("train", "--out", "x", "--resume", "auto").succeeds()
    assert "step-000004/model.safetensors is damaged" in outcome.err
    assert "after step 2 of 4" in outcome.err


def test_a_non_finite_loss_stops_training_before_a_weight_is_changed(foretell, corpus):
    options = ["--training.learning-rate", "1e30", "--training.warmup-steps", "0", "--training.clip-norm", "none"]
    outcome = foretell("train", corpus, *TOY, "--kind", "bytes", "--steps", "50", *options, "--out", "x")
    assert outcome.code == 1
    assert "learning-rate" in outcome.last_line


@pytest.mark.parametrize(("similar", "is_told"), [("true", False), ("false", True)])
def test_a_large_first_loss_is_a_warning_where_vectors_begin_random(foretell, corpus, similar, is_told):
    start = ["--model.init", "torch", "--training.similar-vectors", similar]
    outcome = foretell("train", corpus, *QUICK, *start, "--out", "x")
    assert outcome.code == 0
    assert "untrained" in outcome.err
    assert ("look at model.init" in outcome.err) is is_told


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_ends_training_with_a_checkpoint_and_the_command_to_resume(corpus, tmp_path, original, number, code):
    arguments = ["train", str(corpus), *TOY, "--kind", "bytes", "--steps", "100000", "--out", "x"]
    (tmp_path / "err").touch()
    process = original.start(arguments, tmp_path / "err", tmp_path)
    wait_for(tmp_path / "x" / "metrics.jsonl", process)
    process.send_signal(number)
    assert process.wait(LONG) == code
    assert (tmp_path / "err").read_text().splitlines()[-1].endswith("foretell train --out x --resume auto")
    assert len(list((tmp_path / "x" / "checkpoints").glob("step-*"))) == 1


def test_a_killed_training_resumes_to_the_same_end(foretell, corpus, tmp_path, original):
    options = [*TOY, "--kind", "bytes", "--steps", "60", "--checkpoint-every", "7", "--model.dropout", "0.1"]
    assert foretell("train", corpus, *options, "--out", "whole").code == 0
    process = original.start(["train", str(corpus), *options, "--out", "x"], Path(os.devnull), tmp_path)
    wait_for(tmp_path / "x" / "metrics.jsonl", process)
    process.kill()
    process.wait()
    foretell("train", "--out", "x", "--resume", "auto").succeeds()
    for name in ("model.safetensors", "optimizer.safetensors"):
        whole, killed = (Path(run, "checkpoints/step-000060", name).read_bytes() for run in ("whole", "x"))
        assert whole == killed
    assert losses_of("whole") == losses_of("x")


LONGER = [*TOY, "--kind", "bytes", "--steps", "60", "--checkpoint-every", "60", "--training.log-every", "1"]


def test_training_goes_on_when_its_terminal_is_closed(corpus, tmp_path, original):
    master, terminal = os.openpty()
    process = original.copy(["train", str(corpus), *LONGER, "--out", "x"], {2: terminal}, tmp_path)
    os.close(terminal)
    wait_for(tmp_path / "x" / "metrics.jsonl", process)
    os.close(master)
    assert process.wait(LONG) == 0
    assert (tmp_path / "x" / "checkpoints" / "step-000060").exists()


@pytest.mark.parametrize("streams", [{2: None}, {2: "/dev/full"}, {1: "/dev/null", 2: None}])
def test_training_needs_no_standard_error(corpus, tmp_path, original, streams):
    arguments = ["train", str(corpus), "--out", "x", *QUICK]
    done = original.run(arguments, streams, tmp_path, environment={"COLUMNS": "0"})
    assert done.returncode == 0, done
    assert 1 in streams or "validation loss" in done.stdout
    assert (tmp_path / "x" / "checkpoints" / "step-000003").exists()


def wait_for(path: Path, process: Warm) -> None:
    """Until a process has written something into a file."""
    deadline = time.monotonic() + LONG
    while not (path.exists() and path.stat().st_size):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_closed_pipe_ends_quietly(trained, tmp_path, original):
    reading, writing = os.pipe()
    (tmp_path / "err").touch()
    streams = {1: writing, 2: str(tmp_path / "err")}
    process = original.copy(["next", str(trained), "The cat sat on the mat", "--every"], streams)
    os.close(writing)
    assert os.read(reading, 1)
    os.close(reading)
    assert process.wait(LONG) == 0
    written = (tmp_path / "err").read_text()
    assert "Traceback" not in written
    assert "BrokenPipe" not in written


@pytest.mark.parametrize("kind", ["words", "characters"])
def test_words_and_characters_of_the_held_out_text_may_be_unknown(foretell, tmp_path, kind):
    (tmp_path / "x.txt").write_text("".join(f"word{n} and more\n" for n in range(400)) + "ünseen\n")
    foretell("train", "x.txt", *TOY, "--kind", kind, "--steps", "2", "--out", "x").succeeds()


def test_a_published_shape_takes_the_vocabulary_of_the_text(foretell, corpus):
    small = ["--model.num-layers", "1", "--model.width", "16", "--model.num-heads", "2", "--model.context-length", "32"]
    options = ["--size", "gpt2", *small, "--kind", "bytes", "--steps", "2", "--training.batch-size", "2"]
    assert foretell("train", corpus, *options, "--out", "x").code == 0
    assert foretell("info", "x", "--json").json["config"]["vocab_size"] == 257


def test_a_choice_called_none_can_be_made(foretell, corpus):
    options = ["--model.position", "none", "--model.norm", "none", "--model.qk-norm", "false", "--model.window", "none"]
    assert foretell("train", corpus, *QUICK, *options, "--model.feedforward", "none", "--out", "x").code == 0
    assert foretell("info", "x", "--json").json["config"]["position"] == "none"


def test_a_resumed_run_refuses_other_data_and_another_tokenizer(foretell, corpus, tmp_path):
    foretell("train", corpus, *QUICK, "--out", "x")
    (tmp_path / "other.txt").write_text("something else\n" * 50)
    for other in (["other.txt"], ["--tokenizer", "primer"]):
        foretell("train", *other, "--out", "x", "--resume", "auto").fails(2, "was started with")


def test_damaged_weights_are_reported_by_other_verbs(foretell, corpus):
    foretell("train", corpus, *QUICK, "--out", "x")
    weights = Path("x/checkpoints/step-000003/model.safetensors")
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    foretell("next", "x", "The", "--verify").fails(1, "model.safetensors is damaged")


def test_a_folder_with_an_at_sign_is_a_model(foretell, corpus):
    foretell("train", corpus, *QUICK, "--out", "a@b/r1")
    assert foretell("next", "a@b/r1", "The").code == 0
    assert foretell("next", "a@b/r1@last", "The").code == 0


@pytest.mark.parametrize("option", [["--steps", "9" * 20], ["--minutes", "1e30"], ["--minutes", "nan"]])
def test_absurd_lengths_are_refused(foretell, corpus, option):
    foretell("train", corpus, *TOY, "--kind", "bytes", *option, "--out", "x").fails(2, option[0].removeprefix("--"))
    assert not Path("x").exists()


@pytest.mark.parametrize(
    "text", ["Well-being, 2nd: it\u2019s \u201cThe old man\u201d said.\n", "# a_b\nThe end of it\n", "1 2 3 4\n"]
)
def test_the_suggested_prompt_is_in_the_text(foretell, tmp_path, text):
    (tmp_path / "x.txt").write_text(text * 200)
    outcome = foretell("train", "x.txt", *QUICK, "--out", "x").succeeds()
    prompt = outcome.out.rstrip().rpartition('generate x "')[2].rstrip('"')
    assert prompt in text or text.startswith("1")


def test_resume_alone_means_auto_and_a_finished_run_says_so(foretell, corpus):
    assert foretell("train", corpus, *QUICK, "--resume", "--out", "x").code == 0
    metrics = Path("x/metrics.jsonl").read_bytes()
    for arguments in (["--out", "x", "--resume"], ["--resume", "--out", "x"], ["--out", "x", "--resume", "auto"]):
        outcome = foretell("train", *arguments).succeeds()
        assert "finished    x has all its 3 steps; to train it further: " in outcome.err
        assert "resuming" not in outcome.err
    assert Path("x/metrics.jsonl").read_bytes() == metrics


def test_a_finished_run_that_gets_more_steps_says_how(foretell, corpus):
    foretell("train", corpus, *QUICK, "--out", "x")
    outcome = foretell("train", "--out", "x", "--resume", "auto", "--steps", "9")
    assert outcome.code == 2
    assert "x is finished after 3 steps, where its schedule ends" in outcome.last_line
    assert outcome.last_line.endswith(f"train {corpus} --start-from x --steps 6 --out x-longer")
    assert foretell("train", corpus, "--start-from", "x", "--steps", "6", "--out", "y").code == 0


def test_the_prompt_to_try_is_short_for_a_text_of_one_long_word(foretell, tmp_path):
    (tmp_path / "word.txt").write_text("abcdefgh" * 20_000)
    done = foretell("train", "word.txt", *TOY, "--steps", "3", "--out", "x")
    line = next(line for line in done.out.splitlines() if line.startswith("try"))
    assert 10 < len(line.split('"')[1]) <= 80


def test_the_last_line_names_an_earlier_run_of_the_same_data(foretell, tmp_path):
    (tmp_path / "cats.txt").write_text("the cat sat on a mat. " * 200)
    command = ["train", "cats.txt", "--size", "toy", "--kind", "bytes", "--steps", "1"]
    first, second = (foretell(*command).succeeds().out.splitlines()[-1] for _ in range(2))
    assert first.startswith("try         ") and "generate runs/cats " in first and "#" not in first
    assert "generate runs/cats-2 " in second and second.endswith("  # runs/cats is an earlier run")
