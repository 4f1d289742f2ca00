"""`foretell generate`: files of prompts, results as they end, guesses, timings."""

from __future__ import annotations

import errno
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

GREEDY = ("--temperature", "0", "--max-tokens", "12")


def test_every_line_of_a_file_is_continued_as_it_would_be_alone(foretell, tmp_path):
    (tmp_path / "prompts.txt").write_text("The value of\n\nA class\nThe value of\n")
    outcome = foretell("generate", "primer", "--prompt-file", "prompts.txt", "--out", "out.jsonl", *GREEDY)
    assert (outcome.code, outcome.out) == (0, "")
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert sorted((line["index"], line["prompt"]) for line in lines) == [
        (0, "The value of"),
        (1, "A class"),
        (2, "The value of"),
    ]
    for line in lines:
        assert line["text"] == foretell("generate", "primer", line["prompt"], *GREEDY, "--json").json["text"]


def test_without_out_the_lines_are_written_to_stdout(foretell, tmp_path):
    (tmp_path / "prompts.txt").write_text("The value of\nA class\n")
    outcome = foretell("generate", "primer", "--prompt-file", "prompts.txt", *GREEDY, "--progress", "--n", "2")
    lines = [json.loads(line) for line in outcome.out.splitlines()]
    fields = {"index", "continuation", "prompt", "text", "token_ids", "finish_reason"}
    assert [set(line) for line in lines] == [fields] * 4
    assert sorted((line["index"], line["continuation"], line["prompt"]) for line in lines) == [
        *((0, number, "The value of") for number in range(2)),
        *((1, number, "A class") for number in range(2)),
    ]


def test_overwrite_replaces_the_whole_file(foretell, tmp_path):
    (tmp_path / "out.jsonl").write_text("mine\n" * 99)
    foretell("generate", "primer", "A class", *GREEDY, "--out", "out.jsonl", "--overwrite").succeeds()
    assert len((tmp_path / "out.jsonl").read_text().splitlines()) == 1


def test_a_full_disk_leaves_no_empty_file(foretell, tmp_path, monkeypatch):
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("foretell.cli.generate.print", refuse, raising=False)
    outcome = foretell("generate", "primer", "A class", *GREEDY, "--out", "out.jsonl")
    assert (outcome.code, outcome.last_line) == (1, "foretell: could not write out.jsonl: No space left on device")
    assert not (tmp_path / "out.jsonl").exists()


def test_a_file_of_blank_lines_is_refused(foretell, tmp_path):
    (tmp_path / "blank.txt").write_text("\n \n")
    foretell("generate", "primer", "--prompt-file", "blank.txt").fails(1, "blank.txt has no prompt; write one per line")


@pytest.mark.parametrize(
    "guess", [("--speculate", "5"), ("--draft", "primer"), ("--draft", "primer", "--speculate", "2")]
)
def test_guessed_tokens_change_no_text(foretell, guess):
    plain = foretell("generate", "primer", "The value of", *GREEDY, "--strict").out
    assert foretell("generate", "primer", "The value of", *GREEDY, "--strict", *guess).out == plain


def test_timings_are_one_line_on_stderr(foretell):
    outcome = foretell("generate", "primer", "The value of", *GREEDY, "--timings")
    assert "tokens/s" not in outcome.out
    pattern = r"3 prompt tokens; 12 new tokens in [\d.]+ s, the first after [\d.]+ s, then [\d.,]+ tokens/s"
    assert re.fullmatch(pattern, outcome.last_line)
    nothing = foretell("generate", "primer", "A", "--max-tokens", "0", "--timings")
    assert re.search(r"; 0 new tokens in \d\.\d\d s$", nothing.last_line)


@pytest.mark.parametrize("option", ["--prompt-file", "--json-schema", "--file"])
@pytest.mark.parametrize("kind", ["pipe", "device", "huge"])
def test_files_of_options_are_regular_and_of_a_limited_size(foretell, tmp_path, option, kind):
    path = tmp_path / "given"
    if kind == "pipe":
        os.mkfifo(path)  # reading it would wait for a writer
    elif kind == "device":
        path.symlink_to("/dev/zero")
    else:
        path.touch()
        os.truncate(path, 2**40)
    outcome = foretell("generate", "primer", *(["x"] if option == "--json-schema" else []), option, path)
    assert outcome.code == 1
    assert f"{path}" in outcome.err
    assert ("NUL bytes" if kind == "huge" else "not a regular file; give a file, or -") in outcome.err


def test_a_hyphen_as_the_output_is_standard_output(foretell, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shown = foretell("generate", "primer", "The", *GREEDY, "--out", "-").out
    assert foretell("generate", "primer", "The", *GREEDY, "--out", "completions.jsonl").code == 0
    assert shown == Path("completions.jsonl").read_text()
    assert [path.name for path in tmp_path.iterdir()] == ["completions.jsonl"]


def test_one_token_and_one_byte_are_singular(foretell):
    assert foretell("tokenize", "primer", "a").out.splitlines()[-1] == "1 token for 1 byte, 1.00 bytes each"
    assert "the text, which has 1 token (0 to 0)" in foretell("next", "primer", "a", "--at", "3").err


def test_a_file_of_an_option_may_be_a_link(foretell, tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "prompts.txt").write_text("The\n", encoding="utf-8")
    (tmp_path / "link").symlink_to(tmp_path / "folder" / "prompts.txt")
    assert foretell("generate", "primer", "--prompt-file", tmp_path / "link", "--max-tokens", 2).code == 0


@pytest.mark.parametrize("content", ['{"allOf": ' + "[" * 100_000, '{"maximum": ' + "9" * 5000 + "}"])
def test_a_schema_that_python_cannot_read_is_one_line(foretell, tmp_path, content):
    (tmp_path / "schema.json").write_text(content, encoding="utf-8")
    outcome = foretell("generate", "primer", "x", "--json-schema", tmp_path / "schema.json")
    assert outcome.code == 1
    assert "schema.json is not readable JSON" in outcome.err
    assert len(outcome.err.splitlines()) == 1


IMPORTS = """
import sys, torch
before = {name for name in sys.modules if name.startswith("torch")}
from foretell.cli.main import run
run(["generate", "primer", "If", "--max-tokens", "3"])
print(sorted({name for name in sys.modules if name.startswith(("torch", "foretell.textbook"))} - before))
"""


def test_a_generation_imports_little_of_torch_besides_torch_and_no_textbook():
    """Each further submodule would delay the first token."""
    finished = subprocess.run([sys.executable, "-c", IMPORTS], capture_output=True, text=True, check=True)
    assert finished.stdout.splitlines()[-1] == "['torch.utils._device']"
