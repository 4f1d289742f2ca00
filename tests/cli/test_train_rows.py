"""Sequences as data: rows of their own, special tokens in the data, prompts and answers; texts below one context."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from foretell.runs.run import Run
from foretell.runs.summary import summarize

SMALL = ["--size", "toy", "--model.width", "16", "--model.context-length", "32", "--dtype", "float32"]
FOUR = [*SMALL, "--steps", "4", "--training.log-every", "1"]
QUICK = [*FOUR, "--training.batch-size", "3"]
ROWS = ["how is it <EOS> fine", "", "is it <EOS>", "it is <EOS> how fine it is <EOS>"]
QUESTIONS = [{"q": f"{n} + 1 =", "a": f" {n + 1}", "n": n} for n in range(60)]


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    (tmp_path / "lines.txt").write_text("\n".join(ROWS), encoding="utf-8")
    return tmp_path / "lines.txt"


@pytest.fixture
def questions(tmp_path: Path) -> Path:
    (tmp_path / "sums.jsonl").write_text("\n".join(map(json.dumps, QUESTIONS)), encoding="utf-8")
    return tmp_path / "sums.jsonl"


def rows_of(foretell, run: str, step: int = 1) -> list[str]:
    """The rows of a step, a space between tokens, those with a loss marked."""
    told = foretell("train", "--show-batch", step, "--out", run, "--json").json
    return sorted(
        " ".join(token["text"] + ("" if token["loss"] is None else "*") for token in row["tokens"])
        for row in told["rows"]
    )


def test_every_line_is_a_row_with_special_tokens_and_one_end(foretell, lines) -> None:
    outcome = foretell("train", lines, "--rows", "--special", "<EOS>", "--kind", "words", *QUICK, "--out", "x")
    assert outcome.code == 0, outcome.err
    assert "rows        3 and 0, of 3 to 8 tokens, padded, never joined; loss on all tokens" in outcome.err
    assert "nothing is held out for validation of fewer than 50 rows" in outcome.err
    assert "empty document skipped" in outcome.err
    assert rows_of(foretell, "x") == [
        "how is* it* <EOS>* fine* <EOS>*",
        "is it* <EOS>*",
        "it is* <EOS>* how* fine* it* is* <EOS>*",
    ]
    data = json.loads(Path("x/run.json").read_text())["config"]["data"]
    assert (data["rows"], data["special"], data["loss_on"]) == (True, ["<EOS>"], "all")


def test_rows_can_be_packed_and_do_not_see_each_other(foretell, lines) -> None:
    packing = ["--rows", "--special", "<EOS>", "--kind", "words", "--set", "data.packing=true"]
    outcome = foretell("train", lines, *packing, *FOUR, "--training.batch-size", "1", "--out", "x")
    assert outcome.code == 0, outcome.err
    assert "rows        3 and 0, packed into 1 of 16 tokens, 0% padding; loss on all tokens" in outcome.err
    shown = foretell("train", "--show-batch", 1, "--out", "x", "--json").json["rows"]
    assert [row["start"] for row in shown] == [None]
    documents = [token["document"] for token in shown[0]["tokens"]]
    firsts = [index for index, document in enumerate(documents) if document != documents[index - 1] or index == 0]
    assert [shown[0]["tokens"][index]["loss"] for index in firsts] == [None] * 3


@pytest.mark.parametrize(("loss_on", "prompt"), [("answer", "4 + 1 ="), ("all", "4 +* 1* =*")])
def test_the_loss_is_on_the_answer_or_on_all(foretell, questions, loss_on, prompt) -> None:
    options = ["--prompt-field", "q", "--answer-field", "a", "--loss-on", loss_on, "--kind", "words", *FOUR]
    outcome = foretell("train", questions, *options, "--training.batch-size", "54", "--out", "x").succeeds()
    assert "rows        54 and 6, of 6 tokens" in outcome.err
    assert f"{prompt} 5* <|endoftext|>*" in rows_of(foretell, "x")
    assert f"per token of {'the answers' if loss_on == 'answer' else 'the rows'}" in outcome.out
    logged = [json.loads(line) for line in Path("x/metrics.jsonl").read_text().splitlines()]
    assert logged[-1]["tokens"] == 4 * 54 * 5  # all that are read, also with the loss on the answer
    assert summarize(Run.open(Path("x"))).bits_per_byte is None


def test_a_run_of_rows_resumes_bit_identically_and_its_tokens_train_again(foretell, questions) -> None:
    options = ["--prompt-field", "q", "--answer-field", "a", "--kind", "bytes", "--checkpoint-every", "2"]
    for name in ("whole", "cut"):
        assert foretell("train", questions, *options, *QUICK, "--model.dropout", "0.1", "--out", name).code == 0
    shutil.rmtree("cut/checkpoints/step-000004")
    assert foretell("train", "--out", "cut", "--resume", "auto").code == 0
    whole, again = (load_file(f"{run}/checkpoints/step-000004/model.safetensors") for run in ("whole", "cut"))
    assert all(torch.equal(whole[path], again[path]) for path in whole)
    again_options = ["--rows", "--data.prompt-field", "q", "--data.answer-field", "a", *QUICK]
    assert foretell("train", "whole/tokens", *again_options, "--out", "again").code == 0
    assert foretell("train", "whole/tokens", *QUICK, "--out", "y").last_line.endswith("add --rows")
    assert (
        "--loss-on all needs the texts" in foretell("train", "whole/tokens", "--rows", *QUICK, "--out", "y").last_line
    )


@pytest.mark.parametrize("suffix", ["jsonl", "csv"])
def test_an_answer_that_is_marked_as_bad_is_not_learned(foretell, tmp_path, suffix) -> None:
    marks = {"a": ("true", "1"), "b": ("false", ""), "c": ("", "0"), "d": ("", "")}
    lines = [
        f'{{"q": "{q}", "a": "x", "label": {label or "null"}, "weight": {weight or "null"}}}'
        for q, (label, weight) in marks.items()
    ]
    cells = ["q,a,label,weight", *(f"{q},x,{label},{weight}" for q, (label, weight) in marks.items())]
    (tmp_path / f"qa.{suffix}").write_text("\n".join(lines if suffix == "jsonl" else cells) + "\n")
    options = ["--prompt-field", "q", "--answer-field", "a", "--kind", "words", *QUICK]
    outcome = foretell("train", f"qa.{suffix}", *options, "--out", "x").succeeds()
    assert "rows        2 and 0" in outcome.err
    assert f"rows that are marked as not to be learned are left out: qa.{suffix}, line" in outcome.err


def test_a_marking_field_that_is_named_as_the_answer_is_a_text(foretell, tmp_path) -> None:
    (tmp_path / "qa.csv").write_text("q,label\nIs it?,true\nWas it?,false\n")
    options = ["--prompt-field", "q", "--answer-field", "label", "--kind", "words", *QUICK]
    assert "rows        2 and 0" in foretell("train", "qa.csv", *options, "--out", "x").succeeds().err


def test_prompts_and_answers_are_learned_and_generated(foretell, tmp_path) -> None:
    (tmp_path / "qa.csv").write_text("question,answer\nWho?,A cat.\nWhat?,A mat.\n")
    options = ["--prompt-field", "question", "--answer-field", "answer", "--data.separator", " -> ", "--kind", "bytes"]
    fast = ["--steps", "60", "--training.learning-rate", "0.01", "--model.dropout", "0", "--training.batch-size", "2"]
    outcome = foretell("train", "qa.csv", *options, "--size", "toy", *fast, "--out", "x").succeeds()
    assert "generate x 'Wh" in outcome.out
    for prompt, answer in (("Who? -> ", "A cat."), ("What? -> ", "A mat.")):
        told = foretell("generate", "x", prompt, "--temperature", "0", "--json").json
        assert (told["text"], told["finish_reason"]) == (answer, "end")


def test_the_first_token_has_a_probability_after_a_chosen_start_token(foretell, corpus, trained) -> None:
    options = ["--kind", "words", "--start-token", "<BOS>", *QUICK]
    assert foretell("train", corpus, *options, "--out", "x").code == 0
    assert foretell("tokenize", "x", "The cat", "--json").json["pieces"] == ["<BOS>", "The", "cat"]
    for arguments in (["x", "The cat"], [trained, "The", "--start-token", "<|endoftext|>"]):
        told = foretell("score", *arguments, "--json").json
        logprobs = [token["logprob"] for token in told["tokens"]]
        assert None not in logprobs
        assert told["logprob"] == pytest.approx(sum(logprobs))
    assert foretell("score", trained, "The", "--json").json["tokens"][0]["logprob"] is None
    assert "given the start token '<BOS>'" in foretell("score", "x", "The cat").out
    told = foretell(
        "train", corpus, "--start-from", trained, "--start-token", "<|endoftext|>", *QUICK[-6:], "--out", "y"
    )
    assert told.code == 0, told.err
    assert foretell("score", "y", "The", "--json").json["tokens"][0]["logprob"] is not None


@pytest.mark.parametrize("verb", ["score", "next", "generate", "embed", "explain", "trace", "tokenize"])
def test_special_tokens_in_a_text_are_read_only_when_allowed(foretell, trained, verb) -> None:
    options = {"generate": ["--max-tokens", "1"], "trace": ["--out", "values"]}.get(verb, [])
    text = "<|endoftext|>The"
    outcomes = [foretell(verb, trained, text, *allow, *options, "--json") for allow in ([], ["--allow-special"])]
    plain, special = (outcome.json for outcome in outcomes)
    assert plain != special
    hint = "'<|endoftext|>' in the text is read as ordinary text; --allow-special"
    assert [hint in outcome.err for outcome in outcomes] == [True, False]
    if verb == "score":
        assert [token["id"] for token in special["tokens"]] == [256, *b"The"]


def test_an_empty_continuation_is_reported_with_its_reason(foretell, trained) -> None:
    outcome = foretell("generate", trained, "The", "--logit-bias", "#256=1000")
    assert (outcome.code, outcome.out) == (0, "The\n")
    assert "the continuation is empty; it ended with: end" in outcome.err


# --- texts shorter than one context ----------------------------------------------------------------------------------


def test_a_model_goes_on_with_a_text_shorter_than_its_context(foretell, tmp_path, trained) -> None:
    (tmp_path / "short.txt").write_text("The cat sat on it.\n")
    options = ["--start-from", trained, "--steps", "4", "--dtype", "float32", "--checkpoint-every", "2"]
    for name in ("x", "cut"):
        outcome = foretell("train", "short.txt", *options, "--out", name).succeeds()
    assert "window      17 tokens per row, all of a text shorter than the context of 32" in outcome.err
    assert "1 row per step" in outcome.err
    record = json.loads(Path("x/run.json").read_text())
    assert record["config"]["data"]["window_length"] == 17
    assert len(foretell("train", "--show-batch", 4, "--out", "x", "--json").json["rows"][0]["tokens"]) == 18
    shutil.rmtree("cut/checkpoints/step-000004")
    assert foretell("train", "--out", "cut", "--resume", "auto").code == 0
    whole, again = (load_file(f"{run}/checkpoints/step-000004/model.safetensors") for run in ("x", "cut"))
    assert all(torch.equal(whole[path], again[path]) for path in whole)


def test_a_text_too_short_to_hold_anything_out_is_trained_without_validation(foretell, tmp_path, trained) -> None:
    (tmp_path / "tiny.txt").write_text("c")
    outcome = foretell("train", "tiny.txt", "--start-from", trained, "--steps", "2", "--out", "x").succeeds()
    assert "held out    nothing: the text is too short, so there is no validation loss" in outcome.err
    assert "best " not in outcome.out


def test_a_shorter_window_can_be_chosen(foretell, corpus, trained) -> None:
    options = ["--start-from", trained, "--steps", "2", "--data.window-length", "8", "--training.batch-size", "2"]
    outcome = foretell("train", corpus, *options, "--out", "x")
    assert "window      8 tokens per row of the context of 32" in outcome.err
    assert len(foretell("train", "--show-batch", 1, "--out", "x", "--json").json["rows"][0]["tokens"]) == 9
