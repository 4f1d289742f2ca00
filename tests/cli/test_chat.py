"""`foretell chat`: piped messages, commands, and Ctrl-C."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from foretell.cli.chat import HELP, answer
from foretell.inference.chat import Answer, Chat
from foretell.language_model import LanguageModel
from foretell.loading import load
from foretell.text.chat_template import BUILT_IN


@pytest.fixture(scope="module")
def tuned(tmp_path_factory) -> Path:
    """primer with a chat template."""
    path, model = tmp_path_factory.mktemp("chat") / "n", load("primer", "cpu")
    tokenizer = model.tokenizer.with_chat_template(BUILT_IN["plain"])
    LanguageModel(model.decoder, tokenizer, "n").save(path)
    return path


@pytest.fixture
def chat(foretell, monkeypatch, tuned):
    """Run `foretell chat` on a text as standard input."""

    def call(text: str, *options: str):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
        return foretell("chat", tuned, "--max-tokens", "6", "--temperature", "0", *options)

    return call


def test_each_line_is_a_message_and_each_answer_a_line(chat):
    outcome = chat("what is 3?\n\nwhat is 4?\n")
    assert outcome.code == 0
    assert len(outcome.out.splitlines()) == 2
    answers = [json.loads(line) for line in chat("what is 3?\nwhat is 4?", "--json").out.splitlines()]
    assert [answer["message"] for answer in answers] == ["what is 3?", "what is 4?"]
    assert [answer["text"] for answer in answers] == [line.strip() for line in outcome.out.splitlines()]
    assert set(answers[0]) == {"message", "text", "token_ids", "finish_reason", "dropped"}


def test_line_feeds_in_a_piped_answer_are_escaped(monkeypatch, capsys):
    said = SimpleNamespace(
        answer=Answer("one\ntwo", [1], "end", 0), stream=lambda text: (piece for piece in ("one\n", "two"))
    )
    monkeypatch.setattr("foretell.cli.chat.is_interactive", lambda: False)
    answer(cast(Any, said), "count", json=False)
    assert capsys.readouterr().out == "one\\ntwo\n"


def test_the_commands(chat, tmp_path):
    script = "/help\n/system Be brief.\n/system\nwhat is 3?\n/look\n/look 2\n/save c.json\n/reset\n//save\n"
    outcome = chat(script)
    assert outcome.code == 0, outcome.err
    assert "/look [N]" in outcome.out and "direct contributions" in outcome.out and "position" in outcome.out
    assert outcome.err.count("system message: Be brief.") == 2
    [saved] = json.loads((tmp_path / "c.json").read_text(encoding="utf-8"))
    assert [message["role"] for message in saved["messages"]] == ["system", "user", "assistant"]
    assert "3 messages written to c.json" in outcome.err
    assert "the conversation is forgotten; the system message stays" in outcome.err


def test_the_help_fits_a_terminal():
    assert max(map(len, HELP.splitlines())) <= 79


def test_with_json_standard_output_has_objects_alone(chat):
    outcome = chat("what is 3?\n/look\n/help\n", "--json")
    assert [json.loads(line)["message"] for line in outcome.out.splitlines()] == ["what is 3?"]
    assert "direct contributions" in outcome.err and "/look [N]" in outcome.err


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("/rest", "line 2: unknown command /rest, did you mean '/reset'?"),
        ("/look x", "from the end, not 'x'"),
        (f"/look {'9' * 5000}", f"from the end, not '{'9' * 79}…'"),
        ("/" + "x" * 9999, f"unknown command /{'x' * 78}…"),
        ("/save c\0.json", "line 2: NUL bytes"),
        ("/save ~nobody-of-this-name/c.json", "there is no folder ~nobody-of-this-name"),
        ("/save", "needs the name of a file"),
        ("/save no/such/c.json", "there is no folder no/such"),
        ("x" * 999, "the model's context is 128; shorten it"),
    ],
)
def test_a_line_that_cannot_be_done_ends_a_pipe_with_one_line(chat, line, words):
    outcome = chat(f"hi\n{line}\n")
    assert outcome.code in (1, 2)
    assert words in outcome.last_line


@pytest.mark.parametrize("content", ["mine", '[{"messages": []}]'])
def test_an_existing_file_is_replaced_only_on_request(chat, tmp_path, content):
    (tmp_path / "my notes.txt").write_text(content, encoding="utf-8")
    assert "--overwrite to replace it" in chat("hi\n/save my notes.txt\n").last_line
    assert (tmp_path / "my notes.txt").read_text(encoding="utf-8") == content
    assert chat("hi\n/save --overwrite my notes.txt\n").code == 0
    assert json.loads((tmp_path / "my notes.txt").read_text(encoding="utf-8"))[0]["messages"]


def test_a_conversation_is_never_saved_over_what_the_program_has_read(chat, tmp_path):
    template = tmp_path / "my.jinja"
    content = "{% for each in messages %}{{ each.role }}: {{ each.content }}\n{% endfor %}"
    template.write_text(content, encoding="utf-8")
    outcome = chat("hi\n/save --overwrite my.jinja\n", "--template", "my.jinja")
    assert "the command reads my.jinja" in outcome.last_line
    assert template.read_text(encoding="utf-8") == content


def interrupt_after(pieces: int, monkeypatch) -> None:
    """Ctrl-C after some pieces of each answer."""
    original = Chat._read

    def read(self, *arguments):
        stream = original(self, *arguments)
        for _ in range(pieces):
            yield next(stream)
        try:
            stream.throw(KeyboardInterrupt())
        finally:
            stream.close()

    monkeypatch.setattr(Chat, "_read", read)


def test_ctrl_c_stops_the_answer_and_keeps_what_there_is(chat, monkeypatch):
    interrupt_after(1, monkeypatch)
    outcome = chat("hi\nhi again\n", "--json")
    assert outcome.code == 0, outcome.err
    assert [json.loads(line)["finish_reason"] for line in outcome.out.splitlines()] == ["interrupted"] * 2
    assert outcome.err.count("stopped; the answer so far is kept") == 2


def test_ctrl_c_at_the_prompt_ends_with_130(chat, monkeypatch):
    def interrupted(line: object) -> bytes:
        raise KeyboardInterrupt

    monkeypatch.setattr("foretell.cli.chat.piped_lines", lambda: map(interrupted, [1]))
    assert chat("").code == 130


def test_a_model_without_a_template_says_what_it_does(foretell, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"hello\n")))
    outcome = foretell("chat", "primer", "--max-tokens", "3").succeeds()
    assert "primer has no chat template" in outcome.err


@pytest.mark.parametrize("command", ["/exit", "/quit", "/bye", "/exit now"])
def test_a_chat_ends_as_in_other_programs(command, chat):
    outcome = chat(f"/system\n{command}\n/nonsense\n").succeeds()
    assert outcome.out == ""
