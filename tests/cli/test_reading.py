"""Texts from files and pipes: one reader for every verb."""

from __future__ import annotations

import gzip
import io
import sys

import pytest

CHANGED = b"\xef\xbb\xbfThe cat\r\nsat\r\n"  # a byte order mark, CRLF, and a final line end
CHAT = b"\xef\xbb\xbfhi\r\n"
NOTES = ["byte order mark dropped: ", "CRLF line ends read as LF: "]
ONE_TEXT = ["next", "score", "generate", "tokenize", "explain"]


@pytest.fixture
def pipe(monkeypatch):
    """Put bytes on standard input."""

    def put(content: bytes) -> None:
        buffer = io.BufferedReader(io.BytesIO(content))
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(buffer, encoding="utf-8"))

    return put


def notes_on(source: str) -> str:
    return "".join(f"{note}{source}\n" for note in NOTES)


@pytest.mark.parametrize("verb", ONE_TEXT)
def test_a_file_and_a_pipe_are_the_text_without_what_their_writer_added(foretell, trained, tmp_path, pipe, verb):
    (tmp_path / "prompt.txt").write_bytes(CHANGED)
    expected = foretell(verb, trained, "The cat\nsat").succeeds()
    read = foretell(verb, trained, "--file", "prompt.txt").succeeds()
    assert read.out == expected.out
    assert notes_on("prompt.txt") in read.err
    pipe(CHANGED)
    piped = foretell(verb, trained, "-").succeeds()
    assert piped.out == expected.out
    assert notes_on("standard input") in piped.err


@pytest.mark.parametrize("content", [b"The cat\n", b"The cat\r\n", b"The cat"])
def test_one_final_line_end_is_not_part_of_a_prompt(foretell, trained, pipe, content):
    pipe(content)
    assert foretell("next", trained, "-", "--json").json["context"] == "The cat"


def test_a_further_final_line_end_is_part_of_a_prompt(foretell, trained, pipe):
    pipe(b"The cat\n\n")
    assert foretell("next", trained, "-", "--json").json["context"] == "The cat\n"


@pytest.mark.parametrize(
    ("verb", "option", "field"), [("embed", "--file", "text"), ("generate", "--prompt-file", "prompt")]
)
def test_lines_are_read_like_texts(foretell, trained, tmp_path, verb, option, field):
    (tmp_path / "lines.txt").write_bytes(CHANGED)
    outcome = foretell(verb, trained, option, "lines.txt", "--json").succeeds()
    assert [f'"{field}": "{line}"' in outcome.out for line in ("The cat", "sat")] == [True, True]
    assert notes_on("lines.txt") in outcome.err


def test_messages_are_read_like_texts(foretell, trained, pipe):
    pipe(CHAT)
    outcome = foretell("chat", trained, "--json", "--max-tokens", "1").succeeds()
    assert outcome.json["message"] == "hi"
    assert notes_on("standard input") in outcome.err


def test_a_compressed_prompt_is_decompressed(foretell, trained, tmp_path):
    (tmp_path / "prompt.txt.gz").write_bytes(gzip.compress(b"The cat\n"))
    assert foretell("next", trained, "--file", "prompt.txt.gz", "--json").json["context"] == "The cat"
