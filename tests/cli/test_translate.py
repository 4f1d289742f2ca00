"""Training a translation model, translating and evaluating on the command line."""

from __future__ import annotations

import json

import pytest

from foretell.cli.main import run
from foretell.cli.translate import translate_step_by_step

PAIRS = [
    f"the {what} {number}\tle {name} {number}"
    for what, name in (("cat", "chat"), ("dog", "chien"))
    for number in range(9)
]
TRAIN = ["train", "--task", "translate", "pairs.tsv", "--size", "toy", "--steps", "3", "--batch-tokens", "128"]


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    """A folder with pairs.tsv and the run runs/pairs, trained on it by the command."""
    folder = tmp_path_factory.mktemp("translate")
    (folder / "pairs.tsv").write_text("\n".join(PAIRS) + "\n", encoding="utf-8")
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(folder)
        assert run([*TRAIN, "--pairs.validation-fraction", "0.2"]) == 0
    return folder


@pytest.fixture
def here(directory, monkeypatch):
    monkeypatch.chdir(directory)
    return directory


def test_training_says_what_was_chosen_and_what_to_do_next(here, tmp_path, capfd):
    assert run([*TRAIN, "--out", str(tmp_path / "run"), "--separate-vocabularies"]) == 0
    captured = capfd.readouterr()
    for words in (
        "18 to learn from",
        "two vocabularies of",
        "toy,",
        "2 + 2 layers",
        "times the pairs): as asked",
    ):
        assert words in captured.err
    assert "foretell translate" in captured.out


def test_held_out_pairs_come_from_a_file_and_the_direction_can_be_reversed(here, tmp_path, capfd):
    (tmp_path / "dev.jsonl").write_text(json.dumps({"translation": {"en": "the cat 1", "fr": "le chat 1"}}) + "\n")
    out = str(tmp_path / "run")
    assert run([*TRAIN, "--out", out, "--dev", str(tmp_path / "dev.jsonl"), "--reverse"]) == 0
    captured = capfd.readouterr()
    assert "pairs left out of the training because their source is held out: 1" in captured.err
    assert f"17 to learn from, 1 held out: {tmp_path / 'dev.jsonl'}" in " ".join(captured.err.split())
    assert "foretell translate" in captured.out and "le chat 1" in captured.out
    assert run(["evaluate", out, "pairs.tsv", "--reverse", "--beam", "1", "--limit", "2"]) == 0
    assert run(["train", "--out", out, "--resume", "auto", "--dev", "pairs.tsv"]) == 2
    assert "was started with dev = " in capfd.readouterr().err


