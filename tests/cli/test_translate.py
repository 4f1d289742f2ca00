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


def test_training_says_what_was_chosen_and_what_to_do_next(foretell, here, tmp_path):
    captured = foretell(*TRAIN, "--out", str(tmp_path / "run"), "--separate-vocabularies").succeeds()
    for words in ("18 to learn from", "two vocabularies of", "toy,", "2 + 2 layers", "times the pairs): as asked"):
        assert words in captured.err
    assert "foretell translate" in captured.out


def test_held_out_pairs_come_from_a_file_and_the_direction_can_be_reversed(foretell, here, tmp_path):
    (tmp_path / "dev.jsonl").write_text(json.dumps({"translation": {"en": "the cat 1", "fr": "le chat 1"}}) + "\n")
    out = str(tmp_path / "run")
    captured = foretell(*TRAIN, "--out", out, "--dev", str(tmp_path / "dev.jsonl"), "--reverse").succeeds()
    assert "pairs left out of the training because their source is held out: 1" in captured.err
    assert f"17 to learn from, 1 held out: {tmp_path / 'dev.jsonl'}" in " ".join(captured.err.split())
    assert "foretell translate" in captured.out and "le chat 1" in captured.out
    foretell("evaluate", out, "pairs.tsv", "--reverse", "--beam", "1", "--limit", "2").succeeds()
    foretell("train", "--out", out, "--resume", "auto", "--dev", "pairs.tsv").fails(2, "was started with dev = ")


def test_two_of_three_languages_are_trained_and_evaluated(foretell, here, tmp_path):
    rows = [{"de": f"Katze {n}", "en": f"cat {n}", "fr": f"chat {n}"} for n in range(20)]
    (tmp_path / "three.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    columns, out = ["--column", "de", "--column", "en"], str(tmp_path / "run")
    command = [str(tmp_path / "three.jsonl") if each == "pairs.tsv" else each for each in TRAIN]
    assert "Katze" in foretell(*command, "--out", out, *columns).succeeds().out
    assert json.loads((tmp_path / "run" / "run.json").read_text())["columns"] == ["de", "en"]
    foretell("evaluate", out, str(tmp_path / "three.jsonl"), *columns, "--beam", "1", "--limit", "2").succeeds()


def test_a_run_resumes_without_naming_the_task(foretell, here):
    outcome = foretell("train", "--out", "runs/pairs", "--resume", "auto").succeeds()
    assert "finished    runs/pairs has all its 3 steps" in outcome.err


def test_every_line_has_its_translation(foretell, here, monkeypatch):
    (here / "lines.txt").write_text("the cat 1\n\nthe dog 2\n", encoding="utf-8")
    outcome = foretell("translate", "pairs", "lines.txt", "--json").succeeds()
    objects = [json.loads(line) for line in outcome.out.splitlines()]
    assert [each["source"] for each in objects] == ["the cat 1", "", "the dog 2"]
    assert objects[1] == {"source": "", "translation": "", "score": 0.0}
    outcome = foretell("translate", "pairs", "lines.txt").succeeds()
    assert outcome.out.splitlines() == [each["translation"] for each in objects]


def test_a_file_is_read_by_its_option_too(foretell, here):
    (here / "lines.txt").write_text("the cat 1\n", encoding="utf-8")
    (shown,) = foretell("translate", "pairs", "lines.txt").succeeds().out.splitlines()
    assert foretell("translate", "pairs", "--file", "lines.txt").succeeds().out == f"{shown}\n"
    assert foretell("translate", "pairs", "the cat", "--file", "lines.txt").code == 2


@pytest.mark.parametrize("options", [["--beam", "1"], ["--temperature", "1", "--seed", "4"], ["--length-penalty", "0"]])
def test_the_ways_of_decoding(foretell, here, options):
    assert foretell("translate", "pairs", "the cat 1", "--json", *options).succeeds().json["score"] < 0


def test_the_lesson_shows_a_models_greedy_steps_from_the_start_token_on(foretell, here):
    translation = foretell("translate", "pairs", "the cat 1", "--beam", "1").succeeds().out.rstrip("\n")
    steps, shown = translate_step_by_step("pairs", "the cat 1")
    assert (steps[0][0], shown) == ("<sos>", translation)
    assert [so_far.split()[1:] for so_far, _ in steps] == sorted((so_far.split()[1:] for so_far, _ in steps), key=len)
    added = "".join(token for _, token in steps).removesuffix("<eos>")
    assert added.replace(" ", "") == translation.replace(" ", "")
    outcome = foretell("lesson", "translation", "--model", "pairs", "--ask", "the cat 1").succeeds()
    assert "pairs reads 'the cat 1' and writes one token at a time:" in outcome.out


def test_an_evaluation_has_bleu_and_chrf(foretell, here):
    figures = foretell("evaluate", "pairs", "pairs.tsv", "--limit", "4", "--json").succeeds().json
    assert figures.keys() >= {"bleu", "chrf", "bleu_all_references", "loss"}
    assert figures["pairs"] == 4
    shown = foretell("evaluate", "pairs", "pairs.tsv", "--limit", "2", "--beam", "1").succeeds()
    assert "chrF" in shown.out
    assert "all references" not in shown.out  # every sentence has one


def test_info_counts_both_stacks(foretell, here):
    facts = foretell("info", "pairs", "--names", "--json").succeeds().json
    assert facts["parameters"] == sum(weight["parameters"] for weight in facts["weights"])
    assert facts["training_flops_per_token"] == 3 * facts["parameters"]
    paths = {weight["path"].partition(".")[0] for weight in facts["weights"]}
    assert paths == {"embed", "trunk", "encoder"}
    assert "encoder.trunk.blocks.0" in facts["modules"]
    assert "in 2 + 2 layers" in foretell("info", "pairs").succeeds().out


def test_runs_lists_it_and_generate_refuses_it(foretell, here):
    assert "pairs" in foretell("runs").succeeds().out
    foretell("generate", "pairs", "the").fails(1, "is not a language model: its parts are encoder_decoder")


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
def test_bad_input_is_one_line(foretell, here, tmp_path, name):
    arguments, code, words = WRONG[name]
    (here / "lines.txt").write_text("the cat 1\n", encoding="utf-8")
    if arguments[0] == "train":
        arguments = [*arguments, "--out", str(tmp_path / "run")]
    outcome = foretell(*arguments).fails(code, words)
    assert outcome.last_line.startswith("foretell: ")
    assert not (tmp_path / "run").exists()


def test_sentences_are_read_without_the_marks_of_their_editor(foretell, here):
    (here / "plain.txt").write_bytes(b"the cat 1\n\nthe cat 2\n")
    (here / "marked.txt").write_bytes(b"\xef\xbb\xbfthe cat 1\r\n\r\nthe cat 2\r\n")
    marked = foretell("translate", "pairs", "--file", "marked.txt", "--json").succeeds()
    assert marked.out == foretell("translate", "pairs", "--file", "plain.txt", "--json").succeeds().out
    assert "byte order mark dropped: marked.txt" in marked.err