def test_two_of_three_languages_are_trained_and_evaluated(here, tmp_path, capfd):
    rows = [{"de": f"Katze {n}", "en": f"cat {n}", "fr": f"chat {n}"} for n in range(20)]
    (tmp_path / "three.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    columns, out = ["--column", "de", "--column", "en"], str(tmp_path / "run")
    command = [str(tmp_path / "three.jsonl") if each == "pairs.tsv" else each for each in TRAIN]
    assert run([*command, "--out", out, *columns]) == 0
    assert json.loads((tmp_path / "run" / "run.json").read_text())["columns"] == ["de", "en"]
    assert "Katze" in capfd.readouterr().out
    assert run(["evaluate", out, str(tmp_path / "three.jsonl"), *columns, "--beam", "1", "--limit", "2"]) == 0


def test_a_run_resumes_without_naming_the_task(here, capfd):
    assert run(["train", "--out", "runs/pairs", "--resume", "auto"]) == 0
    assert "finished    runs/pairs has all its 3 steps" in capfd.readouterr().err


def test_every_line_has_its_translation(here, capfd, monkeypatch):
    (here / "lines.txt").write_text("the cat 1\n\nthe dog 2\n", encoding="utf-8")
    assert run(["translate", "pairs", "lines.txt", "--json"]) == 0
    objects = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert [each["source"] for each in objects] == ["the cat 1", "", "the dog 2"]
    assert objects[1] == {"source": "", "translation": "", "score": 0.0}
    assert run(["translate", "pairs", "lines.txt"]) == 0
    assert capfd.readouterr().out.splitlines() == [each["translation"] for each in objects]


def test_input_in_another_language_is_one_warning(here, capfd):
    (here / "lines.txt").write_text("the cat 1\nпривет, как дела?\nдо свидания\n", encoding="utf-8")
    assert run(["translate", "pairs", "lines.txt"]) == 0
    warned = " ".join(capfd.readouterr().err.split())
    assert "2 lines do not look like the language that pairs translates from; the first is line 2" in warned
    assert run(["translate", "pairs", "the cat 1"]) == 0
    assert "does not look like" not in capfd.readouterr().err


def test_a_file_is_read_by_its_option_too(here, capfd):
    (here / "lines.txt").write_text("the cat 1\n", encoding="utf-8")
    assert run(["translate", "pairs", "lines.txt"]) == 0
    assert run(["translate", "pairs", "--file", "lines.txt"]) == 0
    first, second = capfd.readouterr().out.splitlines()
    assert first == second
    assert run(["translate", "pairs", "the cat", "--file", "lines.txt"]) == 2


@pytest.mark.parametrize("options", [["--beam", "1"], ["--temperature", "1", "--seed", "4"], ["--length-penalty", "0"]])
def test_the_ways_of_decoding(here, capfd, options):
    assert run(["translate", "pairs", "the cat 1", "--json", *options]) == 0
    assert json.loads(capfd.readouterr().out)["score"] < 0


def test_the_lesson_shows_a_models_greedy_steps_from_the_start_token_on(here, capfd):
    assert run(["translate", "pairs", "the cat 1", "--beam", "1"]) == 0
    translation = capfd.readouterr().out.rstrip("\n")
    steps, shown = translate_step_by_step("pairs", "the cat 1")
    assert (steps[0][0], shown) == ("<sos>", translation)
    assert [so_far.split()[1:] for so_far, _ in steps] == sorted((so_far.split()[1:] for so_far, _ in steps), key=len)
    added = "".join(token for _, token in steps).removesuffix("<eos>")
    assert added.replace(" ", "") == translation.replace(" ", "")
    assert run(["lesson", "translation", "--model", "pairs", "--ask", "the cat 1"]) == 0
    assert "pairs reads 'the cat 1' and writes one token at a time:" in capfd.readouterr().out


def test_an_evaluation_has_bleu_and_chrf(here, capfd):
    assert run(["evaluate", "pairs", "pairs.tsv", "--limit", "4", "--json"]) == 0
    figures = json.loads(capfd.readouterr().out)
    assert figures.keys() >= {"bleu", "chrf", "bleu_all_references", "loss"}
    assert figures["pairs"] == 4
    assert run(["evaluate", "pairs", "pairs.tsv", "--limit", "2", "--beam", "1"]) == 0
    shown = capfd.readouterr().out
    assert "chrF" in shown
    assert "all references" not in shown  # every sentence has one


def test_info_counts_both_stacks(here, capfd):
    assert run(["info", "pairs", "--names", "--json"]) == 0
    facts = json.loads(capfd.readouterr().out)
    assert facts["parameters"] == sum(weight["parameters"] for weight in facts["weights"])
    assert facts["training_flops_per_token"] == 3 * facts["parameters"]
    paths = {weight["path"].partition(".")[0] for weight in facts["weights"]}
    assert paths == {"embed", "trunk", "encoder"}
    assert "encoder.trunk.blocks.0" in facts["modules"]
    assert run(["info", "pairs"]) == 0
    assert "in 2 + 2 layers" in capfd.readouterr().out


def test_runs_lists_it_and_generate_refuses_it(here, capfd):
    assert run(["runs"]) == 0
    assert "pairs" in capfd.readouterr().out
    assert run(["generate", "pairs", "the"]) == 1
    assert "is not a language model: its parts are encoder_decoder" in capfd.readouterr().err


WRONG = {
    "missing.tsv": (["train", "--task", "translate", "missing.tsv"], 1, "missing.tsv: no such file"),
    "one column": (["train", "--task", "translate", "lines.txt"], 1, "lines.txt, line 1: one column"),
    "no data": (["train", "--task", "translate"], 2, "give a file of pairs"),
    "three files": (["train", "--task", "translate", "a", "b", "c"], 2, "give one file with two columns"),
    "size": (
        ["train", "--task", "translate", "pairs.tsv", "--size", "vaswani-tinny"],
        2,
        "unknown size 'vaswani-tinny', did you mean 'vaswani-tiny'",
    ),
    "rows": ([*TRAIN, "--training.batch-size", "4"], 2, "batches are counted in tokens here"),
    "batch": ([*TRAIN[:-1], "3"], 2, "pairs.batch_tokens = 3"),
    "no model": (["translate", "nothing", "a"], 1, "no model 'nothing'"),
    "language model": (["translate", "primer", "a"], 1, "is not a translation model"),
    "no text": (["translate", "pairs", ""], 2, "the text is empty"),
    "beam": (["translate", "pairs", "a", "--beam", "0"], 2, "--beam must be from 1 to 1000, not 0"),
    "both": (["translate", "pairs", "a", "--beam", "2", "--top-k", "3"], 2, "--top-k samples, and --beam searches"),
    "penalty": (["translate", "pairs", "a", "--length-penalty", "-1"], 2, "--length-penalty must be from 0 to 10"),
    "long": (["translate", "pairs", "the " * 300], 1, "line 1 has"),
    "limit": (["evaluate", "pairs", "pairs.tsv", "--limit", "0"], 2, "0 is less than 1"),
}


@pytest.mark.parametrize("name", WRONG)
def test_bad_input_is_one_line(here, tmp_path, monkeypatch, capfd, name):
    arguments, code, words = WRONG[name]
    (here / "lines.txt").write_text("the cat 1\n", encoding="utf-8")
    if arguments[0] == "train":
        arguments = [*arguments, "--out", str(tmp_path / "run")]
    capfd.readouterr()
    assert run(arguments) == code
    last = capfd.readouterr().err.rstrip("\n").splitlines()[-1]
    assert last.startswith("foretell: ")
    assert words in last
    assert not (tmp_path / "run").exists()
